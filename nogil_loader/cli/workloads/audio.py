"""Clips of one second at 16 kHz, one a file, to batches of 32 x 16000 x 1: WAV and FLAC."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nogil_loader as nl
from nogil_loader import decode
from nogil_loader.cli.workloads.base import Looped, Prepared, Workload, files_in, rows_of
from nogil_loader.cli.workloads.byhand import Job, as_it_is
from nogil_loader.decode import _sndfile_ctypes
from nogil_loader.pipeline import Pipeline
from nogil_loader.testing import media

FRAMES = 16_000
SCALE = np.float32(1 / 32768)
SF_READ = 0x10


def make_wav(folder: Path, count: int, seed: int) -> Prepared:
    """16-bit mono WAV files."""
    media.write_clips(folder, count, seed=seed)
    return Prepared(folder, f"{count} WAV clips of 1 s at 16 kHz, seed {seed}, to float32")


def make_flac(folder: Path, count: int, seed: int) -> Prepared:
    """The same clips as FLAC."""
    media.write_clips(folder, count, seed=seed, kind="flac")
    return Prepared(folder, f"{count} FLAC clips of 1 s at 16 kHz, seed {seed}, to float32")


def _pipeline(folder: Path) -> Pipeline[dict[str, object]]:
    return nl.from_files(folder).map(decode.audio(), key="path", to="sound").batch(WAV.batch)


def _wav_job(folder: Path) -> Looped:
    return Job(files_in(folder), _new, _put_wav, as_it_is)


def _flac_job(folder: Path) -> Looped:
    return Job(files_in(folder), _new, _read_into(), as_it_is)


def _new(rows: int) -> NDArray[np.float32]:
    return np.empty((rows, FRAMES, 1), np.float32)


def _put_wav(batch: NDArray[np.float32], row: int, path: str) -> None:
    """What is known beforehand is not parsed: a header of 44 bytes, 16 bits, one channel."""
    with open(path, "rb", buffering=0) as file:
        data = file.readall()
    samples = np.frombuffer(data, "<i2", FRAMES, 44).reshape(FRAMES, 1)
    np.multiply(samples, SCALE, out=batch[row])


def _read_into() -> Callable[[NDArray[np.float32], int, str], None]:
    """libsndfile, called directly, straight into a row of a batch."""
    library = ctypes.CDLL(_sndfile_ctypes.path())
    info = _sndfile_ctypes.Info
    opened, read, close = library.sf_open_fd, library.sf_readf_float, library.sf_close
    opened.restype = ctypes.c_void_p
    opened.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(info), ctypes.c_int)
    read.restype = ctypes.c_int64
    read.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    close.argtypes = (ctypes.c_void_p,)

    def put(batch: NDArray[np.float32], row: int, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        handle = opened(descriptor, SF_READ, ctypes.byref(info()), 1)
        frames = read(handle, batch.ctypes.data + row * batch.strides[0], FRAMES)
        close(handle)
        if frames != FRAMES:
            raise ValueError(path)

    return put


WAV = Workload("wav", 32, 1024, 256, make_wav, _pipeline, _wav_job, rows_of("sound"))
FLAC = Workload("flac", 32, 512, 128, make_flac, _pipeline, _flac_job, rows_of("sound"))

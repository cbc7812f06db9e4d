"""Clips of 1, 10 and 60 seconds at 16 kHz, one a file, to batches (rows, frames, 1).

Batches hold 32 clips of a second, 8 of ten, 4 of sixty: as WAV and as FLAC.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nogil_loader as nl
from nogil_loader import decode
from nogil_loader.cli.workloads.base import Looped, Prepared, Workload, content, files_in, rows_of
from nogil_loader.cli.workloads.byhand import Job, as_it_is
from nogil_loader.decode import _sndfile_ctypes
from nogil_loader.pipeline import Pipeline
from nogil_loader.testing import media

RATE = 16_000
SCALE = np.float32(1 / 32768)
SF_READ = 0x10


def _make(kind: str, seconds: int, folder: Path, count: int, seed: int) -> Prepared:
    """16-bit mono WAV files, or the same clips as FLAC."""
    media.write_clips(folder, count, seed=seed, seconds=seconds, kind=kind)
    about = f"{count} {kind.upper()} clips of {seconds} s at 16 kHz, seed {seed}, to float32"
    return Prepared(folder, about)


def _pipeline(batch: int, folder: Path) -> Pipeline[dict[str, object]]:
    return nl.from_files(folder).map(decode.audio(), key="path", to="sound").batch(batch)


def _wav_job(seconds: int, folder: Path) -> Looped:
    return Job(files_in(folder), partial(_new, seconds * RATE), _put_wav, as_it_is)


def _flac_job(seconds: int, folder: Path) -> Looped:
    return Job(files_in(folder), partial(_new, seconds * RATE), _read_into(), as_it_is)


def _new(frames: int, rows: int) -> NDArray[np.float32]:
    return np.empty((rows, frames, 1), np.float32)


def _put_wav(batch: NDArray[np.float32], row: int, path: str) -> None:
    """What is known beforehand is not parsed: a header of 44 bytes, 16 bits, one channel."""
    target = batch[row]
    data = content(path, 44 + 2 * target.size)
    samples = np.frombuffer(data, "<i2", target.size, 44).reshape(target.shape)
    np.multiply(samples, SCALE, out=target)


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
        wanted = batch.shape[1]
        frames = read(handle, batch.ctypes.data + row * batch.strides[0], wanted)
        close(handle)
        if frames != wanted:
            raise ValueError(path)

    return put


def workload(kind: str, seconds: int, batch: int, count: int, few: int) -> Workload:
    """Clips of that kind ("wav", "flac") and length."""
    job = partial(_wav_job if kind == "wav" else _flac_job, seconds)
    name = kind if seconds == 1 else f"{kind}-{seconds}s"
    prepare = partial(_make, kind, seconds)
    make = partial(_pipeline, batch)
    return Workload(name, batch, count, few, prepare, make, job, rows_of("sound"))


WAV, FLAC = workload("wav", 1, 32, 2048, 256), workload("flac", 1, 32, 1024, 128)
LONGER = (
    workload("wav", 10, 8, 128, 32),
    workload("flac", 10, 8, 64, 16),
    workload("wav", 60, 4, 16, 8),
    workload("flac", 60, 4, 16, 8),
)

"""Arrays of 150 kB, one a file, to batches of 32: npy and npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nogil_loader as nl
from nogil_loader import decode
from nogil_loader.cli.workloads.base import Looped, Prepared, Workload, files_in, rows_of
from nogil_loader.cli.workloads.byhand import Job, as_it_is
from nogil_loader.pipeline import Pipeline
from nogil_loader.testing import media

SHAPE = (192, 196)


def make_npy(folder: Path, count: int, seed: int) -> Prepared:
    """One array in each file."""
    media.write_arrays(folder, count, seed=seed, shape=SHAPE)
    return Prepared(folder, f"{count} npy files, float32 of {SHAPE[0]}x{SHAPE[1]}, seed {seed}")


def make_npz(folder: Path, count: int, seed: int) -> Prepared:
    """Two arrays in each file, the second a number."""
    media.write_arrays(folder, count, seed=seed, shape=SHAPE, kind="npz")
    return Prepared(folder, f"{count} npz files, float32 of {SHAPE[0]}x{SHAPE[1]}, seed {seed}")


def _npy_pipeline(folder: Path) -> Pipeline[dict[str, object]]:
    return nl.from_files(folder).map(decode.array(), key="path", to="x").batch(NPY.batch)


def _npz_pipeline(folder: Path) -> Pipeline[dict[str, object]]:
    op = decode.array(member="x")
    return nl.from_files(folder).map(op, key="path", to="x").batch(NPZ.batch)


def _new(rows: int) -> NDArray[np.float32]:
    return np.empty((rows, *SHAPE), np.float32)


def _put_npy(batch: NDArray[np.float32], row: int, path: str) -> None:
    """What is known beforehand is not parsed: version 1, float32, this shape."""
    with open(path, "rb", buffering=0) as file:
        data = file.readall()
    start = 10 + int.from_bytes(data[8:10], "little")
    batch[row] = np.frombuffer(data, np.float32, offset=start).reshape(SHAPE)


def _put_npz(batch: NDArray[np.float32], row: int, path: str) -> None:
    with np.load(path) as members:
        batch[row] = members["x"]


def _npy_job(folder: Path) -> Looped:
    return Job(files_in(folder), _new, _put_npy, as_it_is)


def _npz_job(folder: Path) -> Looped:
    return Job(files_in(folder), _new, _put_npz, as_it_is)


NPY = Workload("npy", 32, 512, 128, make_npy, _npy_pipeline, _npy_job, rows_of("x"))
NPZ = Workload("npz", 32, 512, 128, make_npz, _npz_pipeline, _npz_job, rows_of("x"))

"""Arrays: of 150 kB, one a file, to batches of 32; rows of a mapped file to batches of 256."""

from __future__ import annotations

import functools
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nogil_loader as nl
from nogil_loader import decode
from nogil_loader.cli.workloads.base import Looped, Prepared, Workload, files_in, rows_of
from nogil_loader.cli.workloads.byhand import Job, as_it_is
from nogil_loader.pipeline import Pipeline
from nogil_loader.sources.arrays import Arrays
from nogil_loader.testing import media

SHAPE = (192, 196)
ROW = 5_000


def make_npy(folder: Path, count: int, seed: int) -> Prepared:
    """One array in each file."""
    media.write_arrays(folder, count, seed=seed, shape=SHAPE)
    return Prepared(folder, f"{count} npy files, float32 of {SHAPE[0]}x{SHAPE[1]}, seed {seed}")


def make_npz(folder: Path, count: int, seed: int) -> Prepared:
    """Two arrays in each file, the second a number."""
    media.write_arrays(folder, count, seed=seed, shape=SHAPE, kind="npz")
    return Prepared(folder, f"{count} npz files, float32 of {SHAPE[0]}x{SHAPE[1]}, seed {seed}")


def make_mapped(folder: Path, count: int, seed: int) -> Prepared:
    """One file with all rows."""
    rows = np.lib.format.open_memmap(
        folder / "rows.npy", "w+", np.float32, (count, ROW), version=(1, 0)
    )
    for index in range(count):
        rows[index] = media.features(index, seed=seed, shape=(ROW,))
    rows.flush()
    return Prepared(folder, f"{count} rows of {ROW} float32 in one mapped npy file, seed {seed}")


def _npy_pipeline(folder: Path) -> Pipeline[dict[str, object]]:
    return nl.from_files(folder).map(decode.array(), key="path", to="x").batch(NPY.batch)


def _npz_pipeline(folder: Path) -> Pipeline[dict[str, object]]:
    op = decode.array(member="x")
    return nl.from_files(folder).map(op, key="path", to="x").batch(NPZ.batch)


def _mapped_pipeline(folder: Path) -> Pipeline[object]:
    source: Pipeline[object] = Pipeline(Arrays({"x": str(folder / "rows.npy")}))
    return source.shuffle(1).batch(MAPPED.batch)


def _new(rows: int) -> NDArray[np.float32]:
    return np.empty((rows, *SHAPE), np.float32)


def _put_npy(batch: NDArray[np.float32], row: int, path: str) -> None:
    """What is known beforehand is not parsed: version 1, float32, this shape."""
    with open(path, "rb", buffering=0) as file:
        data = file.readall()
    start = 10 + int.from_bytes(data[8:10], "little")
    batch[row] = np.frombuffer(data, np.float32, offset=start).reshape(SHAPE)


def _put_npz(batch: NDArray[np.float32], row: int, path: str) -> None:
    """The first member, stored, its checksum verified: half the time of ``np.load``."""
    with open(path, "rb", buffering=0) as file:
        data = memoryview(file.readall())
    checksum, size = int.from_bytes(data[14:18], "little"), batch[row].nbytes
    member = 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")
    start = member + 10 + int.from_bytes(data[member + 8 : member + 10], "little")
    if zlib.crc32(data[member : start + size]) != checksum:
        raise ValueError(path)
    batch[row] = np.frombuffer(data, np.float32, size // 4, start).reshape(SHAPE)


def _npy_job(folder: Path) -> Looped:
    return Job(files_in(folder), _new, _put_npy, as_it_is)


def _npz_job(folder: Path) -> Looped:
    return Job(files_in(folder), _new, _put_npz, as_it_is)


def _mapped_job(folder: Path) -> Looped:
    mapped = np.load(folder / "rows.npy", mmap_mode="r")
    order = np.random.default_rng(1).permutation(len(mapped)).tolist()
    return Job(order, _new_rows, functools.partial(_put_row, mapped), as_it_is)


def _new_rows(rows: int) -> NDArray[np.float32]:
    return np.empty((rows, ROW), np.float32)


def _put_row(mapped: NDArray[np.float32], batch: NDArray[np.float32], row: int, index: int) -> None:
    batch[row] = mapped[index]


NPY = Workload("npy", 32, 512, 128, make_npy, _npy_pipeline, _npy_job, rows_of("x"))
NPZ = Workload("npz", 32, 512, 128, make_npz, _npz_pipeline, _npz_job, rows_of("x"))
MAPPED = Workload(
    "mapped", 256, 4_096, 1_024, make_mapped, _mapped_pipeline, _mapped_job, rows_of("x")
)

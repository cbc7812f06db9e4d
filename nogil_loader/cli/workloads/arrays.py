"""Arrays: one a file (npy, npz), or rows of a mapped file; of 20 kB, 150 kB and 10 MB.

A batch holds 32 arrays of 150 kB, 256 of 20 kB, 4 of 10 MB.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nogil_loader as nl
from nogil_loader import decode
from nogil_loader.cli.workloads.base import Looped, Prepared, Workload, content, files_in, rows_of
from nogil_loader.cli.workloads.byhand import Job, as_it_is
from nogil_loader.pipeline import Pipeline
from nogil_loader.sources.arrays import Arrays
from nogil_loader.testing import media

BATCHES = {20: 256, 150: 32, 10_000: 4}
"""Arrays a batch, by their size in kB."""


def shape_of(size: int) -> tuple[int, int]:
    """The shape of a float32 array of about ``size`` kB."""
    return (size * 1000 // (4 * 196) + 1, 196)


def _make_files(kind: str, size: int, folder: Path, count: int, seed: int) -> Prepared:
    """One array in each file; in an npz file two, the second a number."""
    rows, columns = shape = shape_of(size)
    media.write_arrays(folder, count, seed=seed, shape=shape, kind=kind)
    return Prepared(folder, f"{count} {kind} files, float32 of {rows}x{columns}, seed {seed}")


def _make_mapped(size: int, folder: Path, count: int, seed: int) -> Prepared:
    """One file with all rows."""
    rows, columns = shape = shape_of(size)
    path = folder / "rows.npy"
    file = np.lib.format.open_memmap(path, "w+", np.float32, (count, *shape), version=(1, 0))
    for index in range(count):
        file[index] = media.features(index, seed=seed, shape=shape)
    file.flush()
    about = f"{count} rows of float32 {rows}x{columns} in one mapped npy file, seed {seed}"
    return Prepared(folder, about)


def _npy_pipeline(batch: int, folder: Path) -> Pipeline[dict[str, object]]:
    return nl.from_files(folder).map(decode.array(), key="path", to="x").batch(batch)


def _npz_pipeline(batch: int, folder: Path) -> Pipeline[dict[str, object]]:
    op = decode.array(member="x")
    return nl.from_files(folder).map(op, key="path", to="x").batch(batch)


def _mapped_pipeline(batch: int, folder: Path) -> Pipeline[object]:
    source: Pipeline[object] = Pipeline(Arrays({"x": str(folder / "rows.npy")}))
    return source.shuffle(1).batch(batch)


def _new(shape: tuple[int, int], rows: int) -> NDArray[np.float32]:
    return np.empty((rows, *shape), np.float32)


_HEADERS = 4096
"""Bytes of a file that are not its array, at most."""


def _put_npy(batch: NDArray[np.float32], row: int, path: str) -> None:
    """What is known beforehand is not parsed: version 1, float32, this shape."""
    target = batch[row]
    data = content(path, _HEADERS + target.nbytes)
    start = 10 + int.from_bytes(data[8:10], "little")
    target[:] = np.frombuffer(data, np.float32, target.size, start).reshape(target.shape)


def _put_npz(batch: NDArray[np.float32], row: int, path: str) -> None:
    """The first member, stored, its checksum verified: half the time of ``np.load``."""
    target = batch[row]
    data = memoryview(content(path, _HEADERS + target.nbytes))
    checksum, size = int.from_bytes(data[14:18], "little"), target.nbytes
    member = 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")
    start = member + 10 + int.from_bytes(data[member + 8 : member + 10], "little")
    if zlib.crc32(data[member : start + size]) != checksum:
        raise ValueError(path)
    target[:] = np.frombuffer(data, np.float32, target.size, start).reshape(target.shape)


def _put_row(mapped: NDArray[np.float32], batch: NDArray[np.float32], row: int, index: int) -> None:
    batch[row] = mapped[index]


def _npy_job(size: int, folder: Path) -> Looped:
    return Job(files_in(folder), partial(_new, shape_of(size)), _put_npy, as_it_is)


def _npz_job(size: int, folder: Path) -> Looped:
    return Job(files_in(folder), partial(_new, shape_of(size)), _put_npz, as_it_is)


def _mapped_job(size: int, folder: Path) -> Looped:
    mapped = np.load(folder / "rows.npy", mmap_mode="r")
    order = np.random.default_rng(1).permutation(len(mapped)).tolist()
    return Job(order, partial(_new, shape_of(size)), partial(_put_row, mapped), as_it_is)


def workload(kind: str, size: int, count: int, few: int) -> Workload:
    """Arrays of about ``size`` kB as "npy", "npz" or "mapped"."""
    usual = 20 if kind == "mapped" else 150
    name = kind if size == usual else f"{kind}-{size}kB" if size < 1000 else f"{kind}-10MB"
    batch = BATCHES[size]
    pipelines: dict[str, Callable[[int, Path], Pipeline[object] | Pipeline[dict[str, object]]]]
    pipelines = {"npy": _npy_pipeline, "npz": _npz_pipeline, "mapped": _mapped_pipeline}
    job = {"npy": _npy_job, "npz": _npz_job, "mapped": _mapped_job}[kind]
    return Workload(
        name,
        batch,
        count,
        few,
        partial(_make_mapped if kind == "mapped" else partial(_make_files, kind), size),
        partial(pipelines[kind], batch),
        partial(job, size),
        rows_of("x"),
    )


NPY, NPZ = workload("npy", 150, 2048, 128), workload("npz", 150, 2048, 128)
MAPPED = workload("mapped", 20, 16_384, 1_024)
OTHER_SIZES = (
    workload("npy", 20, 4_096, 512),
    workload("npy", 10_000, 24, 8),
    workload("npz", 20, 4_096, 512),
    workload("npz", 10_000, 24, 8),
    workload("mapped", 150, 2_048, 256),
    workload("mapped", 10_000, 24, 8),
)

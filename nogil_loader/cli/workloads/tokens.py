"""Windows of 1,024 token numbers from one mapped file, shuffled, to batches (256, 1024)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nogil_loader as nl
from nogil_loader.cli.workloads.base import Looped, Prepared, Workload, rows_of
from nogil_loader.cli.workloads.byhand import Job, as_it_is
from nogil_loader.pipeline import Pipeline

WINDOW = 1_024
VOCABULARY = 50_000


def make(folder: Path, count: int, seed: int) -> Prepared:
    """One npy file of ``count`` windows of uint16, drawn as words are: by 1 / rank."""
    rng = np.random.default_rng(seed)
    ranks = np.exp(rng.random(count * WINDOW) * np.log(VOCABULARY))
    np.save(folder / "tokens.npy", ranks.astype(np.uint16))
    return Prepared(folder, f"{count} windows of {WINDOW} uint16 tokens, mapped, seed {seed}")


def _pipeline(folder: Path) -> Pipeline[object]:
    windows = nl.from_arrays(folder / "tokens.npy", window=WINDOW)
    return windows.shuffle(1).batch(TOKENS.batch)


def _job(folder: Path) -> Looped:
    mapped = np.load(folder / "tokens.npy", mmap_mode="r").view(np.ndarray)
    order = np.random.default_rng(1).permutation(len(mapped) // WINDOW) * WINDOW
    return Job(order.tolist(), _new, partial(_put, mapped), as_it_is)


def _new(rows: int) -> NDArray[np.uint16]:
    return np.empty((rows, WINDOW), np.uint16)


def _put(mapped: NDArray[np.uint16], batch: NDArray[np.uint16], row: int, start: int) -> None:
    batch[row] = mapped[start : start + WINDOW]


TOKENS = Workload("tokens", 256, 65_536, 8_192, make, _pipeline, _job, rows_of(""))

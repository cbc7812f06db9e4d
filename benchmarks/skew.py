"""Ops whose times differ by a factor of hundreds: what delivering in order costs.

The times are log-normal with a mean of 1 ms: most take a third of that, one in a hundred takes
over 10 ms, the longest about 50 ms. A loader in order has to wait for the slow ones; how far it
looks ahead decides what that costs. ``ordered=False`` yields batches as they are complete.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import nogil_loader as nl
from benchmarks import peers, rivals
from benchmarks.harness import Plan, Row, Size, columns, serve, time_passes
from nogil_loader.cli._measure import Subject, this_python
from nogil_loader.cli.workloads.byhand import LOOPS, Job, as_it_is

BATCH, SAMPLES, MEAN = 32, 1_024, 0.001
PEERS = ("SPDL", "dataloader-rs", "torch")


def durations() -> list[float]:
    """Seconds of CPU time, a sample: the same in every process."""
    drawn = np.random.default_rng(7).lognormal(0, 1.5, SAMPLES)
    return [float(value) for value in drawn * (MEAN / drawn.mean())]


class Burned:
    """Takes its time on the CPU. A ``rivals.Work``."""

    batch = BATCH

    def __init__(self) -> None:
        self.seconds = durations()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return burn(self.seconds[index])

    def collate(self, results: Sequence[object]) -> object:
        """An array."""
        return np.array(results)

    def load(self, indices: Sequence[int]) -> object:
        """An array of what each gives."""
        return np.array([self[index] for index in indices])


def burn(seconds: float) -> int:
    """An op that takes so much of its thread's CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return 1


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """Two workers."""
    pythons = dict.fromkeys(("engine", "engine, unordered", *LOOPS), this_python())
    notes = peers.join(pythons, {label: label for label in PEERS})
    (column,) = columns((2,))
    rows = []
    for label, python in pythons.items():
        question = {"variant": label, "seconds": size.seconds}
        subject = Subject(f"skew, {label}", python, question, "benchmarks.skew")
        versus = () if label in LOOPS else tuple(LOOPS)
        rows.append(Row(label, {column: subject}, versus, peer=label in PEERS))
    yield Plan(
        "skew",
        f"{SAMPLES} samples of {MEAN * 1000:.0f} ms of CPU time in the mean, log-normal, batches "
        f"of {BATCH}. In brackets: against the fastest loop written by hand, which has no order.",
        (column,),
        tuple(rows),
        ("rate", "cpu"),
        tuple(notes),
    )


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one variant."""
    variant, workers = str(question["variant"]), 2
    passes: Iterator[Iterator[object]]
    if variant in rivals.LOADERS:
        passes = rivals.loader(variant)(Burned(), workers)
    elif variant in LOOPS:
        job = Job(durations(), _new, _put, as_it_is)
        passes = (job.run(variant, BATCH, workers) for _ in itertools.count())
    else:
        chain = nl.from_sequence(durations()).map(burn).batch(BATCH).workers(workers)
        passes = chain.epochs(1_000_000_000, ordered=variant == "engine")
    return time_passes(passes, float(str(question["seconds"])), len)  # type: ignore[arg-type]


def _new(rows: int) -> np.ndarray:
    return np.empty(rows, np.int64)


def _put(batch: np.ndarray, row: int, seconds: float) -> None:
    batch[row] = burn(seconds)


if __name__ == "__main__":
    serve(answer)

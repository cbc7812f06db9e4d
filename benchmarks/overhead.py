"""What the engine itself costs: ops that do nothing, so that all that is left is the loader.

Forced blocks of one show the price of a hop; adaptive blocks show what a user pays; the hop
goes to four blocking threads and back. A plain loop in one thread and the peers do the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

import nogil_loader as nl
from benchmarks import peers, rivals
from benchmarks.harness import Plan, Row, Size, columns, serve, time_passes
from nogil_loader.cli._measure import Subject, this_python

WORKERS = (1, 2, 4)
OURS = {  # label: (batch, samples of a pass)
    "adaptive, batch 256": (256, 1_000_192),
    "adaptive, batch 32": (32, 400_000),
    "hop and back, batch 256": (256, 400_128),
    "blocks of one": (256, 20_224),
    "a plain loop": (256, 1_000_192),
}
PEERS = {  # label: samples of a pass, batches of 256
    "SPDL": 1_024,
    "SPDL by batch": 102_400,
    "SPDL, GIL": 1_024,
    "dataloader-rs": 102_400,
    "dataloader-rs, GIL": 102_400,
    "torch": 102_400,
    "torchdata": 102_400,
    "Grain": 10_240,
    "tf.data": 10_240,
}


def nothing(value: object) -> object:
    """The op."""
    return value


class Nothing:
    """The same for the peers: integers to batches of int64."""

    batch = 256

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, results: Sequence[object]) -> object:
        """An array."""
        return np.array(results)

    def load(self, indices: Sequence[int]) -> object:
        """An array of what the op makes of each."""
        return np.array([self[index] for index in indices])


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """One row for each case, one column for each number of workers."""
    pythons: dict[str, tuple[str, ...]] = dict.fromkeys(OURS, this_python())
    notes = peers.join(pythons, {label: label.replace(" by batch", "") for label in PEERS})
    rows = []
    for label, python in pythons.items():
        cells = {}
        for workers in (1,) if label == "a plain loop" else (2,) if label in PEERS else WORKERS:
            (column,) = columns((workers,))
            question = {"case": label, "workers": workers, "seconds": size.seconds}
            cells[column] = Subject(
                f"overhead, {label}, {column}", python, question, "benchmarks.overhead"
            )
        versus = ("adaptive, batch 256",) if label in PEERS else ()
        rows.append(Row(label, cells, versus, peer=label in PEERS))
    yield Plan(
        "overhead",
        "Integers through one op that does nothing (three with the hop) into batches of int64. "
        "In brackets: against ours.",
        columns(WORKERS),
        tuple(rows),
        ("wall", "cpu"),
        tuple(notes),
    )


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one case."""
    case, workers = str(question["case"]), int(str(question["workers"]))
    passes: Iterable[Iterable[object]]
    if case in PEERS:
        passes = rivals.loader(case)(Nothing(PEERS[case]), workers)
    elif case == "a plain loop":
        batch, count = OURS[case]
        passes = (plain(count, batch) for _ in itertools.count())
    else:
        batch, count = OURS[case]
        chain = nl.from_sequence(range(count)).map(nothing)
        if case.startswith("hop"):
            chain = chain.map(nothing, threads=4).map(nothing)
        block = 1 if case == "blocks of one" else None
        passes = chain.batch(batch).workers(workers, block=block).epochs(1_000_000_000)
    return time_passes(passes, float(str(question["seconds"])), len)  # type: ignore[arg-type]


def plain(count: int, batch: int) -> Iterator[object]:
    """No engine: one thread, one loop."""
    for start in range(0, count, batch):
        yield np.array([nothing(value) for value in range(start, min(count, start + batch))])


if __name__ == "__main__":
    serve(answer)

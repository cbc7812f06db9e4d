"""What the engine itself costs: ops that do nothing, so that all that is left is the loader.

Forced blocks of one show the price of a hop; adaptive blocks show what a user pays; the hop
goes to four blocking threads and back. A plain loop in one thread and SPDL's core do the same.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

import nogil_loader as nl
from benchmarks.harness import Plan, Row, serve, time_passes
from nogil_loader.cli._measure import Subject, this_python

WORKERS = (1, 2, 4)
CASES = {  # label: (batch, samples of a pass)
    "blocks of one": (256, 20_000),
    "adaptive, batch 256": (256, 1_000_000),
    "adaptive, batch 32": (32, 400_000),
    "hop and back, batch 256": (256, 400_000),
    "a plain loop": (256, 1_000_000),
    "SPDL": (256, 1_000),
}


def nothing(value: object) -> object:
    """The op."""
    return value


def plans(folder: Path, quick: bool, data: Path | None) -> Iterator[Plan]:
    """One row for each case, one column for each number of workers."""
    notes = []
    labels = list(CASES)
    if importlib.util.find_spec("spdl") is None:
        labels.remove("SPDL")
        notes.append("SPDL is left out: spdl-core is not installed.")
    rows = []
    for label in labels:
        cells = {}
        for workers in WORKERS[:1] if label == "a plain loop" else WORKERS:
            column = f"{workers} worker{'s' * (workers > 1)}"
            question = {"case": label, "workers": workers, "seconds": 0.2 if quick else 1.0}
            name = f"{label}, {column}"
            cells[column] = Subject(name, this_python(), question, "benchmarks.overhead")
        rows.append(Row(label, cells, ("adaptive, batch 256",) if label == "SPDL" else ()))
    yield Plan(
        "Engine cost per sample, ops that do nothing",
        "Integers through one op (three with the hop) into batches of int64.",
        tuple(f"{workers} worker{'s' * (workers > 1)}" for workers in WORKERS),
        tuple(rows),
        ("wall", "cpu"),
        tuple(notes),
    )


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one case."""
    case, workers = str(question["case"]), int(str(question["workers"]))
    batch, count = CASES[case]
    passes: Iterable[Iterable[object]]
    if case == "a plain loop":
        passes = (plain(count, batch) for _ in itertools.count())
    elif case == "SPDL":
        passes = (spdl(count, batch, workers) for _ in itertools.count())
    else:
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


def spdl(count: int, batch: int, workers: int) -> Iterator[object]:
    """The same work by SPDL."""
    from spdl.pipeline import PipelineBuilder

    pipeline = (
        PipelineBuilder()
        .add_source(range(count))
        .pipe(nothing, concurrency=workers)
        .aggregate(batch)
        .pipe(np.array)
        .add_sink(2)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


if __name__ == "__main__":
    serve(answer)

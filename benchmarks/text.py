"""JSON lines through a pure-Python transform into batches of 256: where a GIL hurts.

The transform, ``summarise``, is counting words in the interpreter. Beside the pipeline
the loops written by hand, SPDL, and torch's DataLoader with as many worker processes.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.harness import Plan, serve, time_passes
from benchmarks.pictures import compare
from nogil_loader.cli.workloads import passes
from nogil_loader.cli.workloads.text import TEXT, lines_of, make, summarise

BATCH = TEXT.batch


@contextmanager
def plan(quick: bool, data: Path | None = None) -> Iterator[Plan]:
    """The pipeline, three loops by hand, SPDL and torch; 1, 2 and 4 workers."""
    with tempfile.TemporaryDirectory(prefix="nogil-loader-benchmark-") as name:
        prepared = make(Path(name), 2_000 if quick else 10_000, 0)
        yield compare("text", prepared, ("SPDL", "torch"), quick)


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one variant."""
    variant, workers = str(question["variant"]), int(str(question["workers"]))
    folder, seconds = Path(str(question["folder"])), float(str(question["seconds"]))
    turns: Iterable[Iterator[object]]
    if variant == "SPDL":
        turns = (spdl(folder, workers) for _ in itertools.count())
    elif variant == "torch":
        turns = torch(folder, workers)
    else:
        turns = passes(TEXT, variant, folder, workers)
    return time_passes(turns, seconds, TEXT.rows)


def columns(rows: Sequence[dict[str, float]]) -> dict[str, object]:
    """A batch: one array for each of the numbers."""
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def spdl(folder: Path, workers: int) -> Iterator[object]:
    """The same work by SPDL's engine."""
    from spdl.pipeline import PipelineBuilder

    pipeline = (
        PipelineBuilder()
        .add_source(lines_of(folder))
        .pipe(summarise, concurrency=workers)
        .aggregate(BATCH)
        .pipe(columns)
        .add_sink(2)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


def torch(folder: Path, workers: int) -> Iterator[Iterator[object]]:
    """The same work by torch's DataLoader, its workers kept from pass to pass."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        Records(lines_of(folder)),
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=columns,
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    while True:
        yield iter(loader)


class Records:
    """torch's kind of data set."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, float]:
        return summarise(self.lines[index])


if __name__ == "__main__":
    serve(answer)

"""JPEG files to batches of 32 pictures of 224 x 224, beside loops written by hand and peers.

All decode with Pillow, resize with the same filter, and copy into the rows of a batch; what
differs is who feeds the threads. torch's DataLoader does it in as many worker processes.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.harness import Plan, Row, serve, time_passes
from nogil_loader.cli._measure import Subject, this_python
from nogil_loader.cli.workloads import base, byhand, passes
from nogil_loader.cli.workloads.pictures import PICTURES, SIZE, job_of, make, take

WORKERS = (1, 2, 4)
BATCH = PICTURES.batch


@contextmanager
def plan(quick: bool, data: Path | None = None) -> Iterator[Plan]:
    """The pipeline, three loops by hand, SPDL and torch; 1, 2 and 4 workers."""
    with tempfile.TemporaryDirectory(prefix="nogil-loader-benchmark-") as name:
        folder, count = Path(name), 64 if quick else 256
        if data is None:
            prepared = make(folder, count, 0)
        else:
            prepared = take(folder, data, count, lambda text: None)
        yield compare("pictures", prepared, ("SPDL", "torch"), quick)


def compare(name: str, prepared: base.Prepared, rivals: tuple[str, ...], quick: bool) -> Plan:
    """The pipeline, the loops written by hand and rivals, on one workload's data."""
    notes, rows = [], []
    loops = tuple(byhand.LOOPS)
    pythons = dict.fromkeys(("engine", *loops), this_python())
    for rival in rivals:
        try:
            pythons[rival] = (peers.environment(rival),)
        except peers.LeftOut as reason:
            notes.append(str(reason))
    for variant, python in pythons.items():
        cells = {}
        for workers in WORKERS:
            column = f"{workers} worker{'s' * (workers > 1)}"
            question = {
                "variant": variant,
                "folder": str(prepared.folder),
                "workers": workers,
                "seconds": 0.3 if quick else 1.5,
            }
            subject = f"{variant}, {column}"
            cells[column] = Subject(subject, python, question, f"benchmarks.{name}")
        rows.append(Row(variant, cells, () if variant in loops else loops))
    return Plan(
        name.capitalize(),
        f"{prepared.about}. In brackets: against the fastest loop written by hand.",
        tuple(f"{workers} worker{'s' * (workers > 1)}" for workers in WORKERS),
        tuple(rows),
        ("rate", "cpu", "peak", "first"),
        tuple(notes),
    )


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
        turns = passes(PICTURES, variant, folder, workers)
    return time_passes(turns, seconds, PICTURES.rows)


def decode(path: str) -> NDArray[np.uint8]:
    """One picture, as the loop by hand decodes it."""
    batch = np.empty((1, *SIZE, 3), np.uint8)
    _JOB.put(batch, 0, path)
    picture: NDArray[np.uint8] = batch[0]
    return picture


_JOB = job_of(())


def spdl(folder: Path, workers: int) -> Iterator[object]:
    """The same work by SPDL's engine."""
    from spdl.pipeline import PipelineBuilder

    pipeline = (
        PipelineBuilder()
        .add_source(base.files_in(folder))
        .pipe(decode, concurrency=workers)
        .aggregate(BATCH)
        .pipe(np.stack)
        .add_sink(2)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


def torch(folder: Path, workers: int) -> Iterator[Iterator[object]]:
    """The same work by torch's DataLoader, its workers kept from pass to pass."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        Pictures(base.files_in(folder)),
        batch_size=BATCH,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    while True:
        yield iter(loader)


class Pictures:
    """torch's kind of data set."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return decode(self.paths[index])


if __name__ == "__main__":
    serve(answer)

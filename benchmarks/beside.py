"""One workload of ``nogil-loader bench``: the pipeline, loops written by hand, and peers.

All of them call the same function on the same files and make the same batches, with as many
threads, or worker processes; what differs is who feeds them. The question of a child is
``{"workload", "variant", "folder", "workers", "seconds"}``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.harness import Plan, Row, serve, time_passes
from nogil_loader.cli._measure import Subject, this_python
from nogil_loader.cli.workloads import WORKLOADS, passes
from nogil_loader.cli.workloads.base import Prepared, Workload
from nogil_loader.cli.workloads.byhand import LOOPS, Job

WORKERS = (1, 2, 4)
RIVALS = ("SPDL", "SPDL, GIL", "torch")


def plan(
    name: str,
    folder: Path,
    quick: bool,
    *,
    prepared: Prepared | None = None,
    rivals: Sequence[str] = RIVALS,
) -> Plan:
    """A plan for the workload of that name; its data is made in ``folder`` unless given."""
    workload, notes = WORKLOADS[name], []
    folder.mkdir(exist_ok=True)
    if prepared is None:
        prepared = workload.prepare(folder, workload.few if quick else workload.count, 0)
    pythons = dict.fromkeys(("engine", *LOOPS), this_python())
    for rival in rivals:
        try:
            pythons[rival] = (peers.environment(rival),)
        except peers.LeftOut as reason:
            notes.append(str(reason))
    rows = []
    for variant, python in pythons.items():
        cells = {}
        for workers in WORKERS:
            column = f"{workers} worker{'s' * (workers > 1)}"
            question = {
                "workload": name,
                "variant": variant,
                "folder": str(prepared.folder),
                "workers": workers,
                "seconds": 0.3 if quick else 1.5,
            }
            subject = f"{name}, {variant}, {column}"
            cells[column] = Subject(subject, python, question, "benchmarks.beside")
        rows.append(Row(variant, cells, () if variant in LOOPS else tuple(LOOPS)))
    return Plan(
        name,
        f"{prepared.about}. In brackets: against the fastest loop written by hand.",
        tuple(f"{workers} worker{'s' * (workers > 1)}" for workers in WORKERS),
        tuple(rows),
        ("rate", "cpu", "peak", "first"),
        tuple(notes),
    )


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one variant of one workload."""
    workload, variant = WORKLOADS[str(question["workload"])], str(question["variant"])
    folder, workers = Path(str(question["folder"])), int(str(question["workers"]))
    turns: Iterable[Iterator[object]]
    if variant.startswith("SPDL"):
        work = Work(workload, folder)
        turns = (spdl(work, workers) for _ in itertools.count())
    elif variant == "torch":
        turns = torch(Work(workload, folder), workers)
    else:
        turns = passes(workload, variant, folder, workers)
    return time_passes(turns, float(str(question["seconds"])), workload.rows)


class Work:
    """A workload's job, sample by sample: what torch calls a data set."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        job = workload.by_hand(folder)
        assert isinstance(job, Job)
        self.job = job
        self.batch = workload.batch

    def __len__(self) -> int:
        return len(self.job.samples)

    def __getitem__(self, index: int) -> object:
        """The result for one sample, made as the loop by hand makes it."""
        batch = self.job.new(1)
        self.job.put(batch, 0, self.job.samples[index])
        return batch[0]

    def collate(self, results: Sequence[object]) -> object:
        """A batch of results."""
        stacked = isinstance(results[0], np.ndarray)
        return self.job.seal(np.stack(results) if stacked else results)


def spdl(work: Work, workers: int) -> Iterator[object]:
    """One pass by SPDL's engine."""
    from spdl.pipeline import PipelineBuilder

    load: Callable[[int], object] = work.__getitem__
    pipeline = (
        PipelineBuilder()
        .add_source(range(len(work)))
        .pipe(load, concurrency=workers)
        .aggregate(work.batch)
        .pipe(work.collate)
        .add_sink(2)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


def torch(work: Work, workers: int) -> Iterator[Iterator[object]]:
    """Passes by torch's DataLoader, whose worker processes stay from one to the next."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        work,
        batch_size=work.batch,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=work.collate,
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    while True:
        yield iter(loader)


if __name__ == "__main__":
    serve(answer)

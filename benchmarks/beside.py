"""One workload of ``nogil-loader bench``: the pipeline, loops written by hand, and peers.

All of them call the same function on the same files and make the same batches, with as many
threads, or worker processes; what differs is who feeds them. The question of a child is
``{"workload", "variant", "folder", "workers", "seconds", "of"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks import peers, rivals
from benchmarks.harness import Plan, Row, Size, columns, serve, time_passes
from nogil_loader import runtime
from nogil_loader.cli._measure import Subject, reference_python, this_python
from nogil_loader.cli.workloads import WORKLOADS, passes
from nogil_loader.cli.workloads.base import Prepared
from nogil_loader.cli.workloads.byhand import LOOPS, Job

WORKERS = (1, 2, 4)
SHOWN = ("rate", "cpu", "peak", "first")


def plan(
    name: str,
    folder: Path,
    size: Size,
    *,
    prepared: Prepared | None = None,
    beside: Sequence[str] = (),
    switched: bool = False,
    workers: Sequence[int] = (2,),
    theirs: Sequence[int] = (2,),
    show: Sequence[str] = SHOWN,
    title: str | None = None,
) -> Plan:
    """A plan for the workload of that name; its data is made in ``folder`` unless given.

    ``beside`` names peers; ``switched`` adds the pipeline with the GIL on, in this interpreter
    and in the reference if there is one. The engine and the loops written by hand are measured
    with ``workers``, the others with ``theirs``. ``title`` names the plan, not the workload.
    """
    workload, notes = WORKLOADS[name], []
    folder.mkdir(exist_ok=True)
    if prepared is None:
        prepared = workload.prepare(folder, workload.few if size.quick else workload.count, 0)
    pythons = {"engine": this_python("-X", "gil=0") if runtime.free_threaded() else this_python()}
    if switched and runtime.free_threaded():
        pythons["engine, GIL on"] = this_python("-X", "gil=1")
        if reference := reference_python():
            pythons["engine, reference"] = (reference,)
        else:
            notes.append("No interpreter of the same build with a GIL: ci/reference makes one.")
    pythons.update(dict.fromkeys(LOOPS, pythons["engine"]))
    notes += peers.join(pythons, {rival: peer_of(rival) for rival in beside})
    if left := set(rivals.LOADERS) & set(pythons):
        kinds = (
            f"{rival}: {peers.PEERS[peer_of(rival)].kind}" for rival in pythons if rival in left
        )
        notes.insert(0, "; ".join(kinds) + ".")
    with closing((work := Work(name, prepared.folder)).job):
        of = len(work)
    rows = []
    for variant, python in pythons.items():
        ours = variant == "engine" or variant in LOOPS
        cells = {}
        for count in workers if ours else theirs:
            question: dict[str, object] = {
                "workload": name,
                "variant": variant,
                "folder": str(prepared.folder),
                "workers": count,
                "seconds": size.seconds,
                "of": of,
            }
            (column,) = columns((count,))
            subject = f"{title or name}, {variant}, {column}"
            cells[column] = Subject(subject, python, question, "benchmarks.beside")
        versus = () if variant in LOOPS else tuple(LOOPS)
        peer, loose = variant in rivals.LOADERS, variant.startswith("SPDL")
        rows.append(Row(variant, cells, versus, peer, loose))
    return Plan(
        title or name,
        f"{prepared.about}; batches of {workload.batch}. "
        "In brackets: against the fastest loop written by hand.",
        columns(workers),
        tuple(rows),
        tuple(show),
        tuple(notes),
    )


def peer_of(rival: str) -> str:
    """Whose environment a row needs.

    >>> peer_of("SPDL by batch, GIL")
    'SPDL, GIL'
    """
    return rival.replace(" by batch", "")


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one variant of one workload."""
    name, variant = str(question["workload"]), str(question["variant"])
    folder, workers = Path(str(question["folder"])), int(str(question["workers"]))
    turns: Iterable[Iterator[object]]
    if variant in rivals.LOADERS:
        turns = rivals.loader(variant)(Work(name, folder), workers)
    else:
        turns = passes(WORKLOADS[name], variant.partition(",")[0], folder, workers)
    seconds, of = float(str(question["seconds"])), int(str(question["of"]))
    return time_passes(turns, seconds, WORKLOADS[name].rows, of)


class Work:
    """A workload's job as the peers take it: see ``rivals.Work``."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.batch = WORKLOADS[name].batch

    def __reduce__(self) -> tuple[Callable[[str, Path], Work], tuple[str, Path]]:
        return Work, (self.name, self.folder)  # every process opens the files for itself

    @cached_property
    def job(self) -> Job[object, object]:
        """The job of the loops written by hand."""
        job = WORKLOADS[self.name].by_hand(self.folder)
        assert isinstance(job, Job)
        return job

    @property
    def samples(self) -> Sequence[object]:
        """What the job is given: paths, most often."""
        return self.job.samples

    def __len__(self) -> int:
        return len(self.job.samples)

    def __getitem__(self, index: int) -> object:
        """The result for one sample, made as the loop by hand makes it."""
        batch = self.job.new(1)
        self.job.put(batch, 0, self.job.samples[index])
        return batch[0]  # type: ignore[index]

    def load(self, indices: Sequence[int]) -> object:
        """A batch of samples, made as the loop by hand makes it."""
        job = self.job
        batch, put, samples = job.new(len(indices)), job.put, job.samples
        for row, index in enumerate(indices):
            put(batch, row, samples[index])
        return job.seal(batch)

    def collate(self, results: Sequence[object]) -> object:
        """A batch of results."""
        stacked = isinstance(results[0], np.ndarray)
        return self.job.seal(np.stack(results) if stacked else results)  # type: ignore[arg-type]


if __name__ == "__main__":
    from benchmarks import beside

    serve(beside.answer)  # whose classes are not of __main__: they pickle, and plants find them

"""How long a consumer waits where nothing flows yet, or no more.

The first batch of a run whose first 32 samples take 20 ms of work; from the last batch of an
epoch to the first of the next; and leaving a run in the middle. Each op burns 0.625 ms of CPU
time in the interpreter. ``epochs()`` keeps threads warm; so do torch's persistent workers; for
SPDL a pass is a pipeline of its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

import nogil_loader as nl
from benchmarks import peers, rivals
from benchmarks.harness import Plan, Row, Size, serve
from nogil_loader.cli._measure import Subject, this_python
from nogil_loader.cli._workload import peak_memory

BATCH, SAMPLES, WORKERS = 32, 256, 2
WORK = 0.020 / BATCH
PEERS = ("SPDL", "torch", "torchdata", "dataloader-rs")


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """One row for each loader, two workers."""
    pythons = {"engine": this_python()}
    notes = peers.join(pythons, {rival: rival for rival in PEERS})
    rows = []
    for variant, python in pythons.items():
        question = {"variant": variant, "turns": 3 if size.quick else 10}
        subject = Subject(f"turnaround, {variant}", python, question, "benchmarks.turnaround")
        versus = () if variant == "engine" else ("engine",)
        rows.append(Row(variant, {"2 workers": subject}, versus, peer=variant != "engine"))
    yield Plan(
        "turnaround",
        "32 samples a batch, 0.625 ms of work a sample. In brackets: against the engine. Grain, "
        "tf.data and SPDL on an endless stream have no turn, nor has ours with repeat(): they "
        "are not here.",
        ("2 workers",),
        tuple(rows),
        ("first", "turn", "leave"),
        tuple(notes),
    )


def burn(index: int) -> int:
    """An op that takes 0.625 ms of its thread's CPU time."""
    end = time.thread_time() + WORK
    while time.thread_time() < end:
        pass
    return index


def engine() -> rivals.Passes:
    """Ours."""
    chain = nl.from_sequence(range(SAMPLES)).map(burn).batch(BATCH).workers(WORKERS)
    yield from chain.epochs(1_000_000_000)


def spdl() -> rivals.Passes:
    """SPDL's: a pipeline for each pass."""
    from spdl.pipeline import PipelineBuilder

    def one() -> Iterator[object]:
        builder = PipelineBuilder[int, object]().add_source(range(SAMPLES))
        builder = builder.pipe(burn, concurrency=WORKERS).aggregate(BATCH).add_sink(2)
        pipeline = builder.build(num_threads=WORKERS)
        with pipeline.auto_stop():
            yield from pipeline

    for _ in itertools.count():
        yield one()


class Burned:
    """What the peers take: see ``rivals.Work``."""

    batch = BATCH

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return burn(index)

    def collate(self, results: Sequence[object]) -> object:
        """A list, as it is."""
        return results

    def load(self, indices: Sequence[int]) -> object:
        """The results of these."""
        return [burn(index) for index in indices]


OURS: dict[str, Callable[[], rivals.Passes]] = {"engine": engine, "SPDL": spdl}


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one loader: the first batch once, turns several times, leaving once."""
    variant, waits = str(question["variant"]), []
    load = None if variant == "engine" else rivals.loader(variant)
    turns = OURS[variant]() if variant in OURS or load is None else load(Burned(), WORKERS)
    began = time.perf_counter()
    batches = iter(next(turns))
    next(batches)
    first = time.perf_counter() - began
    for _ in range(int(str(question["turns"]))):
        for _batch in batches:
            ended = time.perf_counter()
        batches = iter(next(turns))
        next(batches)
        waits.append(time.perf_counter() - ended)
    left = time.perf_counter()
    with closing(turns):
        del batches
    left = time.perf_counter() - left
    stages = {"turn": median(waits), "leave": left}
    passed = {"samples": 1, "wall": 1.0, "cpu": 0.0}
    return {**passed, "first": first, "peak": peak_memory(), "stages": stages}


if __name__ == "__main__":
    serve(answer)

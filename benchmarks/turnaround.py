"""How long a consumer waits where nothing flows yet, or no more.

The first batch of a run whose first 32 samples take 20 ms of work; from the last batch of an
epoch to the first of the next; and leaving a run in the middle. Each op burns 0.625 ms of CPU
time in the interpreter. ``epochs()`` keeps threads warm; so do torch's persistent workers; for
SPDL a pass is a pipeline of its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import nogil_loader as nl
from benchmarks import peers
from benchmarks.harness import Plan, Row, serve
from nogil_loader.cli._measure import Subject, this_python
from nogil_loader.cli._workload import peak_memory

BATCH, SAMPLES, WORKERS = 32, 256, 2
WORK = 0.020 / BATCH
Passes = Callable[[], Generator[Iterator[object], None, None]]


def plans(folder: Path, quick: bool, data: Path | None) -> Iterator[Plan]:
    """One row for each loader, two workers."""
    notes, pythons = [], {"engine": this_python()}
    for rival in ("SPDL", "torch"):
        try:
            pythons[rival] = (peers.environment(rival),)
        except peers.LeftOut as reason:
            notes.append(str(reason))
    rows = []
    for variant, python in pythons.items():
        question = {"variant": variant, "turns": 3 if quick else 10}
        subject = Subject(f"turnaround, {variant}", python, question, "benchmarks.turnaround")
        rows.append(
            Row(variant, {"2 workers": subject}, () if variant == "engine" else ("engine",))
        )
    yield Plan(
        "turnaround",
        "32 samples a batch, 0.625 ms of work a sample. In brackets: against the engine.",
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


def engine() -> Generator[Iterator[object], None, None]:
    """Ours."""
    chain = nl.from_sequence(range(SAMPLES)).map(burn).batch(BATCH).workers(WORKERS)
    yield from chain.epochs(1_000_000_000)


def spdl() -> Generator[Iterator[object], None, None]:
    """SPDL's: a pipeline for each pass."""
    from spdl.pipeline import PipelineBuilder

    def one() -> Iterator[object]:
        builder = PipelineBuilder().add_source(range(SAMPLES)).pipe(burn, concurrency=WORKERS)
        pipeline = builder.aggregate(BATCH).add_sink(2).build(num_threads=WORKERS)
        with pipeline.auto_stop():
            yield from pipeline

    for _ in itertools.count():
        yield one()


def torch() -> Generator[Iterator[object], None, None]:
    """torch's, with workers that stay."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        Burned(), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True, collate_fn=list
    )
    while True:
        yield iter(loader)


class Burned:
    """torch's kind of data set."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return burn(index)


VARIANTS: dict[str, Passes] = {"engine": engine, "SPDL": spdl, "torch": torch}


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one loader: the first batch once, turns several times, leaving once."""
    turns, waits = VARIANTS[str(question["variant"])](), []
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

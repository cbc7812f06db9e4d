"""What it costs to go on where a run stopped: asking for the state, and the first batch after.

Integers, shuffled, through an op that does nothing, in batches of 8: so that what is left is
finding the place. Two workers, after 100 batches and after 20,000. The first batch is timed
from a pipeline and a state to the batch; the state is the median of a hundred.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TypeAlias

import nogil_loader as nl
from benchmarks import peers
from benchmarks.harness import Plan, Row, Size, serve
from nogil_loader.cli._measure import Subject, this_python
from nogil_loader.cli._workload import peak_memory
from nogil_loader.position.parse import JSON

BATCH, SAMPLES = 8, 400_000
AFTER = (100, 20_000)
State: TypeAlias = "dict[str, JSON]"
"""Each loader's own."""
Loop: TypeAlias = "Iterator[object]"
MODULES = {
    "StatefulDataLoader": ("torch", "torchdata.stateful_dataloader"),
    "Grain": ("grain", "absl.flags"),
}
ENVIRONMENTS = {"StatefulDataLoader": "torchdata", "Grain": "Grain"}


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """A column for each place."""
    pythons = {"engine": this_python()}
    notes = peers.join(pythons, ENVIRONMENTS)
    rows = []
    for label, python in pythons.items():
        cells = {}
        for after in AFTER:
            question = {"variant": label, "after": after // 10 if size.quick else after}
            name = f"resume, {label}, after {after}"
            cells[_column(after)] = Subject(name, python, question, "benchmarks.resume")
        rows.append(Row(label, cells, ("engine",) if label != "engine" else (), label != "engine"))
    yield Plan(
        "resume",
        "In brackets: against the engine. StatefulDataLoader is torchdata's, over a data set "
        "with random access, with two worker processes; Grain has two too.",
        tuple(map(_column, AFTER)),
        tuple(rows),
        ("resumed", "first", "asked", "bytes"),
        tuple(notes),
    )


def _column(after: int) -> str:
    return f"after {after:,} batches"


def nothing(value: object) -> object:
    """The op."""
    return value


class Nothing:
    """The same as a data set."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def engine(state: State | None) -> tuple[Loop, Callable[[], State]]:
    """Ours: a run, and how to ask it for its state."""
    chain = nl.from_sequence(range(SAMPLES)).shuffle(1).map(nothing).batch(BATCH).workers(2)
    run = chain.run(resume=state)
    return run, run.state


def stateful(state: State | None) -> tuple[Loop, Callable[[], State]]:
    """torchdata's StatefulDataLoader."""
    from torch import Generator
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(
        Nothing(),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        collate_fn=list,
        generator=Generator().manual_seed(1),
    )
    if state is not None:
        loader.load_state_dict(state)
    return iter(loader), loader.state_dict


def grain(state: State | None) -> tuple[Loop, Callable[[], State]]:
    """Grain's data set iterator."""
    import grain as g
    from absl import flags

    flags.FLAGS(["benchmark"])
    data = g.MapDataset.source(Nothing()).shuffle(seed=1).map(nothing).batch(BATCH, batch_fn=list)
    stream = data.to_iter_dataset(g.ReadOptions(num_threads=1, prefetch_buffer_size=2))
    batches = iter(stream.mp_prefetch(g.MultiprocessingOptions(num_workers=2)))
    if state is not None:
        batches.set_state(state)
    return batches, batches.get_state


VARIANTS = {"engine": engine, "StatefulDataLoader": stateful, "Grain": grain}


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one loader: go there, ask, go on, and compare the batch with the one expected."""
    variant = str(question["variant"])
    make = VARIANTS[variant]
    for module in MODULES.get(variant, ()):  # nobody's first batch waits for an import
        importlib.import_module(module)
    began = time.perf_counter()
    batches, state = make(None)
    next(batches)
    first = time.perf_counter() - began
    for _ in range(int(str(question["after"])) - 1):
        next(batches)
    asked = []
    for _ in range(100):
        begun = time.perf_counter()
        kept = state()
        asked.append(time.perf_counter() - begun)
    expected = list(next(batches))  # type: ignore[call-overload]
    del batches, state
    began = time.perf_counter()
    again, _ = make(kept)
    found = list(next(again))  # type: ignore[call-overload]
    resumed = time.perf_counter() - began
    if [int(value) for value in found] != [int(value) for value in expected]:
        raise AssertionError(f"resumed with {found}, not {expected}")
    size = len(json.dumps(kept, default=repr))
    stages = {"resumed": resumed, "asked": median(asked), "bytes": float(size)}
    passed = {"samples": 1, "wall": 1.0, "cpu": 0.0}
    return {**passed, "first": first, "peak": peak_memory(), "stages": stages}


if __name__ == "__main__":
    serve(answer)

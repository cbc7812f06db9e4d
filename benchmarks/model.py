"""How the engine scales: a model of its cost, fitted where there are one or two cores.

An op that does nothing is run in forced blocks of 1, 4, 16, 64 and 256 samples, with one worker
and with as many as there are cores, and once more with a hop to blocking threads. The wall time
of a sample is taken as

    T(w, b) = (sample + block / b) / w + (serial sample + serial block / b)

where w workers share the first part and the second is done by one at a time: what happens under
the run's lock, and in the consumer. Four numbers, fitted by least squares on relative errors
(none negative), give

- the cost of a hop: ``block + serial block``, paid once a block;
- the serial fraction of a sample that takes t seconds in blocks of about a millisecond,
  ``serial / (t + all)``, and by Amdahl's law the most that any number of cores can give.

The fit uses one and two workers only. With more cores the same script measures there too, and
the table says how far the prediction was off.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import nogil_loader as nl
from benchmarks.harness import Plan, Row, Size, columns, serve, time_passes
from nogil_loader import runtime
from nogil_loader.cli._measure import Measurement, Subject, this_python
from nogil_loader.cli._results import duration

BLOCKS = (1, 4, 16, 64, 256)
BLOCK_SECONDS = 0.001
"""What the engine makes its blocks last."""
OPS = (10e-6, 100e-6, 1e-3)
CORES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Model:
    """Seconds: for each sample and for each block, shared by the workers or one at a time."""

    sample: float
    block: float
    serial_sample: float
    serial_block: float

    def wall(self, workers: float, block: float, op: float = 0.0) -> float:
        """Seconds of a sample whose op takes ``op``."""
        shared = op + self.sample + self.block / block
        return shared / workers + self.serial_sample + self.serial_block / block

    def serial(self, op: float) -> float:
        """The share of a sample's time that only one thread at a time can do."""
        block = self.blocks_of(op)
        return (self.serial_sample + self.serial_block / block) / self.wall(1, block, op)

    def speedup(self, workers: int, op: float) -> float:
        """Against one worker."""
        block = self.blocks_of(op)
        return self.wall(1, block, op) / self.wall(workers, block, op)

    @staticmethod
    def blocks_of(op: float) -> float:
        """The samples of a block that lasts a millisecond."""
        return max(1.0, BLOCK_SECONDS / op)


def fit(points: Mapping[tuple[int, int], float]) -> Model:
    """The model for wall seconds by (workers, samples of a block).

    >>> true = Model(1e-6, 5e-6, 2e-7, 3e-6)
    >>> points = {(w, b): true.wall(w, b) for w in (1, 2) for b in (1, 16, 256)}
    >>> found = fit(points)
    >>> round(found.block * 1e6, 3), round(found.serial_block * 1e6, 3)
    (5.0, 3.0)
    """
    places = np.array(list(points), float)
    wall = np.array(list(points.values()))
    workers, block = places.T
    terms = np.stack([1 / workers, 1 / (workers * block), np.ones_like(block), 1 / block], 1)
    terms /= wall[:, None]  # so that every point counts by its relative error
    best, least = np.zeros(4), np.inf
    for kept in itertools.product((False, True), repeat=4):  # the best with none below zero
        chosen = np.flatnonzero(kept)
        solved = np.linalg.lstsq(terms[:, chosen], np.ones(len(wall)), rcond=None)[0]
        error = float(np.sum((terms[:, chosen] @ solved - 1) ** 2))
        if (solved >= 0).all() and error < least:
            best, least = np.zeros(4), error
            best[chosen] = solved
    return Model(*(float(value) for value in best))


def counts() -> tuple[int, ...]:
    """1, 2, and what more this machine has."""
    cores = runtime.usable_cores()
    return tuple(sorted({1, 2, *(count for count in CORES if count <= cores)}))


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """A row for each size of a block, and those with a hop."""
    rows = []
    for label in (*map(_label, BLOCKS), *(f"{_label(block)}, a hop" for block in (1, 16))):
        cells = {}
        for workers in counts():
            (column,) = columns((workers,))
            question = {"case": label, "workers": workers, "seconds": size.seconds / 2}
            name = f"model, {label}, {column}"
            cells[column] = Subject(name, this_python(), question, "benchmarks.model")
        rows.append(Row(label, cells))
    about = "Integers through one op that does nothing, blocks of a fixed size, batches of 256."
    yield Plan("model", about, columns(counts()), tuple(rows), ("wall", "cpu"))


def _label(block: int) -> str:
    return f"blocks of {block}"


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one case."""
    case, workers = str(question["case"]), int(str(question["workers"]))
    block = int(case.partition(",")[0].rpartition(" ")[2])
    chain = nl.from_sequence(range(5_120 * min(block, 16))).map(nothing)
    if case.endswith("a hop"):
        chain = chain.map(nothing, threads=workers).map(nothing)
    passes = chain.batch(256).workers(workers, block=block).epochs(1_000_000_000)
    return time_passes(passes, float(str(question["seconds"])), len)  # type: ignore[arg-type]


def nothing(value: object) -> object:
    """The op."""
    return value


def describe(plan: Plan, found: Mapping[str, Sequence[Measurement]]) -> str:
    """The fit of a measured plan, in Markdown: the parameters, the errors, the predictions."""
    points = {}
    for row in plan.rows:
        for column, subject in row.cells.items():
            if not row.label.endswith("a hop"):
                place = int(column.split()[0]), int(row.label.rpartition(" ")[2])
                points[place] = median(one.wall / one.samples for one in found[subject.name])
    model = fit({place: wall for place, wall in points.items() if place[0] <= 2})
    errors = {place: model.wall(*place) / wall - 1 for place, wall in points.items()}
    fitted = max(abs(error) for place, error in errors.items() if place[0] <= 2)
    lines = [
        f"Fitted: {duration(model.sample)} a sample and {duration(model.block)} a block that "
        f"workers share, {duration(model.serial_sample)} and {duration(model.serial_block)} that "
        f"one does at a time; a hop is {duration(model.block + model.serial_block)}. The fit is "
        f"off by at most {fitted:.0%}."
    ]
    beyond = [place for place in errors if place[0] > 2]
    lines += [
        f"With {count} workers the prediction is off by "
        f"{max(abs(errors[place]) for place in beyond if place[0] == count):.0%}."
        for count in sorted({place[0] for place in beyond})
    ]
    if not beyond:
        lines.append("There are no more cores here to check it on.")
    lines += [
        "",
        "| the op takes | serial share | " + " | ".join(f"{c} cores" for c in CORES) + " |",
    ]
    lines.append("| --- " * (len(CORES) + 2) + "|")
    for op in OPS:
        speedups = " | ".join(f"x{model.speedup(count, op):.1f}" for count in CORES)
        lines.append(f"| {duration(op)} | {model.serial(op):.2%} | {speedups} |")
    return "\n".join(lines)


if __name__ == "__main__":
    serve(answer)

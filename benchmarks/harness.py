"""How every benchmark here measures.

Guarantees
- Each measurement is a process of its own; subjects take turns, forwards and backwards
  (A B C, C B A, …); what is reported are medians, with half the range behind ±.
- CPU time and memory are those of all processes of a subject: a loader whose workers are
  processes pays for them. Memory is proportional (PSS), so that shared pages count once.
- A ratio is the median over neighbours, and refused where its ceiling varied by more than 15 %.

A benchmark is a module of this package with ``plans(folder, size, data)``, which makes its
data in the folder and yields a ``Plan`` after the other. What measures one subject, in a child
process, is ``answer(question)`` of the subject's module, called by ``serve``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from nogil_loader.cli._measure import (
    UNSTEADY,
    ChildFailed,
    Measurement,
    Subject,
    ratio,
    run_child,
    spread,
    take_turns,
)
from nogil_loader.cli._results import duration
from nogil_loader.cli._workload import peak_memory


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: the least seconds of a measurement; ``quick`` also takes less data."""

    seconds: float = 1.0
    quick: bool = False


FULL, QUICK = Size(), Size(0.3, True)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report: a subject for each column, and the rows to compare it with.

    Of several the fastest, in each column, is the ceiling: what is slower is no ceiling.
    """

    label: str
    cells: Mapping[str, Subject]
    versus: tuple[str, ...] = ()
    peer: bool = False
    """Someone else's work, which may fail: then it is left out, and the notes say why."""
    loose: bool = False
    """Results may differ from the others': it brings decoders of its own, or delivers samples
    as they complete, so that one of the next pass may come before the last of this."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a benchmark measures and how its numbers are to be read.

    ``show`` picks numbers by their names in ``NUMBERS``; ``notes`` say what was left out.
    """

    name: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    show: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def subjects(self) -> list[Subject]:
        """All that is to be measured, in the order of the report."""
        return [subject for row in self.rows for subject in row.cells.values()]


def columns(workers: Iterable[int]) -> tuple[str, ...]:
    """A column for each number of workers.

    >>> columns((1, 2))
    ('1 worker', '2 workers')
    """
    return tuple(f"{count} worker{'s' * (count > 1)}" for count in workers)


NUMBERS: dict[str, tuple[str, Callable[[Measurement], float], Callable[[float], str]]] = {
    "wall": ("wall/sample", lambda m: m.wall / m.samples, duration),
    "cpu": ("CPU/sample", lambda m: m.cost, duration),
    "rate": ("samples/s", lambda m: m.rate, lambda value: f"{value:,.0f}"),
    "peak": ("peak MB", lambda m: m.peak / 1e6, lambda value: f"{value:.0f}"),
    "first": ("first batch", lambda m: m.first, duration),
    "turn": ("last batch to first of next epoch", lambda m: m.stages["turn"], duration),
    "leave": ("leaving in the middle", lambda m: m.stages["leave"], duration),
    "resumed": ("first batch, resumed", lambda m: m.stages["resumed"], duration),
    "asked": ("asking for the state", lambda m: m.stages["asked"], duration),
    "bytes": ("bytes of state", lambda m: m.stages["bytes"], lambda value: f"{value:,.0f}"),
}


def run(
    plan: Plan,
    rounds: int,
    tell: Callable[[int, int, Subject], None],
    plant: str | None = None,
) -> tuple[Plan, dict[str, list[Measurement]]]:
    """Measure everything, ``rounds`` times in turn; the plan comes back without the peers that
    failed, or whose results are not those of the others. ``tell(done, of, next)`` is called
    before each measurement. ``plant`` is a defect of ``plants``, to see it caught."""
    theirs = {one.name: row.label for row in plan.rows if row.peer for one in row.cells.values()}
    failed: dict[str, str] = {}

    def attempt(subject: Subject) -> Measurement:
        label = theirs.get(subject.name)
        if label in failed:
            return NOTHING
        try:
            return measure(subject, plant)
        except ChildFailed as error:
            if label is None:
                raise
            failed[label] = str(error)
            return NOTHING

    found = take_turns(plan.subjects(), rounds, tell, attempt)
    failed |= {label: why for label, why in _other_results(plan, found) if label not in failed}
    notes = tuple(f"{label} is left out, it failed: {why}" for label, why in failed.items())
    rows = tuple(row for row in plan.rows if row.label not in failed)
    plan = replace(plan, rows=rows, notes=plan.notes + notes)
    return plan, {one.name: found[one.name] for one in plan.subjects()}


NOTHING = Measurement(0, 0.0, 0.0, 0.0, 0)


def _other_results(
    plan: Plan, found: Mapping[str, Sequence[Measurement]]
) -> Iterator[tuple[str, str]]:
    """The peers that delivered something else than the rest. Ours must not: an error."""
    expected: float | None = None
    for row in sorted(plan.rows, key=lambda row: row.peer):
        for subject in row.cells.values():
            totals = [one.stages["total"] for one in found[subject.name] if "total" in one.stages]
            for total in totals if not row.loose else []:
                expected = total if expected is None else expected
                if abs(total - expected) > 1e-6 * abs(expected) + 1e-9:
                    why = (
                        f"its results add up to {total:.9g}, those of the others to {expected:.9g}"
                    )
                    if not row.peer:
                        raise AssertionError(f"{subject.name}: {why}")
                    yield row.label, why


def measure(subject: Subject, plant: str | None = None) -> Measurement:
    """One measurement, with the memory of all of the subject's processes."""
    watch = MemoryWatch()
    question = dict(subject.question) | ({"plant": plant} if plant else {})
    command = [*subject.python, "-m", subject.module, json.dumps(question)]
    answer = run_child(command, watch=watch.of)
    if watch.several:  # a single process knows its own peak exactly, whatever was sampled
        answer["peak"] = watch.peak
    return Measurement(**answer)  # type: ignore[arg-type]


class MemoryWatch:
    """The most proportional memory that a process and its descendants held, sampled at 20 Hz."""

    def __init__(self) -> None:
        self.peak = 0
        self.several = False

    @contextmanager
    def of(self, pid: int) -> Iterator[None]:
        """Watch while the block runs."""
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(pid, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, pid: int, over: threading.Event) -> None:
        while not over.wait(0.05):
            pids = [pid, *descendants(pid)]
            self.several |= len(pids) > 1
            self.peak = max(self.peak, sum(map(proportional_memory, pids)))


def descendants(pid: int) -> list[int]:
    """The processes below this one."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found  # it has gone
    for task in tasks:
        for child in _read(f"/proc/{pid}/task/{task}/children").split():
            found += [int(child), *descendants(int(child))]
    return found


def proportional_memory(pid: int) -> int:
    """PSS in bytes; 0 for a process that has gone."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds() -> float:
    """CPU time of this process and its descendants, ended ones that were waited for too."""
    own = os.times()
    total = time.process_time() + own.children_user + own.children_system
    for pid in descendants(os.getpid()):
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def time_passes(
    passes: Iterable[Iterable[object]],
    seconds: float,
    rows: Callable[[object], int],
    of: int | None = None,
) -> dict[str, object]:
    """Consume whole passes, two to warm up, then for at least so many seconds.

    ``rows`` tells how many samples a batch holds: what was not delivered is not counted, and
    a pass of another number than ``of``, or than the first, is an error. Where
    ``of`` is given, all numbers of the first pass are added up, so that results can be
    compared: ``stages["total"]``.
    """
    began = time.perf_counter()
    turns = iter(passes)
    batches = iter(next(turns))
    batch = next(batches)
    first = time.perf_counter() - began
    total, expected = add_up(batch), rows(batch)
    for batch in batches:
        total += add_up(batch)
        expected += rows(batch)
    del batch
    if of not in (None, expected):
        raise AssertionError(f"a pass of {expected} samples, of {of} that there are")
    # While numbers were added up, a loader that knows no passes ran ahead: what lies ready by
    # then was made in no time that is measured.
    for batch in next(turns):
        del batch
    samples, wall, cpu, began = 0, 0.0, cpu_seconds(), time.perf_counter()
    while wall < seconds:
        count = sum(map(rows, next(turns)))
        if count != expected:
            raise AssertionError(f"a pass of {count} samples after one of {expected}")
        samples += count
        wall = time.perf_counter() - began
    cpu = cpu_seconds() - cpu
    told = {"samples": samples, "wall": wall, "cpu": cpu, "first": first, "peak": peak_memory()}
    return {**told, "stages": {} if of is None else {"total": total}}


def add_up(batch: object) -> float:
    """The sum of all numbers in the arrays of a batch."""
    arrays = batch.values() if isinstance(batch, dict) else [batch]
    return sum(
        float(array.sum(dtype=np.float64))
        for array in arrays
        if isinstance(array, np.ndarray) and array.dtype.kind in "fiu"
    )


def serve(answer: Callable[[dict[str, object]], dict[str, object]]) -> None:
    """Be the process of one measurement: JSON as the argument, JSON as the last line."""
    question = json.loads(sys.argv[1])
    if plant := question.pop("plant", None):
        from benchmarks.plants import PLANTS

        PLANTS[plant]()
    print(json.dumps(answer(question)))


def report(plan: Plan, found: Mapping[str, Sequence[Measurement]]) -> str:
    """The plan's table as Markdown: a line for each row and number."""
    head = ["", "", *plan.columns]
    lines = [f"### {plan.name}", "", plan.about, "", _line(head), _line(["---"] * len(head))]
    for row in plan.rows:
        for show in plan.show:
            noun, pick, write = NUMBERS[show]
            cells = [row.label if show == plan.show[0] else "", noun]
            for column in plan.columns:
                subject = row.cells.get(column)
                if subject is None:
                    cells.append("")
                    continue
                values = [pick(m) for m in found[subject.name]]
                range_ = f" ± {spread(values) / 2:.0%}" if len(values) > 1 else ""
                cells.append(write(median(values)) + range_)
                if under := ceiling(plan, row, column, found):
                    cells[-1] += _against(values, [pick(m) for m in under])
            lines.append(_line(cells))
    notes = [f"- {note}" for note in plan.notes]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def ceiling(
    plan: Plan, row: Row, column: str, found: Mapping[str, Sequence[Measurement]]
) -> Sequence[Measurement]:
    """What the row is compared with in that column: the fastest of those it names, or nothing."""
    by_label = {other.label: other for other in plan.rows}
    cells = [by_label[label].cells for label in row.versus]
    under = [found[each[column].name] for each in cells if column in each]
    return min(under, key=_wall, default=())


def _wall(found: Sequence[Measurement]) -> float:
    return median(m.wall / m.samples for m in found)


def _against(values: Sequence[float], under: Sequence[float]) -> str:
    value = ratio(values, under)
    return f" (unsteady: over {UNSTEADY:.0%})" if value is None else f" (x{value:.3g})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"

"""What the loader aims at, and whether a run of the benchmarks reached it.

Guarantees
- An aim is judged by ratios within one run; where what it is compared with was unsteady, or
  was not measured, that is said in place of a verdict.
- What is missed is listed first, then what could not be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness import Plan, ceiling
from nogil_loader.cli._measure import Measurement, ratio
from nogil_loader.cli.workloads.byhand import LOOPS

Found = Mapping[str, Sequence[Measurement]]
Pick = Callable[[Measurement], float]


def cost(measured: Measurement) -> float:
    """CPU seconds a sample."""
    return measured.cost


def rate(measured: Measurement) -> float:
    """Samples a second."""
    return measured.rate


def wall(measured: Measurement) -> float:
    """Seconds a sample."""
    return measured.wall / measured.samples


def peak(measured: Measurement) -> float:
    """Bytes of memory."""
    return float(measured.peak)


def first(measured: Measurement) -> float:
    """Seconds to the first batch."""
    return measured.first


def stage(name: str) -> Pick:
    """Seconds of a stage that the benchmark timed by itself."""

    def pick(measured: Measurement) -> float:
        return measured.stages[name]

    return pick


@dataclass(frozen=True, slots=True)
class Aim:
    """``engine`` over ``other``, by ``pick``, is to be at most (or at least) ``limit``.

    ``other``: a row's label; ``"ceiling"``, the fastest loop written by hand; ``"peers"``, the
    best of all other rows. ``column``: one of the plan's, its only one if None.
    """

    plan: str
    what: str
    pick: Pick
    other: str
    limit: float
    at_least: bool = False
    column: str | None = None
    engine: str = "engine"


TWO = "2 workers"


def _work(plan: str, cpu: float, best: float) -> tuple[Aim, ...]:
    """The usual two: CPU time against the loop by hand, throughput against the best peer."""
    return (
        Aim(plan, "CPU time a sample, loop by hand", cost, "ceiling", cpu, column=TWO),
        Aim(plan, "throughput, best peer", rate, "peers", best, True, TWO),
    )


def _switched(plan: str) -> Aim:
    return Aim(plan, "throughput, GIL on", rate, "engine, GIL on", 1.5, True, TWO)


_OVERHEAD = "adaptive, batch 256"
AIMS = (
    *_work("pictures", 1.04, 1.0),
    Aim("pictures", "throughput, torch", rate, "torch", 1.15, True, TWO),
    *_work("tar", 1.04, 1.0),
    Aim("tar", "throughput, torch", rate, "torch", 1.15, True, TWO),
    Aim("overhead", "wall time a sample, SPDL", wall, "SPDL", 1 / 50, False, TWO, _OVERHEAD),
    Aim(
        "overhead",
        "wall time a sample, dataloader-rs",
        wall,
        "dataloader-rs",
        1 / 3,
        False,
        TWO,
        _OVERHEAD,
    ),
    *_work("wav", 1.12, 1.3),
    *_work("flac", 1.12, 1.3),
    *_work("npy", 1.12, 1.3),
    *_work("npz", 1.12, 1.3),
    *_work("mapped", 1.12, 1.3),
    *_work("tokens", 1.2, 3.0),
    *_work("text", 1.06, 1.3),
    *(_switched(plan) for plan in ("wav", "flac", "npz", "mapped", "text")),
    Aim("turnaround", "first batch, best peer", first, "peers", 1 / 4),
    Aim("turnaround", "epoch turn, best peer", stage("turn"), "peers", 1 / 10),
    Aim("memory", "peak, loop by hand", peak, "ceiling", 1.3),
    Aim("memory", "peak, torch", peak, "torch", 0.4),
    Aim("server", "throughput, 256 threads by hand", rate, "by hand", 0.9, True),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an aim. ``value`` and ``met`` are None where it can't be told: ``why``."""

    aim: Aim
    value: float | None
    met: bool | None
    why: str = ""

    @property
    def line(self) -> tuple[str, str, str, str]:
        """Workload, what, aim, and what was found, for a table."""
        sign = ">=" if self.aim.at_least else "<="
        told = self.why if self.value is None else f"x{self.value:.3g}"
        if self.value is not None and self.why:
            told += f" ({self.why})"
        return self.aim.plan, self.aim.what, f"{sign} {self.aim.limit:.3g}", told


def judge(measured: Sequence[tuple[Plan, Found]]) -> list[Verdict]:
    """A verdict on every aim whose benchmark was run: the missed, the untold, the met."""
    by_name = {plan.name: (plan, found) for plan, found in measured}
    verdicts = [_judge(aim, *by_name[aim.plan]) for aim in AIMS if aim.plan in by_name]
    return sorted(verdicts, key=lambda one: {False: 0, None: 1, True: 2}[one.met])


def _judge(aim: Aim, plan: Plan, found: Found) -> Verdict:
    rows = {row.label: row for row in plan.rows}
    column = aim.column or plan.columns[0]
    mine = found[rows[aim.engine].cells[column].name]
    values = []
    for label, other in _others(aim, plan, column, found):
        value = ratio(map(aim.pick, mine), [aim.pick(m) for m in other])
        if value is None:
            return Verdict(aim, None, None, f"{label} was unsteady")
        values.append((value, label))
    if not values:
        return Verdict(aim, None, None, "not measured here")
    value, label = (min if aim.at_least else max)(values)
    met = value >= aim.limit if aim.at_least else value <= aim.limit
    return Verdict(aim, value, met, label)


def _others(
    aim: Aim, plan: Plan, column: str, found: Found
) -> Iterator[tuple[str, Sequence[Measurement]]]:
    rows = {row.label: row for row in plan.rows}
    if aim.other == "ceiling":
        if under := ceiling(plan, rows[aim.engine], column, found):
            name = next(
                label
                for label in rows[aim.engine].versus
                if found[rows[label].cells[column].name] is under
            )
            yield name, under
    elif aim.other == "peers":
        for label, row in rows.items():
            ours = label.startswith("engine") or label in LOOPS
            if not ours and column in row.cells:
                yield label, found[row.cells[column].name]
    elif aim.other in rows:
        yield aim.other, found[rows[aim.other].cells[column].name]

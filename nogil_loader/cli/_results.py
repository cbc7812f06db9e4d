"""What was measured, as a table with a verdict, and as JSON.

Guarantees
- A number is a median; what stands behind it with ± is half the range, where there is one.
- No ratio is shown where what it would be compared with varied by more than ``UNSTEADY``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from nogil_loader.cli._measure import UNSTEADY, Measurement, ratio, spread
from nogil_loader.cli._terminal import Style, table

VERSUS = {"on": "/ GIL on", "reference": "/ refer.", "hand": "/ hand"}


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the table for each number of workers: an interpreter and who does the work.

    ``key`` is ``"off"``, ``"on"``, ``"reference"`` or ``"hand"``; ``python`` the command of an
    interpreter; ``variant`` ``"engine"`` or ``"hand"``, the workload's loop written by hand.
    """

    key: str
    label: str
    python: tuple[str, ...]
    variant: str


@dataclass(frozen=True, slots=True)
class Result:
    """All measurements of one workload, ``found[series.key, workers]``; the first series is
    the one that the others are compared with."""

    workload: str
    about: str
    series: tuple[Series, ...]
    workers: tuple[int, ...]
    found: dict[tuple[str, int], list[Measurement]]


def heading(facts: dict[str, object], python: str, style: Style) -> str:
    """Where the numbers come from."""
    first = style.bold(f"nogil-loader {facts['nogil_loader']} bench")
    second = f"Python {python} on {facts['cores']} usable cores, {facts['cpu']}"
    load = float(str(facts["load"]))
    if load > 0.5:
        second += style.bad(f"\nThis machine is busy (load {load:.1f}): don't trust the numbers.")
    return f"{first}\n{second}"


def heads(result: Result) -> list[str]:
    """What stands above each column."""
    fixed = ["", "workers", "samples/s", "", "scaling", "CPU/sample", "peak MB", "first batch"]
    return [*fixed, *(VERSUS[one.key] for one in result.series[1:])]


def cells(result: Result) -> list[list[str]]:
    """The table: a row for each series and number of workers."""
    rows = []
    for one in result.series:
        least = result.workers[0]
        alone = median(m.rate for m in result.found[one.key, least]) / least
        for count in result.workers:
            found = result.found[one.key, count]
            rates = [m.rate for m in found]
            row = [
                one.label if count == least else "",
                str(count),
                f"{median(rates):,.0f}",
                f"± {spread(rates) / 2:.0%}" if len(rates) > 1 else "",
                f"x{median(rates) / alone:.2f}",
                duration(median(m.cost for m in found)),
                f"{median(m.peak for m in found) / 1e6:.0f}",
                duration(median(m.first for m in found)),
            ]
            for other in result.series[1:]:
                row.append(_versus(result, other.key, count) if one is result.series[0] else "")
            rows.append(row)
    return rows


def render(result: Result, style: Style) -> str:
    """The table of one workload and what it says, for a terminal."""
    rows = [[style.dim(head) for head in heads(result)]]
    for row in cells(result):
        rows.append([*row[:2], style.bold(row[2]), style.dim(row[3]), *row[4:]])
    lines = table(rows, "<" + ">" * (len(rows[0]) - 1))
    return f"{style.bold(result.workload)}: {result.about}\n{lines}\n{verdict(result)}"


def _versus(result: Result, key: str, count: int) -> str:
    mine, other = result.found[result.series[0].key, count], result.found[key, count]
    value = ratio([m.rate for m in mine], [m.rate for m in other])
    return "unsteady" if value is None else f"x{value:.2f}"


def verdict(result: Result) -> str:
    """What the table says, at the largest number of workers."""
    count, own = result.workers[-1], result.series[0]
    mine = result.found[own.key, count]
    lines = [f"  {own.label} with {count} worker{'s' * (count > 1)}:"]
    for one in result.series[1:]:
        other = result.found[one.key, count]
        rate = ratio([m.rate for m in mine], [m.rate for m in other])
        cost = ratio([m.cost for m in mine], [m.cost for m in other])
        if rate is None or cost is None:
            lines.append(f"no ratio to {one.label!r}, which varied by more than {UNSTEADY:.0%}")
        elif one.key == "hand":
            lines.append(
                f"x{rate:.2f} the throughput of the loop by hand, x{cost:.2f} its CPU time"
            )
        else:
            lines.append(f"x{rate:.2f} the throughput of {one.label}")
    return "\n    ".join(lines)


def duration(seconds: float) -> str:
    """Three digits and the unit that suits them.

    >>> duration(0.0021), duration(0.00004779), duration(0.51)
    ('2.10 ms', '47.8 us', '510 ms')
    """
    for unit in ("s", "ms", "us", "ns"):
        if seconds >= 1 or unit == "ns":
            break
        seconds *= 1000
    digits = 2 - math.floor(math.log10(seconds)) if seconds > 0 else 0
    return f"{seconds:.{min(2, max(0, digits))}f} {unit}"


def as_json(
    facts: dict[str, object], results: Sequence[Result], notes: Sequence[str]
) -> dict[str, object]:
    """Everything that was measured, for other programs."""
    workloads = []
    for result in results:
        series = [
            {
                **asdict(one),
                "workers": count,
                "measurements": [asdict(m) for m in result.found[one.key, count]],
            }
            for one in result.series
            for count in result.workers
        ]
        workloads.append({"name": result.workload, "about": result.about, "series": series})
    return {"machine": facts, "notes": list(notes), "workloads": workloads}

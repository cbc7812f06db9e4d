"""Plots of a run, as SVG. Needs matplotlib: the extra ``plot``.

Guarantees
- The same results give the same bytes: no dates, no random ids.
- Ratios are drawn within one run, against the fastest loop written by hand.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.harness import Plan, ceiling
from benchmarks.results import Found, Results
from benchmarks.targets import TWO
from nogil_loader.cli.workloads import USUAL
from nogil_loader.cli.workloads.byhand import LOOPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "throughput": "Throughput with two workers, the fastest loop by hand = 1",
    "overhead": "The loader's own time a sample, ops that do nothing",
    "switched": "What the GIL takes: throughput with two workers against one that is off",
    "memory": "Peak memory of all processes, four workers",
}
OURS, THEIRS, OTHER = "#0b7a75", "#c8553d", "#8d99a6"
MARKERS = "osD^v<>Pph8"


def draw(results: Results) -> dict[str, str]:
    """The plots that these results give, by name."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError('plots need matplotlib: pip install "nogil_loader[plot]"') from missing
    made = {}
    drawings: dict[str, Callable[[Axes, Results], int]] = {
        "throughput": _throughput,
        "overhead": _overhead,
        "switched": _switched,
        "memory": _memory,
    }
    for name, drawing in drawings.items():
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10}):
            figure = Figure(layout="constrained")
            axes = figure.subplots()
            lines = drawing(axes, results)
            if not lines:
                continue
            figure.set_size_inches(9, 1.2 + 0.36 * lines)
            axes.set_title(TITLES[name], loc="left")
            axes.spines[["top", "right"]].set_visible(False)
            out = io.StringIO()
            figure.savefig(out, format="svg", metadata={"Date": None})
        made[name] = out.getvalue()[out.getvalue().index("<svg") :]
    return made


def _throughput(axes: Axes, results: Results) -> int:
    """A line for each workload, a mark for each loader."""
    usual = [one.name for one in USUAL]
    plans = [(plan, found) for plan, found in results.measured if plan.name in usual][::-1]
    labels: dict[str, None] = {}
    for plan, _ in plans:
        labels.update(dict.fromkeys(row.label for row in plan.rows if row.label not in LOOPS))
    peers = [label for label in labels if not label.startswith("engine")]
    colours = ("#c8553d", "#5c80bc", "#e0a458", "#8a6fb3", "#6b8f3a", "#b0608a")
    for label in ("engine", *peers):
        xs, ys = [], []
        for place, (plan, found) in enumerate(plans):
            row = next((row for row in plan.rows if row.label == label), None)
            if row is None or TWO not in row.cells:
                continue
            hand = median(one.rate for one in ceiling(plan, row, TWO, found))
            xs.append(median(one.rate for one in found[row.cells[TWO].name]) / hand)
            ys.append(place)
        number = peers.index(label) if label in peers else 0
        axes.plot(
            xs,
            ys,
            linestyle="",
            marker="o" if label == "engine" else MARKERS[1 + number % (len(MARKERS) - 1)],
            markersize=10 if label == "engine" else 6,
            color=OURS if label == "engine" else colours[number % len(colours)],
            label="nogil_loader" if label == "engine" else label,
        )
    axes.set_yticks(range(len(plans)), [plan.name for plan, _ in plans])
    axes.axvline(1, color=OTHER, linewidth=1)
    axes.set_xlim(left=0)
    axes.grid(axis="y", linewidth=0.3)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return 2 * len(plans)


def _bars(axes: Axes, values: dict[str, float], theirs: set[str]) -> int:
    """A bar for each value, from the top down, those of peers in their colour."""
    labels = list(values)[::-1]
    colours = [THEIRS if label in theirs else OURS for label in labels]
    bars = axes.barh(labels, [values[label] for label in labels], color=colours, height=0.6)
    axes.bar_label(bars, [f" {values[label]:,.3g}" for label in labels], fontsize=9)
    return len(labels)


def _named(results: Results, name: str) -> tuple[Plan, Found] | None:
    return next((one for one in results.measured if one[0].name == name), None)


def _overhead(axes: Axes, results: Results) -> int:
    if (measured := _named(results, "overhead")) is None:
        return 0
    plan, found = measured
    values = {}
    for row in plan.rows:
        if TWO in row.cells:
            ones = found[row.cells[TWO].name]
            values[row.label] = median(one.wall / one.samples for one in ones) * 1e6
    axes.set_xlabel("microseconds, two workers")
    axes.set_xscale("log")
    return _bars(axes, values, {row.label for row in plan.rows if row.peer})


def _switched(axes: Axes, results: Results) -> int:
    values = {}
    for plan, found in results.measured:
        rows = {row.label: row for row in plan.rows}
        for label in ("engine, GIL on", "engine, reference"):
            if label in rows and TWO in rows["engine"].cells:
                off = median(one.rate for one in found[rows["engine"].cells[TWO].name])
                on = median(one.rate for one in found[rows[label].cells[TWO].name])
                values[f"{plan.name}: {label.partition(', ')[2]}"] = off / on
    axes.axvline(1, color=OTHER, linewidth=1)
    return _bars(axes, values, set())


def _memory(axes: Axes, results: Results) -> int:
    if (measured := _named(results, "memory")) is None:
        return 0
    plan, found = measured
    values = {}
    for row in plan.rows:
        ones = found[row.cells[plan.columns[0]].name]
        values[row.label] = median(one.peak for one in ones) / 1e6
    axes.set_xlabel("MB")
    return _bars(axes, values, {row.label for row in plan.rows if row.peer})

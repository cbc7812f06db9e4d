"""``bench --html``: the measurements as one page that needs nothing but itself.

Guarantees
- One file: charts are SVG inside it, without scripts, fonts or links to anywhere.
- Shows the same numbers as the table on the terminal; whatever comes from a path or a version
  is escaped.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from statistics import median
from textwrap import dedent
from typing import TYPE_CHECKING

from nogil_loader.cli._results import Result, Series, cells, heads, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"off": "#0b7a75", "on": "#c8553d", "reference": "#8a6fb3", "hand": "#8d99a6"}
STAGES = ("#0b7a75", "#e0a458", "#5c80bc", "#c8553d", "#8a6fb3", "#8d99a6")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2730; background: #fff;
  max-width: 62rem; margin: 2.5rem auto; padding: 0 1.2rem }
h1 { font-size: 1.5rem; margin-bottom: .2rem }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .2rem; border-top: 1px solid #dde3e8;
  padding-top: 1.4rem }
p.about, dl, p.note { color: #566472 }
svg { width: 100%; height: auto; margin: .6rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100% }
th { font-weight: 500; color: #566472; border-bottom: 1px solid #dde3e8 }
td, th { text-align: right; padding: .15rem .6rem; white-space: nowrap }
td:first-child, th:first-child { text-align: left; padding-left: 0 }
pre { background: #f4f6f8; padding: .7rem 1rem; border-radius: 6px; white-space: pre-wrap }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem }
dd { margin: 0 }
@media (prefers-color-scheme: dark) { svg { background: #fff; border-radius: 6px }
  body { color: #dbe3ea; background: #14191e } pre { background: #1e252c }
  h2, th { border-color: #33404b } p.about, dl, p.note, th { color: #9aa8b5 } }
"""


def page(facts: dict[str, object], results: Sequence[Result], notes: Sequence[str]) -> str:
    """The whole page. Needs matplotlib."""
    body = ["<h1>nogil-loader bench</h1>", _facts(facts)]
    for result in results:
        body += [
            f"<h2>{escape(result.workload)}</h2>",
            f'<p class="about">{escape(result.about)}</p>',
            charts(result),
            _table(result),
            f"<pre>{escape(dedent(verdict(result)))}</pre>",
        ]
    body += [f'<p class="note">{escape(note)}</p>' for note in notes]
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>nogil-loader bench</title><style>{STYLE}</style>\n"
        + "\n".join(body)
        + "\n</html>\n"
    )


def _facts(facts: dict[str, object]) -> str:
    items = []
    for key, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {version}" for name, version in value.items())
        items.append(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>")
    return f"<dl>{''.join(items)}</dl>"


def _table(result: Result) -> str:
    rows = ["".join(f"<th>{escape(head)}</th>" for head in heads(result))]
    rows += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in cells(result)]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def charts(result: Result) -> str:
    """How the throughput grows with workers, and where the time of a sample goes, as SVG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError(
            'bench --html needs matplotlib: pip install "nogil_loader[plot]"'
        ) from missing
    from matplotlib import rc_context

    # Text as text, in the page's own font; ids that do not change from run to run.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": result.workload, "font.size": 10}):
        figure = Figure(figsize=(10, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _scaling(left, result)
        _stages(right, result)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _scaling(axes: Axes, result: Result) -> None:
    for one in result.series:
        rates = [[m.rate for m in result.found[one.key, count]] for count in result.workers]
        middle = [median(values) for values in rates]
        axes.errorbar(
            result.workers,
            middle,
            yerr=[
                [m - min(values) for m, values in zip(middle, rates, strict=True)],
                [max(values) - m for m, values in zip(middle, rates, strict=True)],
            ],
            label=one.label,
            color=COLOURS[one.key],
            linestyle="--" if one.key == "hand" else "-",
            marker="o",
            markersize=4,
            capsize=3,
        )
    axes.set_title("samples a second", loc="left")
    axes.set_xlabel("workers")
    axes.set_xticks(result.workers)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _stages(axes: Axes, result: Result) -> None:
    """Of one sample at the most workers: how long each stage took, and the CPU beside it."""
    count = result.workers[-1]
    shown = [one for one in result.series if one.key != "hand"][::-1]
    names = list(result.found[shown[0].key, count][0].stages)
    left = [0.0] * len(shown)
    for name, colour in zip(names, STAGES * len(names), strict=False):
        values = [_stage(result, one, count, name) for one in shown]
        labels = [one.label for one in shown]
        axes.barh(labels, values, left=left, label=name, color=colour, height=0.5)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for place, one in enumerate(shown):
        cost = median(m.cost for m in result.found[one.key, count]) * 1e3
        axes.plot([cost, cost], [place - 0.35, place + 0.35], color="#1d2730")
    axes.plot([], [], color="#1d2730", label="CPU time")
    axes.set_title(f"milliseconds a sample, {count} workers", loc="left")
    axes.legend(frameon=False, fontsize=9)
    axes.margins(x=0.25)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)


def _stage(result: Result, one: Series, count: int, name: str) -> float:
    return median(m.stages.get(name, 0.0) for m in result.found[one.key, count]) * 1e3

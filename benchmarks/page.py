"""The page about a run: what was missed first, then plots and tables, from its JSON.

``python -m benchmarks.page RUN.json docs/measurements.md`` writes the part of that page that
lies between its two markers, and the plots beside it.

Guarantees
- Every number on the page is in the JSON; the same JSON gives the same page, byte for byte.
- What lies outside the markers is left as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks import model, plots
from benchmarks.harness import report
from benchmarks.results import Results, from_json
from benchmarks.targets import Verdict, judge

BEGIN = "<!-- measured: what follows is written by python -m benchmarks --page -->"
END = "<!-- measured: end -->"


def markdown(results: Results, folder: Path | None = None, prefix: str = "") -> str:
    """The measured part. Plots go to ``folder`` and are shown as ``prefix/NAME.svg``."""
    parts = [_head(results)]
    verdicts = judge(results.measured)
    for title, wanted in (("Where we miss what we aim at", (False, None)), ("What holds", (True,))):
        lines = _verdicts([one for one in verdicts if one.met in wanted])
        parts += [f"## {title}", lines]
    parts.append("## Tables and plots")
    drawn = plots.draw(results) if folder else {}
    for name, svg in drawn.items():
        assert folder is not None
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
        parts.append(f"![{plots.TITLES[name]}]({prefix}/{name}.svg)")
    for plan, found in results.measured:
        parts.append(report(plan, found).rstrip())
        if plan.name == "model":
            parts.append(model.describe(plan, found))
    return "\n\n".join(parts) + "\n"


def _head(results: Results) -> str:
    told = []
    for key, value in results.machine.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {version}" for name, version in value.items())
        told.append(f"- {key}: {value}")
    return (
        f"Made by `{results.command}`. Medians, with half the range behind ±; subjects took turns, "
        "each measurement in a process of its own. CPU time and memory (PSS) are those of all "
        "processes of a subject.\n\n" + "\n".join(told)
    )


def _verdicts(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "Nothing in this run."
    lines = ["| workload | against | aim | found |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *("| " + " | ".join(one.line) + " |" for one in verdicts)])


def between(page: str, text: str) -> str:
    """The page with ``text`` between its markers. Raises ``ValueError`` if it has none."""
    before, found, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page has no place for measurements: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def write(results: Results, path: Path) -> None:
    """Write the measured part of a page, and its plots to a folder of the page's name."""
    text = markdown(results, path.parent / path.stem, path.stem)
    path.write_text(between(path.read_text(encoding="utf-8"), text), encoding="utf-8")


def html(results: Results) -> str:
    """The same as one file that needs nothing but itself."""
    body = [f"<h1>Benchmarks</h1><pre>{escape(_head(results))}</pre>"]
    rows = [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in one.line) + "</tr>"
        for one in judge(results.measured)
    ]
    body.append("<h2>Aims, the missed first</h2><table>" + "\n".join(rows) + "</table>")
    body += plots.draw(results).values()
    for plan, found in results.measured:
        body.append(_table(report(plan, found)))
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
        "td,th{padding:.1rem .6rem;text-align:left;white-space:nowrap}svg{max-width:100%}"
        "pre{white-space:pre-wrap}"
    )
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Benchmarks</title>'
        f"<style>{style}</style>\n" + "\n".join(body) + "\n</html>\n"
    )


def _table(text: str) -> str:
    """A report's Markdown as HTML: a heading, paragraphs, one table, notes."""
    made, rows = [], []
    for line in text.splitlines():
        if line.startswith("### "):
            made.append(f"<h2>{escape(line[4:])}</h2>")
        elif line.startswith("| ---"):
            continue
        elif line.startswith("|"):
            cells = line.strip("| ").split(" | ")
            rows.append("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
        elif line:
            made.append(f"<p>{escape(line)}</p>")
    return "\n".join([*made[:2], "<table>", *rows, "</table>", *made[2:]])


def main() -> int:
    """Make a page again from the JSON of a run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page")
    parser.add_argument("run", type=Path, metavar="RUN.json")
    parser.add_argument("page", type=Path, metavar="PAGE.md")
    args = parser.parse_args()
    write(from_json(json.loads(args.run.read_text(encoding="utf-8"))), args.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())

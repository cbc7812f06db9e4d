"""A run of the benchmarks as JSON, and back.

Guarantees
- All that a page says comes from this file: tables and plots can be made again, and on
  another machine, without measuring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias, cast

from benchmarks.harness import Plan, Row
from nogil_loader.cli._measure import Measurement, Subject

Found: TypeAlias = "Mapping[str, Sequence[Measurement]]"


@dataclass(frozen=True, slots=True)
class Results:
    """What ran where: facts of the machine, the command, and the measured plans."""

    command: str
    machine: Mapping[str, object]
    measured: tuple[tuple[Plan, Found], ...]


def as_json(results: Results) -> dict[str, object]:
    """Plain data, for ``json.dumps``."""
    return {
        "command": results.command,
        "machine": dict(results.machine),
        "benchmarks": [
            {
                "name": plan.name,
                "about": plan.about,
                "columns": list(plan.columns),
                "show": list(plan.show),
                "notes": list(plan.notes),
                "rows": [
                    {
                        "label": row.label,
                        "versus": list(row.versus),
                        "peer": row.peer,
                        "cells": {
                            column: [asdict(one) for one in found[subject.name]]
                            for column, subject in row.cells.items()
                        },
                    }
                    for row in plan.rows
                ],
            }
            for plan, found in results.measured
        ],
    }


def from_json(text: Mapping[str, object]) -> Results:
    """The results that ``as_json`` wrote; subjects have a name and nothing to measure again."""
    measured = []
    for kept in cast("list[dict[str, object]]", text["benchmarks"]):
        rows, found = [], {}
        for row in cast("list[dict[str, object]]", kept["rows"]):
            cells = {}
            for column, ones in cast("dict[str, list[dict[str, object]]]", row["cells"]).items():
                name = f"{kept['name']}, {row['label']}, {column}"
                cells[column] = Subject(name, (), {})
                found[name] = [Measurement(**one) for one in ones]  # type: ignore[arg-type]
            versus = tuple(cast("list[str]", row["versus"]))
            rows.append(Row(str(row["label"]), cells, versus, bool(row["peer"])))
        plan = Plan(
            str(kept["name"]),
            str(kept["about"]),
            tuple(cast("list[str]", kept["columns"])),
            tuple(rows),
            tuple(cast("list[str]", kept["show"])),
            tuple(cast("list[str]", kept["notes"])),
        )
        measured.append((plan, found))
    machine = cast("dict[str, object]", text["machine"])
    return Results(str(text["command"]), machine, tuple(measured))

"""No function, lambda or generator expression is made where it would be made per block, batch
or sample: free-threaded CPython 3.13 never frees one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import nogil_loader.engine

ROOT = Path(nogil_loader.engine.__file__).parent
OFTEN = [
    "batches.py",
    "calls.py",
    "core/ahead.py",
    "core/block.py",
    "core/core.py",
    "core/early.py",
    "core/policy.py",
    "core/timers.py",
    "feed.py",
    "lease.py",
    "steps.py",
]
"""Modules whose functions may run that often,"""
RARELY = ("_least_window", "_row_of", "explain")
"""but for these, once a run or for an error."""


@pytest.mark.parametrize("name", OFTEN)
def test_nothing_that_makes_a_function_runs_per_block(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text())
    made = []
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef) and outer.name not in RARELY:
            for inner in ast.walk(outer):
                makes = (ast.FunctionDef, ast.Lambda, ast.GeneratorExp)
                if inner is not outer and isinstance(inner, makes):
                    made.append(f"{name}:{inner.lineno} in {outer.name}")
    assert not made

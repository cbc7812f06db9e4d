"""The tool that tests the tests: what it draws is valid code, and its list is of today's code."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def mutants() -> Iterator[ModuleType]:
    loader = SourceFileLoader("mutants", str(ROOT / "ci" / "mutants"))
    spec = importlib.util.spec_from_loader("mutants", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = bytecode
    yield module
    del sys.modules["mutants"]


def test_a_seed_draws_the_same_mutants_and_each_is_code_that_differs_in_one_line(
    mutants: ModuleType,
) -> None:
    sites = mutants.draw(40, 3, "")
    assert sites == mutants.draw(40, 3, "")
    for site in sites:
        mutant, source = mutants.mutate(site)
        original = ast.unparse(ast.parse((ROOT / site.path).read_text())).splitlines()
        changed = source.splitlines()
        compile(source, site.path, "exec")
        assert len(changed) == len(original)
        differing = [pair for pair in zip(original, changed, strict=True) if len(set(pair)) == 2]
        assert [(old.strip(), new.strip()) for old, new in differing] == [
            (mutant.before, mutant.after)
        ]


def test_every_module_has_tests_that_are_there(mutants: ModuleType) -> None:
    for package in mutants.PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            part = max((part for part in mutants.TESTS if name.startswith(part)), key=len)
            assert all((ROOT / test).exists() for test in mutants.TESTS[part]), part


def test_what_is_called_equivalent_is_a_change_of_a_line_that_is_there(mutants: ModuleType) -> None:
    for (path, before, after), why in mutants.explained().items():
        lines = ast.unparse(ast.parse((ROOT / path).read_text())).splitlines()
        assert before in map(str.strip, lines), (path, before)
        assert before != after
        assert len(why) > 10

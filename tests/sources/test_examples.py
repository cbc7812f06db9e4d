"""Every example in the docstrings of the sources is run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import nogil_loader.sources

MODULES = sorted(module.name for module in pkgutil.iter_modules(nogil_loader.sources.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    if name == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    module = importlib.import_module(f"nogil_loader.sources.{name}")
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert not failed

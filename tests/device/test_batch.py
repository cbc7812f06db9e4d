"""Structures, and handing arrays to other frameworks."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

from nogil_loader.device.batch import export, leaves, map_leaves
from nogil_loader.testing.device import FakeDevice

Pair = namedtuple("Pair", "left right")


def test_structure_is_kept_at_any_depth() -> None:
    batch = {"a": Pair(1, [2, (3,)]), "b": {"c": None}}
    assert map_leaves(lambda leaf: leaf, batch) == batch
    assert isinstance(map_leaves(str, batch)["a"], Pair)
    assert list(leaves(batch)) == [1, 2, 3, None]


def test_a_single_array_is_a_batch() -> None:
    array = np.arange(3)
    assert np.shares_memory(export(array, np.from_dlpack), array)


def test_what_no_framework_can_take_stays_as_it_is() -> None:
    batch = {
        "text": np.array(["a", "b"]),
        "when": np.array(["2026-11-30"], "M8[D]"),
        "objects": np.array([None, 1], object),
        "scalar": np.float32(2),
        "none": None,
    }
    seen = export(batch, np.from_dlpack)
    assert all(seen[key] is batch[key] for key in batch)


def test_an_export_of_memory_on_a_device_goes_through_dlpack() -> None:
    device = FakeDevice()
    array = device.empty((3,), np.int32)
    seen = []
    export({"x": array, "n": 1}, seen.append)
    assert seen[0] is array


@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "f2", "f8", "c8"])
def test_every_number_type_is_exported(dtype: str) -> None:
    array = np.ones(4, dtype)
    assert export([array], np.from_dlpack)[0].dtype == array.dtype


def test_torch_shows_the_same_memory() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batch = {"image": np.zeros((2, 3), np.float32), "path": ["a", "b"]}
    view = export(batch, torch.from_dlpack)
    view["image"][0, 0] = 7
    assert batch["image"][0, 0] == 7
    assert view["path"] == ["a", "b"]


def test_jax_shows_the_same_numbers() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    batch = {"image": np.arange(6, dtype=np.float32).reshape(2, 3), "path": ["a", "b"]}
    view = export(batch, jax.dlpack.from_dlpack)
    assert isinstance(view["image"], jax.Array)
    assert float(view["image"].sum()) == 15
    assert view["path"] == ["a", "b"]

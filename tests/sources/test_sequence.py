from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.sources.base import Sample, Source
from nogil_loader.sources.sequence import Sequence_

Check = Callable[[Source], list[Sample]]


def test_lists_ranges_strings_and_arrays_are_sequences(check: Check) -> None:
    assert check(Sequence_([3, None, "x"])) == [3, None, "x"]
    assert check(Sequence_(range(5, 50, 3))) == list(range(5, 50, 3))
    assert check(Sequence_("héllo")) == list("héllo")
    assert check(Sequence_(())) == []
    rows = np.arange(12).reshape(4, 3)
    for got, row in zip(check(Sequence_(rows)), rows, strict=True):
        assert np.array_equal(np.asarray(got), row)


def test_rows_of_an_array_are_views() -> None:
    rows = np.zeros((3, 2))
    row = Sequence_(rows).open().bind()(1)
    assert isinstance(row, np.ndarray)
    assert np.shares_memory(row, rows)


@pytest.mark.parametrize("data", [3, {1: 2}, {1, 2}, iter([1]), np.float64(1), np.array(1)])
def test_what_has_no_numbered_items_is_refused(data: object) -> None:
    with pytest.raises(TypeError):
        Sequence_(data)  # type: ignore[arg-type]


@given(st.lists(st.integers()), st.lists(st.integers()))
def test_equal_data_are_equal_sources(one: list[int], other: list[int]) -> None:
    assert (Sequence_(one) == Sequence_(other)) == (one == other)
    assert (Sequence_(np.array(one)) == Sequence_(np.array(other))) == (one == other)


def test_the_fingerprint_sees_length_values_and_type() -> None:
    data = [[1, 2, 3], [1, 2, 4], [1, 2], ["1", "2", "3"], np.array([1, 2, 3]), np.ones((3, 2))]
    prints = [Sequence_(item).open().fingerprint() for item in data]  # type: ignore[arg-type]
    assert len(set(prints)) == len(data)


def test_long_sequences_are_printed_by_their_length() -> None:
    assert repr(Sequence_([1, 2])) == "Sequence_([1, 2])"
    assert repr(Sequence_(range(10**9))) == "Sequence_(range(0, 1000000000))"
    assert repr(Sequence_(list(range(10**5)))) == "Sequence_(<list of 100000>)"

"""Plain batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.position.grouping import Batches


@given(st.integers(1, 9), st.lists(st.integers(0, 30)), st.booleans())
def test_batches_are_consecutive_and_do_not_depend_on_the_pushes(
    size: int, pushes: list[int], drop_last: bool
) -> None:
    batches = Batches(size, drop_last=drop_last)
    groups = [group for count in pushes for group in batches.push(count)]
    assert all(len(group.items) == size and group.upto == group.items[-1] + 1 for group in groups)
    groups += batches.flush()
    total = sum(pushes)
    expected = total - total % size if drop_last else total
    assert [item for group in groups for item in group.items] == list(range(expected))
    assert all(group.pending == () for group in groups)


def test_a_boundary_ends_a_batch_and_pushing_goes_on() -> None:
    batches = Batches(4)
    assert [list(group.items) for group in batches.push(5)] == [[0, 1, 2, 3]]
    assert [list(group.items) for group in batches.boundary()] == [[4]]
    assert [list(group.items) for group in batches.push(4)] == [[5, 6, 7, 8]]
    assert batches.flush() == []


def test_a_boundary_with_drop_last_drops_the_short_batch() -> None:
    batches = Batches(4, drop_last=True)
    batches.push(5)
    assert batches.boundary() == []
    assert [list(group.items) for group in batches.push(4)] == [[5, 6, 7, 8]]


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Batches(0)

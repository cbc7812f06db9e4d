"""Buckets hold outputs of similar size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.position.bucketing import Buckets
from tests.position.laws import law


@law
@given(st.lists(st.integers(0, 50), max_size=100))
def test_every_output_of_a_group_belongs_to_its_bucket(sizes: list[int]) -> None:
    buckets = Buckets([10, 20, 30], [4, 3, 2, 1])
    full = buckets.push(len(sizes), sizes)
    last = buckets.flush()
    ranges = {10: (0, 10), 20: (11, 20), 30: (21, 30), None: (31, 50)}
    counts = {10: 4, 20: 3, 30: 2, None: 1}
    for group in full + last:
        low, high = ranges[group.layout]  # type: ignore[index]
        assert all(low <= sizes[item] <= high for item in group.items)
        assert list(group.items) == sorted(group.items)
    assert all(len(group.items) == counts[group.layout] for group in full)  # type: ignore[index]
    assert all(len(group.items) < counts[group.layout] for group in last)  # type: ignore[index]
    assert sorted(item for group in full + last for item in group.items) == list(range(len(sizes)))


def test_the_last_short_batches_come_oldest_first_or_not_at_all() -> None:
    for drop_last, expected in ((False, [(0,), (1, 3), (2,)]), (True, [])):
        buckets = Buckets([10, 20, 30], 9, drop_last=drop_last)
        buckets.push(4, [30, 5, 20, 6])
        assert [group.items for group in buckets.flush()] == expected
        assert buckets.flush() == []

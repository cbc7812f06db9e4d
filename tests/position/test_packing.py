"""Packs hold every token once, and waste little."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.position.grouping import Group
from nogil_loader.position.packing import Algorithm, Segment, packs
from nogil_loader.position.parse import StateMismatch
from tests.position.laws import law

algorithms = st.sampled_from(["first_fit", "best_fit", "concat"])


def layout(group: Group) -> tuple[Segment, ...]:
    assert isinstance(group.layout, tuple)
    return group.layout


def pack_all(
    sizes: list[int], length: int, rows: int, algorithm: Algorithm, bound: int | None = None
) -> list[Group]:
    grouper = packs(length, rows, algorithm, open_packs=bound)
    return grouper.push(len(sizes), sizes) + grouper.flush()


@law
@given(algorithms, st.lists(st.integers(0, 30), max_size=80), st.integers(1, 4), st.integers(1, 5))
def test_every_token_lies_in_exactly_one_place(
    algorithm: Algorithm, sizes: list[int], rows: int, bound: int
) -> None:
    groups = pack_all(sizes, 30, rows, algorithm, bound)
    seen = [0] * len(sizes)
    for group in groups:
        free = np.ones((rows, 30), bool)
        for segment in layout(group):
            place = free[segment.row, segment.offset : segment.offset + segment.length]
            assert place.all() or segment.length == 0
            assert place.size == segment.length
            place[:] = False
            output = group.items[segment.item]
            assert segment.start == seen[output]
            seen[output] += segment.length
        if algorithm == "concat" and group is not groups[-1]:
            assert not free.any()
    assert seen == sizes


@law
@given(st.sampled_from(["first_fit", "best_fit"]), st.lists(st.integers(0, 30), max_size=80))
def test_fitting_never_cuts_an_output_and_begins_rows_at_zero(
    algorithm: Literal["first_fit", "best_fit"], sizes: list[int]
) -> None:
    for group in pack_all(sizes, 30, 3, algorithm):
        ends = {}
        for segment in layout(group):
            assert segment.start == 0
            assert segment.offset == ends.get(segment.row, 0)
            ends[segment.row] = segment.offset + segment.length
        assert set(ends) == set(range(len(ends)))


@law
@given(st.booleans(), st.lists(st.integers(1, 30), max_size=60))
def test_first_fit_takes_the_oldest_pack_with_room_and_best_fit_the_fullest(
    best: bool, sizes: list[int]
) -> None:
    rooms: list[int] = []
    expected: list[list[int]] = []
    for output, size in enumerate(sizes):
        fitting = [number for number, room in enumerate(rooms) if room >= size]
        if not fitting:
            rooms.append(30)
            expected.append([])
            fitting = [len(rooms) - 1]
        chosen = min(fitting, key=lambda number: rooms[number]) if best else fitting[0]
        rooms[chosen] -= size
        expected[chosen].append(output)
    found = []
    for group in pack_all(sizes, 30, 1, "best_fit" if best else "first_fit", 1000):
        found.append([group.items[segment.item] for segment in layout(group)])
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("rows", [1, 16])
def test_padding_on_log_normal_lengths_is_small(rows: int) -> None:
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(5.5, 1.0, 20_000), 1, 2048).astype(int).tolist()
    share = {}
    for algorithm in ("first_fit", "best_fit"):
        groups = pack_all(sizes, 2048, rows, algorithm)  # type: ignore[arg-type]
        cells = sum(1 + max(s.row for s in layout(group)) for group in groups) * 2048
        share[algorithm] = 1 - sum(sizes) / cells
    alone = 1 - sum(sizes) / (len(sizes) * 2048)
    assert alone > 0.7
    assert share["best_fit"] < 0.012
    assert share["first_fit"] < 0.02


def test_the_state_is_bounded_by_the_open_packs() -> None:
    sizes = np.random.default_rng(1).integers(1, 1000, 5000).tolist()
    groups = pack_all(sizes, 2000, 4, "best_fit", bound=8)
    for group in groups:
        assert isinstance(group.memo, list)
        assert len(set(map(str, group.memo))) <= 8


def test_a_state_of_other_sizes_is_refused() -> None:
    for algorithm in ("first_fit", "best_fit"):
        grouper = packs(10, 1, algorithm)
        grouper.restore([0, 0], 2)
        with pytest.raises(StateMismatch, match="no longer fit"):
            grouper.push(2, [6, 6])
    grouper = packs(10, 1, "concat")
    grouper.restore(7, 1)
    with pytest.raises(StateMismatch, match="only 6 of them"):
        grouper.push(1, [6])

"""The law of elastic resume, on simulated ranks that stop anywhere."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nogil_loader.position.order import Sequential
from nogil_loader.position.parse import StateMismatch
from nogil_loader.position.rest import Ident, LevelState, Rest, Wanted
from nogil_loader.position.shard import Remainder, Shard
from tests.position.laws import SOAK, law

Cell = tuple[int, ...]
History = tuple[list[int | None], list[tuple[int, list[float], list[bool]]]]


@dataclass
class Rank:
    """One rank of a run, seen from level 0: it walks its units and delivers some cells."""

    shard: Shard
    partial: dict[int, Wanted]
    children: list[int | None]
    """Per position: how many children (flat_map), or None for one plain cell."""
    walked: list[tuple[Ident, Cell]] = field(default_factory=list)
    at: int = 0

    def cells(self, unit: int) -> list[tuple[Ident, Cell]]:
        """(ident, (position, child ...)) of what a unit yields and is wanted."""
        found = self.shard.locate(np.array([unit]))
        if found.masked is not None and found.masked[0]:
            return []
        if found.repeated is not None and found.repeated[0]:
            return []
        position = int(found.positions[0])
        count = self.children[position]
        if count is None:
            return [(unit, (position,))]
        wanted = self.partial.get(unit)
        return [
            ((unit, child), (position, child))
            for child in range(count)
            if wanted is None or (child,) in wanted
        ]

    def everything(self) -> list[tuple[Ident, Cell]]:
        assert self.shard.length is not None
        return [cell for unit in range(self.shard.length) for cell in self.cells(unit)]

    def stop(self, share: float, waiting: list[bool]) -> tuple[list[Cell], LevelState]:
        """Stop after a share of the cells, some of which wait in open groups."""
        cells = self.everything()
        cut = int(share * len(cells))
        here = cells[:cut]
        pending = [cell for cell, waits in zip(here, waiting, strict=False) if waits]
        delivered = [cell[1] for cell in here if cell not in pending]
        after: Ident | None = None
        unit = 0
        if here:
            last = here[-1][0]
            unit = _unit(last)
            if cut < len(cells) and _unit(cells[cut][0]) == unit:
                after = last
            else:
                unit += 1
        elif not cells:
            unit = self.shard.length or 0
        return delivered, LevelState(unit, after, tuple(cell[0] for cell in pending))


def _unit(ident: Ident) -> int:
    return ident if isinstance(ident, int) else ident[0]


def ranks_of(
    rest: Rest, length: int, world: int, remainder: Remainder, children: list[int | None]
) -> list[Rank]:
    order = rest.order(Sequential(length))
    return [
        Rank(Shard(order, r, world, remainder), rest.partial_units(r, world), children)
        for r in range(world)
    ]


@st.composite
def histories(
    draw: st.DrawFn,
) -> tuple[list[int | None], list[tuple[int, list[float], list[bool]]]]:
    """What positions yield, and for each cut: world, where ranks stop, what waits."""
    yields = st.one_of(st.none(), st.integers(0, 4))
    children = draw(st.lists(yields, max_size=10) | st.lists(yields, min_size=15, max_size=40))
    cuts = []
    for _ in range(draw(st.integers(0, 3))):
        world = draw(st.integers(1, 6))
        stops = draw(
            st.one_of(
                st.floats(0, 1).map(lambda at, world=world: [at] * world),  # type: ignore[misc]
                st.lists(st.floats(0, 1), min_size=world, max_size=world),
            )
        )
        cuts.append((world, stops, draw(st.lists(st.booleans(), max_size=12))))
    return children, cuts


@settings(law, max_examples=20_000 if SOAK else 400)
@given(histories(), st.integers(1, 6), st.sampled_from(["keep", "pad", "wrap"]))
def test_every_cell_is_delivered_exactly_once_whatever_the_cuts(
    history: History,
    last_world: int,
    remainder: Remainder,
) -> None:
    children, cuts = history
    rest = Rest()
    delivered: list[Cell] = []
    for world, stops, waiting in cuts:
        levels = []
        for rank, share in zip(
            ranks_of(rest, len(children), world, remainder, children), stops, strict=True
        ):
            cells, level = rank.stop(share, waiting)
            delivered += cells
            levels.append(level)
        rest = Rest.from_json(json.loads(json.dumps(rest.cut(levels, len(children)).to_json())))
    for rank in ranks_of(rest, len(children), last_world, remainder, children):
        delivered += [cell for _, cell in rank.everything()]
    expected = [
        cell
        for position, count in enumerate(children)
        for cell in ([(position,)] if count is None else [(position, c) for c in range(count)])
    ]
    assert Counter(delivered) == Counter(expected)


@law
@given(st.integers(0, 60), st.lists(st.tuples(st.integers(1, 7), st.floats(0, 1)), max_size=3))
def test_with_drop_only_the_remainder_of_the_last_world_is_left_out(
    length: int, cuts: list[tuple[int, float]]
) -> None:
    children: list[int | None] = [None] * length
    rest, shown, world = Rest(), [], 1
    for world, share in [*cuts, (5, 1.0)]:
        levels = []
        for rank in ranks_of(rest, length, world, "drop", children):
            cells, level = rank.stop(share, [])
            shown += cells
            levels.append(level)
        rest = rest.cut(levels, length)
    assert len(set(shown)) == len(shown)
    left = rest.count(length)
    assert left is not None
    assert left == length - len(shown) < world


def test_equal_ranks_leave_one_integer() -> None:
    rest = Rest().cut([LevelState(1000)] * 4096, 10**9)
    assert rest.to_json() == {"tail": 4_096_000}
    again = rest.cut([LevelState(7)] * 100, None)
    assert again.to_json() == {"tail": 4_096_700}


def test_a_unit_in_an_open_bucket_for_ages_costs_one_position() -> None:
    rest = Rest().cut([LevelState(10**8, None, (3,)), LevelState(10**8)], 10**9)
    assert rest.to_json() == {"tail": 2 * 10**8, "explicit": [6]}


def test_a_parent_that_was_finished_is_partial_no_more() -> None:
    begun = Rest().cut([LevelState(2, after=(2, 0))], 10)
    assert begun.partial == {2: Wanted(after=(0,))}
    assert begun.partial_units(0, 1) == {0: Wanted(after=(0,))}
    assert begun.cut([LevelState(1), LevelState(0)], 10).partial == {}
    assert begun.cut([LevelState(0), LevelState(1)], 10).partial == begun.partial


def test_duplicates_at_the_end_count_for_nothing() -> None:
    ranks = [LevelState(40), LevelState(40, None, (39,)), LevelState(40)]  # of 4, 3 and 3 units
    assert Rest().cut(ranks, 10) == Rest(tail=10)


@law
@given(st.sets(st.integers(0, 19), max_size=6).map(sorted), st.integers(20, 24), st.integers(1, 4))
def test_parents_that_are_left_are_found_at_their_units(
    explicit: list[int], tail: int, world: int
) -> None:
    left = [*explicit, *range(tail, 30)]
    rest = Rest(np.array(explicit, np.int64), tail, {at: Wanted(after=(at,)) for at in left})
    for rank in range(world):
        units = {n // world: at for n, at in enumerate(left) if n % world == rank}
        assert rest.partial_units(rank, world) == {
            unit: Wanted(after=(at,)) for unit, at in units.items()
        }


@law
@given(st.integers(0, 30), st.integers(1, 4), st.integers(0, 2), st.data())
def test_children_of_duplicates_count_for_nothing_either(
    length: int, world: int, beyond: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, world - 1))
    share = len(range(rank, length, world))
    inside = LevelState(share + beyond + 1, (share + beyond, 0), ((share + beyond, 1),))
    levels = [LevelState(40)] * world
    levels[rank] = inside
    assert Rest().cut(levels, length) == Rest(tail=length)


@law
@given(
    st.lists(st.integers(0, 10**12), max_size=600, unique=True).map(sorted),
    st.dictionaries(
        st.integers(0, 100),
        st.builds(
            Wanted,
            st.frozensets(st.lists(st.integers(0, 9), min_size=1).map(tuple), max_size=3),
            st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=2).map(tuple),
        ),
        max_size=3,
    ),
)
def test_a_rest_survives_json(positions: list[int], partial: dict[int, Wanted]) -> None:
    rest = Rest(np.array(positions, np.int64), 10**12 + 1, partial, ((1, 2), (0,)))
    assert Rest.from_json(json.loads(json.dumps(rest.to_json()))) == rest


@pytest.mark.parametrize("largest", [1, 200, 60_000, 10**9])
def test_a_long_rest_is_packed_and_survives_json(largest: int) -> None:
    steps = np.random.default_rng(largest).integers(1, largest + 1, 3000)
    rest = Rest(np.cumsum(steps) + 17, int(steps.sum()) + 18)
    packed = json.loads(json.dumps(rest.to_json()))
    assert isinstance(packed["explicit"], dict)
    assert Rest.from_json(packed) == rest


def test_what_is_no_rest_is_refused() -> None:
    packed = Rest(np.arange(0, 3000, 3), 3000).to_json()
    assert isinstance(packed, dict)
    assert isinstance(packed["explicit"], dict)
    steps = packed["explicit"]
    for wrong in (
        [],
        {},
        {"tail": -1},
        {"tail": True},
        {"tail": 5, "explicit": [3, 3]},
        {"tail": 5, "explicit": [7]},
        {"tail": 5, "explicit": ["3"]},
        {"tail": 5, "partial": [[1, []]]},
        {"tail": 5, "partial": 3},
        {**packed, "explicit": {**steps, "steps": "%"}},
        {**packed, "explicit": {**steps, "steps": "YWJj"}},
        {**packed, "explicit": {**steps, "width": 3}},
        {**packed, "explicit": {**steps, "width": 8}},
        {**packed, "explicit": {**steps, "first": None}},
    ):
        with pytest.raises(StateMismatch, match="not a state"):
            Rest.from_json(wrong)  # type: ignore[arg-type]

"""Ranks are disjoint, complete and equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.position.order import Repeat, Sequential, Shuffled
from nogil_loader.position.shard import Remainder, Shard, Wrap
from tests.position.laws import law

sizes = st.tuples(st.integers(0, 60), st.integers(1, 17))


def shards(length: int, world: int, remainder: Remainder) -> list[Shard]:
    order = Shuffled(Sequential(length), seed=1)
    return [Shard(order, rank, world, remainder) for rank in range(world)]


def shown(shard: Shard) -> tuple[list[int], int, int]:
    """The indices counted for a rank, and how many are masked or repeated."""
    assert shard.length is not None
    found = shard.locate(np.arange(shard.length))
    masked = np.zeros(shard.length, bool) if found.masked is None else found.masked
    repeated = 0 if found.repeated is None else int(found.repeated.sum())
    return found.indices[~masked].tolist(), int(masked.sum()), repeated


def counted(ranks: list[Shard]) -> list[int]:
    """The indices counted over all ranks."""
    return [index for shard in ranks for index in shown(shard)[0]]


@law
@given(sizes)
def test_drop_leaves_out_fewer_units_than_there_are_ranks(size: tuple[int, int]) -> None:
    length, world = size
    ranks = shards(length, world, "drop")
    assert {shard.length for shard in ranks} == {length // world}
    union = counted(ranks)
    assert len(set(union)) == len(union) == length - length % world


@law
@given(sizes)
def test_pad_shows_every_unit_once_unmasked(size: tuple[int, int]) -> None:
    length, world = size
    ranks = shards(length, world, "pad")
    assert len({shard.length for shard in ranks}) == 1
    assert sorted(counted(ranks)) == list(range(length))
    assert sum(shown(shard)[1] for shard in ranks) == -length % world if length else True


@law
@given(sizes)
def test_wrap_counts_what_it_shows_again(size: tuple[int, int]) -> None:
    length, world = size
    ranks = shards(length, world, "wrap")
    assert len({shard.length for shard in ranks}) == 1
    union = counted(ranks)
    assert set(union) == set(range(length))
    assert len(union) - length == sum(shown(shard)[2] for shard in ranks)


@law
@given(sizes)
def test_keep_is_complete_and_differs_by_at_most_one(size: tuple[int, int]) -> None:
    length, world = size
    ranks = shards(length, world, "keep")
    assert sorted(counted(ranks)) == list(range(length))
    counts = [len(shown(shard)[0]) for shard in ranks]
    assert max(counts) - min(counts) <= 1


def test_what_is_shown_again_are_the_first_units_of_the_global_order() -> None:
    order = Sequential(10)
    for remainder in ("pad", "wrap"):
        last = [Shard(order, rank, 4, remainder).locate(np.array([2])) for rank in range(4)]
        assert [found.indices[0] for found in last] == [8, 9, 0, 1]
        assert [found.positions[0] for found in last] == [8, 9, 0, 1]
    assert Shard(Sequential(2), 6, 7, "pad").locate(np.array([0])).indices.tolist() == [0]


def test_positions_do_not_depend_on_the_world_size() -> None:
    order = Shuffled(Sequential(24), seed=1)
    by_index = {}
    for world in (1, 2, 3, 8):
        for rank in range(world):
            found = Shard(order, rank, world).locate(np.arange(24 // world))
            for index, position in zip(found.indices.tolist(), found.positions, strict=True):
                assert by_index.setdefault(index, position) == position


def test_an_endless_order_has_endless_shards() -> None:
    shard = Shard(Repeat(Sequential(10)), 3, 4, "pad")
    assert shard.length is None
    assert shard.locate(np.arange(4)).indices.tolist() == [3, 7, 1, 5]


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is outside"):
        Shard(Sequential(3), 2, 2)
    with pytest.raises(ValueError, match="'drop', 'pad', 'wrap', 'keep'"):
        Shard(Sequential(3), 0, 2, "trim")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fewer ranks or more data"):
        Wrap(Shard(Sequential(1), 1, 2, "keep"))

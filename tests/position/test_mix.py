"""Mixes keep their proportions, lose nothing, and show every source to every rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.position.mix import WINDOW, Mix, Schedule, whole_weights
from nogil_loader.position.order import Repeat, Sequential, Shuffled
from nogil_loader.position.permutation import SHORT
from nogil_loader.position.shard import Shard
from tests.position.laws import law

weights = st.lists(st.integers(1, 3000), min_size=1, max_size=6)


def sources_of(mix: Mix, count: int, epoch: int = 0) -> np.ndarray:
    found = mix.locate(np.arange(count), epoch).sources
    assert found is not None
    return found


def test_decimal_weights_are_taken_as_written() -> None:
    assert whole_weights([0.7, 0.2, 0.1]) == (7, 2, 1)
    assert whole_weights([30, 10]) == (3, 1)
    assert sum(whole_weights([1 / 3, 2 / 3, 1e-9])) <= 2**30 + 3


@law
@given(weights)
def test_the_schedule_is_exact_over_its_cycle_and_counts_turns(weights: list[int]) -> None:
    schedule = Schedule(tuple(weights))
    total = sum(weights)
    sources, turns = schedule.turns(np.arange(total + 5))
    assert np.bincount(sources[:total], minlength=len(weights)).tolist() == weights
    for source in range(len(weights)):
        own = np.flatnonzero(sources == source)
        assert turns[own].tolist() == list(range(own.size))
        for turn in (0, own.size - 1):
            assert schedule.place(source, turn) == own[turn]
        for places in (0, total // 2, total):
            assert schedule.count(source, places) == np.count_nonzero(own < places)


@law
@given(weights)
def test_the_schedule_never_strays_far_from_the_proportions(weights: list[int]) -> None:
    total = sum(weights)
    sources, _ = Schedule(tuple(weights)).turns(np.arange(total))
    for source, weight in enumerate(weights):
        counted = np.cumsum(sources == source)
        expected = np.arange(1, total + 1) * weight / total
        assert np.abs(counted - expected).max() <= 3


@law
@given(weights, st.integers(0, 5), st.data())
def test_stop_first_shows_nothing_twice_and_ends_where_a_source_does(
    weights: list[int], epoch: int, data: st.DataObject
) -> None:
    lengths = [data.draw(st.integers(0, 500)) for _ in weights]
    orders = [Shuffled(Sequential(n), i) for i, n in enumerate(lengths)]
    mix = Mix(orders, weights, seed=3, stop="first")
    assert mix.length is not None
    found = mix.locate(np.arange(mix.length), epoch)
    assert found.sources is not None
    shown = list(zip(found.sources.tolist(), found.indices.tolist(), strict=True))
    assert len(set(shown)) == len(shown)
    counts = np.bincount(found.sources, minlength=len(weights))
    assert all(counts <= lengths)
    assert any(counts == lengths)


@law
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 5), st.data())
def test_stop_all_shows_every_source_whole_and_the_longest_once(
    weights: list[int], epoch: int, data: st.DataObject
) -> None:
    lengths = [data.draw(st.integers(1, 60)) for _ in weights]
    orders = [Shuffled(Sequential(n), i) for i, n in enumerate(lengths)]
    mix = Mix(orders, weights, seed=3, stop="all")
    assert mix.length is not None
    found = mix.locate(np.arange(mix.length), epoch)
    assert found.sources is not None
    repeats = []
    for source, length in enumerate(lengths):
        own = found.indices[found.sources == source]
        times = np.bincount(own, minlength=length)
        assert times.min() >= 1
        repeats.append(times.max() > 1)
    assert not all(repeats)


@pytest.mark.parametrize("weights", [[3, 1], [7, 2, 1], [1281, 500, 3], [50_000, 49_999, 9]])
def test_every_cycle_is_exact_and_permuted_anew(weights: list[int]) -> None:
    mix = Mix([Repeat(Sequential(10)) for _ in weights], weights, stop="never")
    cycle = sum(weights)
    sources = sources_of(mix, 3 * cycle)
    counts = np.bincount(sources[:cycle], minlength=len(weights))
    slack = 0 if cycle <= WINDOW else WINDOW
    assert np.abs(counts - weights).max() <= slack
    other = sources_of(mix, 3 * cycle, epoch=1)
    assert sources.tolist() != other.tolist()
    if cycle > 8:
        assert sources[:cycle].tolist() != sources[cycle : 2 * cycle].tolist()


@pytest.mark.parametrize("weights", [[3, 1], [1, 1], [5, 3, 2], [500, 499], [1000, 30, 1]])
@pytest.mark.parametrize("world", [2, 4, 10, 64, 1024, 1031])
def test_no_stride_of_ranks_misses_a_source(weights: list[int], world: int) -> None:
    mix = Mix([Repeat(Sequential(10)) for _ in weights], weights, stop="never")
    share = np.array(weights) / sum(weights)
    count = 20_000
    for rank in (0, world - 1):
        found = Shard(mix, rank, world).locate(np.arange(count)).sources
        assert found is not None
        seen = np.bincount(found, minlength=len(weights)) / count
        deviation = np.abs(seen - share) / np.sqrt(share * (1 - share) / count)
        assert deviation.max() < 5


@law
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(0, 4))
def test_short_cycles_keep_the_order_of_each_source(weights: list[int], epoch: int) -> None:
    mix = Mix([Sequential(200) for _ in weights], weights, seed=1)
    assert sum(whole_weights(weights)) <= SHORT
    found = mix.locate(np.arange(mix.length or 0), epoch)
    for source in range(len(weights)):
        own = found.indices[found.sources == source]
        assert own.tolist() == list(range(own.size))


def test_a_source_that_starts_again_is_in_its_own_next_pass() -> None:
    short = Shuffled(Sequential(20), seed=0)
    mix = Mix([short, Sequential(100)], [1, 1], seed=1, stop="all")
    found = mix.locate(np.arange(mix.length or 0), epoch=2)
    own = found.indices[found.sources == 0].tolist()
    assert own[20:40] == short.locate(np.arange(20), 2 * 5 + 1).indices.tolist()


def test_nested_mixes_number_their_sources_on() -> None:
    inner = Mix([Sequential(50), Sequential(50)], [1, 1])
    mix = Mix([Sequential(50), inner, Sequential(50)], [1, 2, 1])
    assert mix.sources == 4
    assert set(sources_of(mix, 60).tolist()) == {0, 1, 2, 3}


def test_a_mix_may_be_shuffled() -> None:
    mix = Shuffled(Mix([Sequential(300), Sequential(100)], [3, 1]), seed=2)
    found = mix.locate(np.arange(mix.length or 0))
    assert found.sources is not None
    pairs = set(zip(found.sources.tolist(), found.indices.tolist(), strict=True))
    assert len(pairs) == mix.length


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="2 sources but 1 weights"):
        Mix([Sequential(1), Sequential(1)], [1])
    with pytest.raises(ValueError, match="above zero"):
        Mix([Sequential(1), Sequential(1)], [1, 0])
    with pytest.raises(ValueError, match="'first', 'all', 'never'"):
        Mix([Sequential(1)], [1], stop="last")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="source 1 is empty"):
        Mix([Sequential(1), Sequential(0)], [1, 1], stop="all")

"""States are JSON, name what differs, and go from any number of ranks to any other."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from time import perf_counter
from tracemalloc import get_traced_memory, start, stop

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.position.order import Epoch, Sequential, Shuffled
from nogil_loader.position.parse import StateMismatch
from nogil_loader.position.rest import LevelState, Rest, Wanted
from nogil_loader.position.shard import Shard
from nogil_loader.position.state import State, merge, merge_states
from tests.position.laws import SOAK, law

PRINTS = {"pipeline": ["from_files('a')", "shuffle(seed=1)", "batch(4)"], "data": "d1"}

idents = st.integers(0, 10**6) | st.lists(st.integers(0, 99), min_size=2, max_size=3).map(tuple)
jsons: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=5,
)
levels = st.builds(
    LevelState,
    unit=st.integers(0, 10**9),
    after=st.none() | idents,
    pending=st.lists(idents, max_size=4).map(tuple),
    memo=jsons,
    dropped=st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


def of_rank(rank: int, world: int, unit: int, **changes: object) -> State:
    state = State(PRINTS, 0, 2, 100, (LevelState(unit),), rank, world)
    return replace(state, **changes)  # type: ignore[arg-type]


@law
@given(
    st.builds(
        State,
        fingerprint=st.dictionaries(st.text(), st.text() | st.lists(st.text()), max_size=3),
        seed=st.integers(),
        epoch=st.integers(0, 99),
        length=st.none() | st.integers(0, 2**62),
        levels=st.lists(levels, max_size=3).map(tuple),
        rank=st.integers(0, 3),
        world=st.integers(4, 9),
        rest=st.builds(Rest, st.just(np.array([3, 5])), st.just(9), st.just({5: Wanted()})),
        beyond=st.lists(st.integers(0, 99), max_size=3).map(tuple),
        snapshot=st.none() | st.tuples(st.integers(0, 99), jsons),
    )
)
def test_a_state_survives_json(state: State) -> None:
    assert State.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_where_stages_are_one_to_one_a_state_is_a_few_numbers() -> None:
    state = State({"pipeline": "p", "data": "d"}, 0, 3, 1000, (LevelState(256),))
    assert state.to_json() == {
        "version": 1,
        "fingerprint": {"pipeline": "p", "data": "d"},
        "seed": 0,
        "epoch": 3,
        "length": 1000,
        "world": 1,
        "rank": 0,
        "levels": [{"unit": 256}],
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"data": "d2"}, "another data: it was 'd1' and is 'd2'"),
        (
            {"pipeline": ["from_files('a')", "shuffle(seed=2)", "batch(4)"]},
            r"another pipeline: shuffle\(seed=1\) is now shuffle\(seed=2\)",
        ),
        ({"pipeline": [*PRINTS["pipeline"], "filter(f)"]}, r"filter\(f\) is new"),
        ({"pipeline": PRINTS["pipeline"][:2]}, r"batch\(4\) is missing"),
        ({"tokenizer": "t"}, "another tokenizer: it was None and is 't'"),
    ],
)
def test_a_state_of_something_else_is_refused_naming_the_difference(
    change: dict[str, object], named: str
) -> None:
    state = State.from_json(of_rank(0, 1, 5).to_json())
    state.check(PRINTS)
    with pytest.raises(StateMismatch, match=named):
        state.check({**PRINTS, **change})  # type: ignore[dict-item]
    state.check({**PRINTS, **change}, allow_changes=True)  # type: ignore[dict-item]


def test_what_is_no_state_is_refused() -> None:
    good = of_rank(0, 2, 5).to_json()
    State.from_json(good)
    with pytest.raises(StateMismatch, match="version 99"):
        State.from_json({**good, "version": 99})
    with pytest.raises(StateMismatch, match="version None"):
        State.from_json({})
    for change in (
        {"seed": "x"},
        {"epoch": -1},
        {"world": None},
        {"levels": {}},
        {"levels": [3]},
        {"levels": [{"unit": 1.5}]},
        {"levels": [{"unit": 1, "pending": [[]]}]},
        {"fingerprint": {"a": 3}},
        {"fingerprint": None},
        {"snapshot": [1]},
        {"beyond": [True]},
        {"rest": 3},
    ):
        with pytest.raises(StateMismatch, match="not a state"):
            State.from_json({**good, **change})  # type: ignore[dict-item]


def test_the_same_rank_goes_on_from_its_own_state() -> None:
    level = LevelState(7, (7, 1), (3, (5, 0)), [0, 1], (2,))
    state = of_rank(1, 4, 0, levels=(level, LevelState(2)), beyond=(5,))
    resumed = state.resume(1, 4)
    assert (resumed.levels, resumed.beyond, resumed.rest) == (state.levels, (5,), Rest())


def test_another_rank_or_world_needs_all_states() -> None:
    with pytest.raises(StateMismatch, match=r"rank 1 of 4, and this is rank 0 of 2.*merge_states"):
        of_rank(1, 4, 7).resume(0, 2)
    with pytest.raises(StateMismatch, match="this is rank 0 of 4"):
        of_rank(1, 4, 7).resume(0, 4)


def test_a_run_of_one_rank_may_go_on_with_any_number() -> None:
    resumed = of_rank(0, 1, 7).resume(1, 3)
    assert resumed.levels == ()
    assert resumed.rest == Rest(tail=7)


def test_merging_refuses_what_does_not_belong_together() -> None:
    def refused(states: list[State], named: str) -> None:
        with pytest.raises(StateMismatch, match=named):
            merge_states([state.to_json() for state in states])

    three = [of_rank(rank, 3, 5) for rank in range(3)]
    refused([], "states of one run")
    refused(three[:2], "each of 3 ranks once: 2 missing")
    refused([*three, three[1]], "1 given twice")
    refused([of_rank(0, 1, 5), *three], r"worlds \[1, 3\]")
    refused([of_rank(r, 12, 5) for r in range(2)], "2, 3, 4, 5, 6 and 5 more missing")
    refused([of_rank(r, 7, 5) for r in range(2)], "2, 3, 4, 5, 6 missing")
    refused([*three[:2], of_rank(7, 3, 5)], "2 missing; 7 out of range")
    refused([*three[:2], of_rank(2, 3, 5, epoch=3)], "rank 2 has another epoch")
    refused([*three[:2], of_rank(2, 3, 5, rest=Rest(tail=4))], "rank 2 has another rest")
    refused([*three[:2], of_rank(2, 3, 5, fingerprint={"data": "d9"})], "another data")
    refused([*three[:2], of_rank(2, 3, 5, levels=())], "says of no level")
    refused([*three[:2], of_rank(2, 3, 5, beyond=(9,))], "out of order")
    cut = (LevelState(5), LevelState(2, (2, 3)))
    refused([*three[:2], of_rank(2, 3, 5, levels=cut)], "inside a batch")


def test_merging_is_idempotent_and_ignores_the_order_of_the_states() -> None:
    states = [of_rank(rank, 4, 5 + rank).to_json() for rank in range(4)]
    merged = merge_states(states)
    assert merge_states(states[::-1]) == merged == merge_states([merged])


def test_skips_are_summed_over_ranks_and_cuts() -> None:
    def dropped(rank: int, *counts: tuple[int, ...]) -> State:
        return of_rank(rank, 2, 5, levels=tuple(LevelState(5, dropped=each) for each in counts))

    once = merge([dropped(0, (1, 0), ()), dropped(1, (2, 5), (1,))])
    assert once.rest.dropped == ((3, 5), (1,))
    again = merge([replace(dropped(r, (1,)), rest=once.rest) for r in range(2)])
    assert again.rest.dropped == ((5, 5), (1,))


def test_a_stream_goes_on_from_the_last_snapshot_before_what_remains() -> None:
    places = [(0, "a"), (20, "b"), (10, "c"), None]
    states = [of_rank(r, 4, 4, snapshot=place) for r, place in enumerate(places)]
    assert merge(states).snapshot == (10, "c")
    assert merge([replace(state, snapshot=None) for state in states]).snapshot is None


def test_100_resumes_of_a_billion_samples_on_up_to_4096_ranks_stay_small_and_quick() -> None:
    """Worlds change at every cut and ranks are apart; sampled ranks see disjoint positions."""
    length, resumes = 10**9, 100 if SOAK else 6
    rng = np.random.default_rng(0)
    picks = random.Random(0)
    state = State({"data": "d"}, 0, 0, length, (LevelState(0),))
    order = Shuffled(Sequential(length), seed=1)
    seen: set[int] = set()
    before = length
    slowest = largest = 0.0
    start()
    for _ in range(resumes):
        world = picks.choice([4096, 4095, 1024, 3000, 8, 1])
        stops = 3_000_000 // world + rng.integers(0, 200, world)
        begin = perf_counter()
        rank = picks.randrange(world)
        resumed = state.resume(rank, world)
        shard = Epoch(Shard(resumed.rest.order(order), rank, world), 0)
        units = np.unique(np.concatenate([rng.integers(0, stops[rank], 50), [0]]))
        found = shard.locate(units)
        slowest = max(slowest, perf_counter() - begin)
        positions = set(found.positions.tolist())
        assert len(positions) == units.size
        assert not positions & seen
        seen |= positions
        ranks = [
            replace(
                state, levels=(LevelState(int(stops[r])),), rank=r, world=world, rest=resumed.rest
            )
            for r in range(world)
        ]
        state = State.from_json(json.loads(json.dumps(merge(ranks).to_json())))
        largest = max(largest, len(json.dumps(state.to_json())))
        left = state.rest.count(length)
        assert left is not None
        assert left == before - int(stops.sum())
        before = left
    peak = get_traced_memory()[1]
    stop()
    assert slowest < 0.5
    assert peak < 100_000_000
    assert largest < 1_000_000

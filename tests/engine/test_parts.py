"""Blocks, policies, timers and segments: the small parts of the core."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.engine.core.block import (
    AGAIN,
    SUBSTITUTE,
    Block,
    Failure,
    Ident,
    Pending,
    Skip,
    as_tuple,
    unit_of,
)
from nogil_loader.engine.core.level import Level
from nogil_loader.engine.core.policy import judge, scatter
from nogil_loader.engine.core.segment import Segment
from nogil_loader.engine.core.spec import LevelSpec, Policy, SegmentSpec
from nogil_loader.engine.core.timers import Timers


def block_of(counts: list[int], start: int = 10) -> Block:
    """Units from ``start`` on, with so many cells each."""
    ids: list[Ident] = [(start + n, k) for n, count in enumerate(counts) for k in range(count)]
    if all(count == 1 for count in counts):
        return Block(0, 0, start, len(counts), [as_tuple(start + n) for n in range(len(counts))])
    return Block(0, 0, start, len(counts), list(ids), ids)


units = st.lists(st.integers(0, 3), min_size=2, max_size=8)


@given(units, st.data())
def test_a_block_splits_between_units_and_merges_again(
    counts: list[int], data: st.DataObject
) -> None:
    whole, block = block_of(counts), block_of(counts)
    block.size = 7
    block.tries = {block.ident(0): 1} if block.cells else None
    at = data.draw(st.integers(block.start + 1, block.stop - 1))
    rest = block.split(at)
    assert (block.stop, rest.start, rest.stop) == (at, at, whole.stop)
    assert all(unit_of(block.ident(n)) < at for n in range(len(block.cells or ())))
    assert all(unit_of(rest.ident(n)) >= at for n in range(len(rest.cells or ())))
    assert block.size + rest.size == 7
    assert rest.tries == block.tries
    block.merge(rest)
    assert block.cells == whole.cells
    assert [block.ident(n) for n in range(len(whole.cells or ()))] == [
        whole.ident(n) for n in range(len(whole.cells or ()))
    ]
    assert (block.start, block.count, block.size) == (whole.start, whole.count, 7)


@given(units, st.data())
def test_a_failure_cuts_off_its_cell_and_all_behind_it(
    counts: list[int], data: st.DataObject
) -> None:
    block = block_of(counts)
    total = len(block.cells or ())
    if total == 0:
        return
    index = data.draw(st.integers(0, total - 1))
    ident = block.ident(index)
    block.out = list(range(total))
    block.skips = [Skip(0, block.ident(n), 0, ValueError()) for n in range(total) if n != index]
    block.truncate(index, Failure(0, ident, 0, ValueError()))
    assert len(block.cells or ()) == len(block.out) == index
    assert block.stop == unit_of(ident) + 1
    assert all(as_tuple(skip.ident) < as_tuple(ident) for skip in block.skips or ())


@given(units, st.data())
def test_scattered_parts_are_the_block_and_each_waits_for_its_own(
    counts: list[int], data: st.DataObject
) -> None:
    block = block_of(counts)
    total = len(block.cells or ())
    cells = list(block.cells or ())
    block.out = list(range(total))
    where = sorted(data.draw(st.sets(st.integers(0, max(0, total - 1)), max_size=total)))
    pending = [Pending(index, AGAIN, None) for index in where if index < total]
    wanted = [cells[entry.cell] for entry in pending]
    parts = scatter(block, pending)
    assert [cell for part in parts for cell in part.cells or ()] == cells
    assert [value for part in parts for value in part.out or ()] == list(range(total))
    got = [(part.cells or [])[entry.cell] for part in parts for entry in part.pending]
    assert got == wanted
    for one, other in pairwise(parts):
        assert one.stop == other.start
    assert all(part.count == 1 for part in parts if part.pending)


def test_a_policy_retries_then_decides_and_other_errors_are_raised() -> None:
    policy = Policy("skip", retries=1, backoff=lambda attempt: attempt * 2.0)
    block = block_of([1, 1, 1])
    block.out = [None] * 3
    pending, wait = judge(block, policy, [(1, ValueError())])
    assert ([entry.cell for entry in pending], wait) == ([1], 2.0)
    pending, _ = judge(block, policy, [(1, ValueError())])
    assert not pending
    assert [skip.ident for skip in block.skips or ()] == [11]
    assert block.cells == [(10,), (12,)]
    pending, _ = judge(block, policy, [(1, KeyboardInterrupt())])
    assert block.failure is not None
    assert block.failure.ident == 12


def test_substitutes_are_asked_for_and_undone_cells_stay_pending_behind_a_skip() -> None:
    block = block_of([1] * 4)
    block.out = [None] * 4
    error = ValueError()
    pending, _ = judge(block, Policy("substitute"), [(1, error)], [Pending(3, AGAIN, None)])
    assert pending == [Pending(1, SUBSTITUTE, error), Pending(3, AGAIN, None)]
    block = block_of([1] * 4)
    block.out = [None] * 4
    pending, _ = judge(block, Policy("skip"), [(1, error)], [Pending(3, AGAIN, None)])
    assert [entry.cell for entry in pending] == [2]


def test_timers_give_back_what_is_due_and_forget_what_was_settled() -> None:
    timers = Timers()
    one, two = block_of([1]), block_of([1])
    timers.add(5.0, one)
    timers.add(3.0, two)
    timers.add_once(4.0, two)
    assert timers.first() == 3.0
    assert not timers.due(2.9)
    assert timers.due(3.0)
    assert timers.pop(3.0) == [two]
    assert timers.pop(4.9) == []
    timers.forget(one)
    assert not timers
    assert timers.first() is None


@given(st.lists(st.tuples(st.sampled_from(["add", "once", "forget", "pop"]), st.integers(0, 4))))
def test_timers_are_a_list_in_order_of_time(calls: list[tuple[str, int]]) -> None:
    timers, entries = Timers(), [block_of([1]) for _ in range(3)]
    waiting: list[tuple[float, int]] = []
    for number, (call, value) in enumerate(calls):
        entry = number % 3
        if call == "pop":
            due = [which for when, which in sorted(waiting, key=_when) if when <= value]
            assert timers.due(value) == bool(due) if waiting else True
            assert timers.pop(value) == [entries[which] for which in due]
            waiting = [(when, which) for when, which in waiting if when > value]
        elif call == "forget":
            timers.forget(entries[entry])
            waiting = [(when, which) for when, which in waiting if which != entry]
        elif call == "add":
            timers.add(float(value), entries[entry])
            waiting.append((float(value), entry))
        else:
            timers.add_once(float(value), entries[entry])
            if entry not in [which for _, which in waiting]:
                waiting.append((float(value), entry))
        assert timers.first() == min([when for when, _ in waiting], default=None)
        assert len(timers.entries) == len(waiting)
        assert bool(timers) == bool(waiting)


def _when(item: tuple[float, int]) -> float:
    return item[0]


def segment(spec: SegmentSpec, block: int | None = None, threads: int = 1) -> Segment:
    return Segment(Level(0, LevelSpec(segments=(spec,)), None), spec, threads, block, 1e-3)


def test_a_segment_offers_the_lowest_block_merged_to_its_size() -> None:
    here = segment(SegmentSpec(0, 1), block=3)
    for start in (4, 1, 0, 2, 6):
        here.put(Block(0, 0, start, 1, [start]))
    assert (here.get().cells, here.get().cells, here.get().cells) == ([0, 1, 2], [4], [6])
    assert here.units == 0


def test_a_serial_segment_waits_for_the_unit_whose_turn_it_is() -> None:
    here = segment(SegmentSpec(0, 1, serial=True))
    here.put(Block(0, 0, 1, 1, ["later"]))
    assert not here.ready
    here.put(Block(0, 0, 0, 1, ["first"]))
    assert here.ready
    assert here.get().cells == ["first"]
    here.running = 1
    here.next = 1
    assert not here.ready


def test_futures_in_flight_and_workers_inside_count_towards_the_bound() -> None:
    here = segment(SegmentSpec(0, 1, in_flight=2))
    here.put(Block(0, 0, 0, 1, [0]))
    assert here.ready
    here.in_flight, here.running = 1, 1
    assert not here.ready
    assert not here.admits(0)


def test_block_size_follows_the_measured_time_and_grows_at_most_fourfold() -> None:
    here = segment(SegmentSpec(0, 1))
    assert here.size == 1
    here.observe(1, 1e-6)
    assert here.size == 4
    here.observe(4, 4e-6)
    assert here.size == 16
    for _ in range(20):
        here.observe(here.size, here.size * 0.1)
    assert here.size == 1


def test_a_hundred_cheap_samples_are_spread_over_blocking_threads() -> None:
    here = segment(SegmentSpec(0, 1, kind=1), threads=20)
    here.size = 64
    assert here.wanted(100) == 5
    assert here.wanted(3) == 1


def test_what_is_not_worth_a_block_of_its_own_is_not_split_among_blocking_threads() -> None:
    here = segment(SegmentSpec(0, 1, kind=1), threads=4)
    for _ in range(10):
        here.observe(100, 100 * 1e-6)
    assert 195 < here.wanted(400) < 205  # of a microsecond each: more than the 100 that are fair
    for _ in range(40):
        here.observe(100, 100 * 5e-3)
    assert here.wanted(4) == 1


@pytest.mark.parametrize("limit", [1, 3])
def test_a_limit_is_of_workers_inside(limit: int) -> None:
    here = segment(SegmentSpec(0, 1, limit=limit))
    here.put(Block(0, 0, 0, 1, [0]))
    here.running = limit - 1
    assert here.ready
    here.running = limit
    assert not here.ready

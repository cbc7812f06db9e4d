"""What is claimed, and in blocks of which size: nothing that was not read, and what is measured."""

from __future__ import annotations

import itertools
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.engine.core import (
    Core,
    CoreSpec,
    LevelSpec,
    OpSpec,
    Point,
    RunStart,
    SegmentSpec,
    Task,
)
from nogil_loader.engine.feed import Feed
from tests.position.laws import law


def core_of(rows: int | None, length: int | None, *, stream: bool, target: float = 8e-3) -> Core:
    level = LevelSpec((OpSpec("op"),), (SegmentSpec(0, 1),), rows=rows)
    levels = (level,) if rows is None else (level, LevelSpec())
    spec = CoreSpec(levels, workers=(2,), prefetch=4, group_size=rows or 1, target=target)
    return Core(spec, RunStart(length, stream=stream))


def finish(core: Core, task: Task, now: float) -> None:
    block = task.block
    assert block is not None
    block.cells, block.op = list(range(block.start, block.stop)), 1
    core.finish(task, now)


def consume(core: Core) -> int:
    """Take what there is; returns how many samples that were."""
    count = 0
    for delivery in core.deliveries:
        if not delivery.ended:
            count += delivery.weight
            core.credit(delivery.weight, delivery.size)
    core.deliveries.clear()
    return count


@law
@given(
    st.none() | st.integers(1, 7),
    st.none() | st.integers(1, 200),
    st.lists(st.integers(0, 40), max_size=12),
    st.booleans(),
)
def test_of_a_stream_what_was_read_is_claimed_and_no_more_and_all_of_it_delivered(
    rows: int | None, length: int | None, reads: list[int], slow: bool
) -> None:
    core = core_of(rows, length, stream=True)
    read = claimed = delivered = 0
    running = []
    for count in reads:
        read = min(read + count, read + count if length is None else length)
        core.arrived(read)
        while (task := core.take(0, 0.0)) is not None:
            assert task.block is not None
            claimed += task.block.count
            assert claimed <= read
            running.append(task)
            if not slow:
                finish(core, running.pop(), 0.0)
            delivered += consume(core)
        assert claimed == read or slow, "a block never waits to fill"
    core.end(read, 0.0)
    delivered += consume(core)
    while (task := running.pop() if running else core.take(0, 0.0)) is not None:
        finish(core, task, 0.0)
        delivered += consume(core)
    assert delivered == read
    assert core.spent()


@law
@given(
    st.none() | st.sampled_from([50, 1000]),
    st.sampled_from([1e-5, 3e-4, 2e-3, 0.1]),
    st.integers(0, 9),
)
def test_blocks_become_as_long_as_they_should_be_whatever_the_clock_says(
    rows: int | None, each: float, begun: int
) -> None:
    core = core_of(rows, 1_000_000, stream=False)
    now, counts = float(begun), []
    for _ in range(12):
        task = core.take(0, now)
        assert task is not None
        assert task.block is not None
        counts.append(task.block.count)
        now += each * task.block.count
        finish(core, task, now)
        consume(core)
    wanted = max(1, int(8e-3 / each))
    assert counts[0] == 1, "nothing is known yet"
    assert all(later <= 4 * one for one, later in itertools.pairwise(counts))
    assert 0.9 * wanted - 1 <= counts[-1] <= wanted + 1


def course(begin: int, batches: int, memory: int, sizes: list[int]) -> list[tuple[int, int]]:
    """What a run from some batch on claims, and what it is charged after each step."""
    first = 4 * begin
    levels = (LevelSpec((OpSpec("op"),), (SegmentSpec(0, 1),), rows=4), LevelSpec())
    core = Core(
        CoreSpec(levels, (2,), group_size=4, block=3, memory=memory),
        RunStart(first + 4 * batches, point=Point(begin, below=Point(first)) if begin else None),
    )
    steps, running = [], deque[Task]()
    for size in sizes * 10:
        while len(running) < 2 and (task := core.take(0, 0.0)) is not None:
            running.append(task)
        if not running:
            break
        task = running.popleft()
        block = task.block
        assert block is not None
        block.size, task.largest = size * block.count, size
        task.growth = [(slot, size * (end - at)) for slot, _, at, end in task.slots or ()]
        finish(core, task, 0.0)
        consume(core)
        steps.append((block.start - first, core.ahead.charged))
    return steps


@law
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 200),
    st.lists(st.integers(1, 20), min_size=1, max_size=9),
)
def test_where_a_run_begins_changes_nothing_of_what_it_may_hold(
    begin: int, batches: int, memory: int, sizes: list[int]
) -> None:
    there = course(begin, batches, memory, sizes)
    assert there == course(0, batches, memory, sizes)
    assert there


def test_in_completion_order_one_slow_unit_holds_up_nobody_for_64_windows() -> None:
    level = LevelSpec((OpSpec("op"),), (SegmentSpec(0, 1),))
    core = Core(CoreSpec((level,), (2,), prefetch=4, ordered=False, block=1), RunStart(10_000))
    slow = core.take(0, 0.0)
    assert slow is not None
    passed = 0
    while (task := core.take(0, 0.0)) is not None:
        finish(core, task, 0.0)
        consume(core)
        passed += 1
    window = 4 * 1 * 2  # blocks a worker, of a unit, for two workers
    assert passed == 64 * window - 1
    finish(core, slow, 0.0)
    assert core.take(0, 0.0) is not None


@law
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(0, 60), st.integers(0, 9))
def test_of_the_snapshots_those_are_kept_that_a_state_may_need(
    steps: list[int], unit: int, later: int
) -> None:
    feed = Feed.__new__(Feed)  # only what it remembers
    numbers = [sum(steps[:n]) - steps[0] for n in range(1, len(steps) + 1)]
    feed.snapshots = deque((number, f"before {number}") for number in numbers)
    before = feed.place(unit + later)
    feed.forget(unit)
    assert feed.place(unit + later) == before
    assert feed.snapshots[0] == feed.place(unit), "those before it no state will need"

"""What is claimed, and in blocks of which size: nothing that was not read, and what is measured."""

from __future__ import annotations

import itertools
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.engine.core import Core, CoreSpec, LevelSpec, OpSpec, RunStart, SegmentSpec, Task
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


def consume(core: Core) -> None:
    for delivery in core.deliveries:
        core.credit(delivery.weight, delivery.size)
    core.deliveries.clear()


@law
@given(
    st.none() | st.integers(1, 7),
    st.none() | st.integers(1, 200),
    st.lists(st.integers(0, 40), max_size=12),
)
def test_of_a_stream_what_was_read_is_claimed_and_no_more(
    rows: int | None, length: int | None, reads: list[int]
) -> None:
    core = core_of(rows, length, stream=True)
    read = claimed = 0
    for count in reads:
        read = min(read + count, read + count if length is None else length)
        core.arrived(read)
        while (task := core.take(0, 0.0)) is not None:
            assert task.block is not None
            claimed += task.block.count
            assert claimed <= read
            finish(core, task, 0.0)
            consume(core)
        assert claimed == read, "a block never waits to fill"


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

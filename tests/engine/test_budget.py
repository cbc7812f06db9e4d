"""The core by hand where bytes and times decide: what is let in, and when a group must close."""

from __future__ import annotations

import nogil_loader as nl
from nogil_loader import plan
from nogil_loader.engine.core import Core, CoreSpec, LevelSpec, OpSpec, RunStart, SegmentSpec, Task
from nogil_loader.position.grouping import Batches
from nogil_loader.position.order import Sequential


def core_of(chain: nl.Pipeline[object], length: int) -> Core:
    program = plan.compose(
        chain.chain,
        nl.from_sequence(range(length)).source.open(),
        Sequential(length),
        epoch=0,
        seed=0,
        ordered=True,
        rank=None,
    )
    return Core(program.core, RunStart(length))


def finish(core: Core, task: Task, size: int) -> None:
    """Every cell has become so many bytes; where rows are early they are kept in the batch."""
    block, segment = task.block, task.segment
    assert block is not None and segment is not None
    block.cells = list(range(block.start, block.stop))
    block.op = segment.spec.last
    block.size, task.largest = size * block.count, size
    task.growth = [(slot, size * (end - begin)) for slot, _, begin, end in task.slots or ()]
    core.finish(task, 0.0)


def take_all(core: Core, kind: int = 0) -> list[Task]:
    tasks = []
    while (task := core.take(kind, 0.0)) is not None:
        tasks.append(task)
    return tasks


def units(tasks: list[Task]) -> int:
    return sum(task.block.count for task in tasks if task.block is not None)


def test_while_nothing_is_known_no_more_is_let_in_than_there_are_threads() -> None:
    core = core_of(nl.from_sequence(range(40)).map(abs).workers(3).memory(100), 40)
    tasks = take_all(core)
    assert (len(tasks), units(tasks)) == (3, 3)
    finish(core, tasks.pop(0), 10)
    assert core.ahead.charged == 10
    more = take_all(core)
    assert units(more) == 9, "90 bytes are left, and two of unknown size are on their way"
    assert core.ahead.charged == 100
    finish(core, tasks.pop(0), 30)
    assert core.ahead.largest == 30
    assert core.ahead.charged == 130, "the two that began were not expected"
    assert take_all(core) == []


def test_a_unit_is_charged_as_the_largest_until_the_last_op_is_through_with_it() -> None:
    chain = nl.from_sequence(range(40)).map(abs, threads=2).map(abs).workers(1).memory(100)
    core = core_of(chain, 40)
    first, second, _ = take_all(core)  # to be read; then come threads of their own
    finish(core, first, 1)
    assert core.ahead.charged == 1
    (fetched,) = take_all(core, 1)
    finish(core, fetched, 1)
    assert not core.ahead.passed
    decoded = core.take(0, 0.0)
    assert decoded is not None
    finish(core, decoded, 20)
    assert core.ahead.passed
    assert (core.ahead.charged, core.ahead.largest) == (20, 20)
    finish(core, second, 1)
    assert core.ahead.charged == 40, "it may yet become as large"


def test_no_second_batch_is_begun_before_the_first_is_known_and_then_each_is_paid_at_once() -> None:
    core = core_of(nl.from_sequence(range(40)).map(abs).batch(4).workers(3).memory(100), 40)
    tasks = take_all(core)
    assert units(tasks) == 3
    finish(core, tasks.pop(), 10)
    tasks += take_all(core)
    assert units(tasks) == 3, "the fourth of the first batch, and none of the second"
    assert core.ahead.claimed == 4
    while tasks:
        assert core.ahead.batch is None
        finish(core, tasks.pop(), 10)
    assert core.ahead.batch == 40
    assert core.ahead.charged == 40
    tasks = take_all(core)
    # A batch of 40 and units of 10 each: the second batch and two of its samples fit.
    assert core.ahead.charged == 40 + 40 + 10 * units(tasks) == 100
    assert core.ahead.claimed == 6
    finish(core, tasks.pop(0), 10)
    assert core.ahead.charged == 40 + 40 + 10 * units(tasks), "its row was paid for"


def test_a_batch_that_turns_out_smaller_gives_back_what_was_kept_for_it() -> None:
    core = core_of(nl.from_sequence(range(8)).map(abs).batch(2).workers(1).memory(1000), 8)
    while len(core.deliveries) < 2:
        task = core.take(0, 0.0)
        assert task is not None and task.block is not None
        finish(core, task, 10 if task.block.start < 2 else 2)
    assert core.ahead.batch == 20
    assert core.ahead.charged == 20 + 4
    first, second = core.deliveries
    assert (first.size, second.size) == (20, 4)
    core.credit(first.weight, first.size)
    core.credit(second.weight, second.size)
    assert core.ahead.charged == 0


def waiting(max_wait: float) -> Core:
    """A stream of batches of four that wait so long at most."""
    below = LevelSpec(
        (OpSpec("a"),), (SegmentSpec(0, 1),), grouper=lambda: Batches(4), max_wait=max_wait
    )
    return Core(CoreSpec((below, LevelSpec()), block=2), RunStart(None, stream=True))


def test_a_group_closes_when_its_first_member_has_waited_long_enough_and_not_before() -> None:
    core = waiting(5.0)
    assert core.deadline() is None
    core.arrived(2)
    task = core.take(0, 10.0)
    assert task is not None and task.block is not None
    task.block.cells, task.block.op = ["a", "b"], 1
    core.finish(task, 11.0)
    assert core.deadline() == 16.0
    core.tick(15.9)
    assert not core.fills and core.take(0, 15.9) is None
    assert core.deadline() == 16.0
    core.tick(16.0)
    task = core.take(0, 16.0)
    assert task is not None and task.closed is not None
    assert task.closed.cells == ["a", "b"]
    assert core.deadline() is None


def test_a_group_that_was_full_in_time_leaves_nothing_to_close() -> None:
    core = waiting(5.0)
    core.arrived(4)
    for now in (10.0, 12.0):
        task = core.take(0, now)
        assert task is not None and task.block is not None
        task.block.cells, task.block.op = ["a", "b"], 1
        core.finish(task, now)
    task = core.take(0, 12.0)
    assert task is not None and task.closed is not None
    core.tick(15.0)
    assert core.take(0, 15.0) is None
    assert not core.fills

"""The scheduler finds what it is there for, before it is believed about anything else."""

from __future__ import annotations

import pytest

from nogil_loader.testing.scheduler import (
    Deadlock,
    Endless,
    Lock,
    SimpleQueue,
    World,
    explore,
    replay,
    wander,
)

HERE = (__file__,)


def lost_update(world: World) -> None:
    total = [0]

    def add() -> None:
        seen = total[0]
        total[0] = seen + 1

    world.spawn(add)
    world.spawn(add)
    world.join()
    assert total == [2]


def guarded_update(world: World) -> None:
    total, lock = [0], Lock(world)

    def add() -> None:
        with lock:
            seen = total[0]
            total[0] = seen + 1

    world.spawn(add)
    world.spawn(add)
    world.join()
    assert total == [2]


def lost_wakeup(world: World) -> None:
    """The sleeper looks, then parks; the message and its wake-up may come in between."""
    messages: list[int] = []
    parked: list[Lock] = []

    def sleeper() -> None:
        if not messages:
            lock = Lock(world)
            lock.acquire()
            parked.append(lock)
            lock.acquire()
        messages.pop()

    def sender() -> None:
        messages.append(1)
        if parked:
            parked.pop().release()

    world.spawn(sleeper)
    world.spawn(sender)
    world.join()


def double_delivery(world: World) -> None:
    """Two consumers look at the first item and take it away in two steps."""
    items, got = [1, 2], []

    def consume() -> None:
        first = items[0]
        items.remove(first)
        got.append(first)

    world.spawn(consume)
    world.spawn(consume)
    world.join()
    assert sorted(got) == [1, 2]


@pytest.mark.parametrize("bug", [lost_update, lost_wakeup, double_delivery])
def test_a_planted_bug_is_found_by_one_preemption_and_by_chance(bug: object) -> None:
    for search in (
        lambda: explore(bug, HERE, preemptions=1),  # type: ignore[arg-type]
        lambda: wander(bug, HERE, seed=1, runs=300, restless=0.2),  # type: ignore[arg-type]
    ):
        with pytest.raises((AssertionError, ValueError)) as caught:
            search()
        assert "replay" in " ".join(caught.value.__notes__)


def test_without_preemption_none_of_them_shows() -> None:
    for bug in (lost_update, lost_wakeup, double_delivery):
        told = explore(bug, HERE, preemptions=0)
        assert told.complete
        assert told.runs > 1


def test_what_is_right_is_right_in_every_run() -> None:
    told = explore(guarded_update, HERE, preemptions=1)
    assert told.complete
    assert told.runs > 10


def test_a_failing_run_can_be_repeated() -> None:
    with pytest.raises(Deadlock) as caught:
        explore(lost_wakeup, HERE, preemptions=1)
    note = caught.value.__notes__[-1]
    plan = [int(part) for part in note.split("[")[1].rstrip("])").split(",")]
    with pytest.raises(Deadlock, match="nobody can go on"):
        replay(lost_wakeup, HERE, plan)


def test_a_queue_gives_each_item_once_and_time_passes_only_when_nobody_can_go_on() -> None:
    def scenario(world: World) -> None:
        queue: SimpleQueue[int] = SimpleQueue(world)
        got: list[object] = []

        def consume() -> None:
            got.append(queue.get())

        world.spawn(consume)
        world.spawn(consume)
        queue.put(1)
        queue.put(2)
        world.join()
        assert sorted(got) == [1, 2]
        before = world.now
        assert not world.wait(lambda: False, timeout=5.0)
        assert world.now == before + 5.0

    assert explore(scenario, HERE, preemptions=1).complete


def test_a_loop_without_end_is_an_error() -> None:
    def scenario(world: World) -> None:
        while True:
            world.step()

    with pytest.raises(Endless):
        explore(scenario, HERE)

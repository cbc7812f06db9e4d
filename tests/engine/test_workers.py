"""The real threads' code under a deterministic scheduler: in the soak every interleaving with
one preemption of small runs, else the first eighty, and drawn ones with many."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nogil_loader as nl
from nogil_loader.engine import batches, feed, lease, run, workers
from nogil_loader.engine.run import Run
from nogil_loader.engine.workers import Engine, Worker
from nogil_loader.testing.scheduler import Deadlock, World, explore, stage, wander

SOAK = os.environ.get("NOGIL_LOADER_SOAK") == "1"
RUNS = 3000 if SOAK else 40
MODULES = (workers, feed, lease, run, batches)
FILES = tuple(str(Path(module.__file__ or "")) for module in (workers, feed, run))
"""Every line of these is a place where another thread may go on."""

Scenario = Callable[[World], None]


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_TRIES", 1)


def on_stage(body: Scenario) -> Scenario:
    """A scenario whose runs take their threads from the world."""

    @functools.wraps(body)
    def scenario(world: World) -> None:
        with stage(world, MODULES):
            body(world)

    return scenario


@on_stage
def a_whole_pass(world: World) -> None:
    chain = nl.from_sequence(range(3)).workers(2, block=1).prefetch(1)
    with chain.run() as run:
        assert list(run) == [0, 1, 2]


@on_stage
def batches_of_two(world: World) -> None:
    chain = nl.from_sequence(range(4)).batch(2).workers(2, block=1).prefetch(1)
    with chain.run() as run:
        assert [batch.tolist() for batch in run] == [[0, 1], [2, 3]]


@on_stage
def a_stream(world: World) -> None:
    chain = nl.from_iterable(Counting(3)).workers(1, block=1).prefetch(1)
    with chain.run() as run:
        assert list(run) == [0, 1, 2]


@on_stage
def two_kinds_of_threads(world: World) -> None:
    chain = nl.from_sequence(range(2)).map(str, threads=1).map(len).workers(1, block=1)
    with chain.run() as run:
        assert list(run) == [1, 1]


@on_stage
def a_failure(world: World) -> None:
    chain = nl.from_sequence(range(3)).map(third_fails).workers(2, block=1)
    got = []
    with chain.run() as run:
        try:
            for value in run:
                got.append(value)
        except LookupError:
            assert got == [0, 1]
        else:
            raise AssertionError("no error")


@on_stage
def an_early_close(world: World) -> None:
    run = nl.from_sequence(range(9)).workers(2, block=1).prefetch(1).run()
    assert next(run) == 0
    assert run.close()
    with pytest.raises(nl.RunClosed):
        next(run)


@on_stage
def closed_by_another_thread(world: World) -> None:
    run = nl.from_iterable(Counting(2)).workers(1, block=1).run()
    ends: list[str] = []

    def consume() -> None:
        got = []
        try:
            for value in run:
                got.append(value)
        except nl.RunClosed:
            ends.append("closed")
        else:
            assert got == [0, 1], "the close looked like the end"
            ends.append("whole")

    consumer = world.spawn(consume)
    run.close()
    world.join(consumer)
    assert len(ends) == 1


@on_stage
def two_consumers(world: World) -> None:
    run = nl.from_sequence(range(4)).workers(1, block=2).run()
    got: list[object] = []

    def consume() -> None:
        for value in run:
            got.append(value)

    consumers = [world.spawn(consume) for _ in range(2)]
    world.join(*consumers)
    run.close()
    assert sorted(got, key=str) == [0, 1, 2, 3]


@on_stage
def a_forgotten_run(world: World) -> None:
    run = nl.from_iterable(Counting(9)).workers(1, block=1).prefetch(1).run()
    assert next(run) == 0
    engine = run._engine
    del run
    world.wait(lambda: all(loop.done() for loop in engine.loops))


class Counting:
    """A stream that can be read again."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def third_fails(value: int) -> int:
    if value == 2:
        raise LookupError(value)
    return value


SCENARIOS = [
    a_whole_pass,
    batches_of_two,
    a_stream,
    two_kinds_of_threads,
    a_failure,
    an_early_close,
    closed_by_another_thread,
    two_consumers,
    a_forgotten_run,
]
by_name = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)


@by_name
@pytest.mark.timeout(1200 if SOAK else 120)
def test_every_run_with_one_preemption(scenario: Scenario) -> None:
    """Of each scenario there are 1,170 to 7,586: all of them in the soak."""
    told = explore(scenario, FILES, preemptions=1, runs=100_000 if SOAK else 2 * RUNS)
    assert told.complete or not SOAK


@by_name
def test_runs_drawn_by_a_seed(scenario: Scenario) -> None:
    wander(scenario, FILES, seed=7, runs=RUNS)


# It must find what it is there for ---------------------------------------------------------


def park_without_a_last_look(engine: Engine, worker: Worker) -> None:
    """What ``_park`` must not be: a message that came in before is missed."""
    worker.parked.lock.acquire()


def test_a_planted_lost_wakeup_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_park", park_without_a_last_look)
    with pytest.raises(Deadlock, match="nobody can go on"):
        wander(a_stream, FILES, seed=1, runs=2000)
        explore(a_stream, FILES, preemptions=1)


def fetch_twice(run: Run[object], timeout: float | None = None) -> object:
    """What ``next`` must not be: it looks at the first value, and then takes it away."""
    while True:
        if not run._ready:
            run._fetch(timeout)
            continue
        delivery, index = run._ready[0]
        value = delivery.values[index]
        run._ready.popleft()
        return value


def test_a_planted_double_delivery_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "next", fetch_twice)
    files = (*FILES, __file__)
    with pytest.raises((AssertionError, IndexError)):
        wander(two_consumers, files, seed=1, runs=2000, restless=0.2)

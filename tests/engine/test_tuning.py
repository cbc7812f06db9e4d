"""``threads="auto"``: enough threads soon, no more than help, and no to and fro."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nogil_loader as nl
from nogil_loader import plan
from nogil_loader.engine.core.tuning import Tuner
from nogil_loader.engine.program import Program
from nogil_loader.pipeline import Pipeline
from nogil_loader.position.order import Sequential
from tests.observe.simulation import Simulation, World

BOUND = 64
SOON = 5.0
"""Seconds in which a good number must be found."""


def feed(tuner: Tuner, seconds: float, rate: Callable[[int], float], starved: bool) -> float:
    """Let the stage run for so long at the rate that the number of threads gives."""
    now, end = 0.0, seconds
    while now < end:
        each = 1.0 / rate(tuner.gate)
        now += each
        tuner.finished(1, each * tuner.gate, starved, now)
    return now


def test_threads_are_added_while_they_help_up_to_the_bound() -> None:
    tuner = Tuner("f", BOUND)
    feed(tuner, 20.0, lambda gate: 20.0 * gate, starved=True)
    assert tuner.gate == BOUND
    assert len(tuner.changes) == 4
    assert tuner.changes[0] == "f: 4 -> 8 threads, as the consumer waits and all are busy"


def test_threads_that_do_not_help_are_taken_back_and_not_tried_again_soon() -> None:
    tuner = Tuner("f", BOUND)
    feed(tuner, 60.0, lambda gate: 20.0 * min(gate, 8), starved=True)
    assert tuner.gate == 8
    trials = [change for change in tuner.changes if "8 -> 16" in change]
    assert 1 <= len(trials) <= 3
    assert "were no gain" in tuner.changes[-1]


def test_threads_that_harm_are_taken_back() -> None:
    tuner = Tuner("f", BOUND)
    feed(tuner, 30.0, lambda gate: 20.0 * gate if gate <= 4 else 40.0, starved=True)
    assert tuner.gate == 4


def test_a_consumer_that_does_not_wait_gets_no_more_threads() -> None:
    tuner = Tuner("f", BOUND)
    feed(tuner, 10.0, lambda gate: 20.0 * gate, starved=False)
    assert (tuner.gate, tuner.changes) == (4, [])


def test_threads_that_are_half_used_stay() -> None:
    tuner = Tuner("f", BOUND)
    now = 0.0
    while now < 20.0:  # of four threads two are busy
        now += 0.01
        tuner.finished(1, 0.02, False, now)
    assert (tuner.gate, tuner.changes) == (4, [])


def test_threads_that_are_hardly_used_are_given_up_down_to_what_is_needed() -> None:
    tuner = Tuner("f", BOUND)
    tuner.gate = 32
    now = 0.0
    while now < 10.0:  # one call of 20 ms every 10 ms: two threads' worth
        now += 0.01
        tuner.finished(1, 0.02, False, now)
    assert 2 <= tuner.gate <= 5
    before = len(tuner.changes)
    while now < 60.0:
        now += 0.01
        tuner.finished(1, 0.02, False, now)
    assert len(tuner.changes) == before


@given(
    calls=st.lists(
        st.tuples(st.integers(1, 50), st.floats(1e-4, 1.0), st.booleans(), st.floats(0.0, 0.5)),
        max_size=300,
    ),
    bound=st.integers(1, 64),
)
def test_whatever_is_measured_the_number_stays_within_its_bounds(
    calls: list[tuple[int, float, bool, float]], bound: int
) -> None:
    tuner = Tuner("f", bound)
    now = 0.0
    for units, seconds, starved, pause in calls:
        now += pause
        before = tuner.gate
        changed = tuner.finished(units, seconds, starved, now)
        assert 1 <= tuner.gate <= bound
        assert changed == (tuner.gate != before)


# In the core, by simulation -------------------------------------------------------------


def program_of(data: Pipeline[object], length: int) -> Program:
    """What a run of so many samples would execute."""
    return plan.compose(
        data.chain,
        data.source.open(),
        Sequential(length),
        epoch=0,
        seed=0,
        ordered=True,
        rank=None,
    )


def simulate(latency: float, threads: int | str, rate: float, seconds: float) -> Simulation:
    """A blocking stage before a consumer that could take ``rate`` samples a second."""
    length = int(seconds * min(rate, BOUND / latency))
    data = nl.from_sequence(range(length))
    data = data.map(abs, name="fetch", threads=threads).batch(8).workers(2)
    program = program_of(data, length)
    costs = {"read": lambda unit: 0.0, "fetch": lambda unit: latency}
    simulation = Simulation(World(program.core, program.kinds, length, costs, 8 / rate))
    simulation.run()
    return simulation


def pace(simulation: Simulation, begin: float, end: float) -> float:
    """Samples a second that were taken between two times."""
    within = [(when, count) for when, count in simulation.taken if begin <= when <= end]
    (first, some), (last, all_of_them) = within[0], within[-1]
    return (all_of_them - some) / (last - first)


@pytest.mark.parametrize("latency", [0.005, 0.02, 0.05, 0.2])
@pytest.mark.parametrize("rate", [200.0, 1000.0])
def test_auto_comes_near_the_best_fixed_number_within_five_seconds_and_holds_it(
    latency: float, rate: float
) -> None:
    best = max(pace(simulate(latency, n, rate, 6.0), 2.0, 5.5) for n in (4, 16, BOUND))
    auto = simulate(latency, "auto", rate, 25.0)
    assert pace(auto, SOON, 12.0) >= 0.9 * best
    assert pace(auto, 12.0, 20.0) >= 0.9 * best
    (tuner,) = [s.tuner for s in auto.core.segments if s.tuner is not None]
    assert len(tuner.changes) <= 8


def test_unbalanced_cpu_stages_need_no_tuning() -> None:
    """1 ms and 9 ms on two cores: both are always busy, but for the first and last moment."""
    length = 4000
    data = nl.from_sequence(range(length)).map(abs, name="short").map(abs, name="long")
    data = data.batch(10).workers(2)
    program = program_of(data, length)
    costs = {"read": lambda unit: 0.0, "short": lambda unit: 0.001, "long": lambda unit: 0.009}
    counts = Simulation(World(program.core, program.kinds, length, costs)).run()
    assert counts.samples / counts.seconds >= 0.97 * 2 / 0.010


# On threads -----------------------------------------------------------------------------


def test_threads_are_hired_as_they_are_wanted_and_the_report_says_why() -> None:
    pause = threading.Event()
    inside: list[int] = []
    names: set[int] = set()

    def fetch(n: int) -> int:
        inside.append(n)
        names.add(threading.get_ident())
        pause.wait(0.02)
        return n

    with nl.from_sequence(range(1_000_000)).map(fetch, threads="auto").batch(8).run() as run:
        for batch in run:
            if len(names) > 4:
                break
            assert batch is not None
        report = run.report()
    assert "fetch: 4 -> 8 threads" in report.counts.changes[0]
    assert report.counts.changes[0] in str(report)
    assert report.counts.stages[1].rule == "auto"
    engine = run._engine
    wait(engine.loops)  # one that was hired last may have begun after the close
    there = [sum(slot.kind == kind for slot in engine.slots) for kind in range(2)]
    assert there == engine.hired, "threads that were hired, and no others, have come"
    (tuner,) = [s.tuner for s in engine.core.segments if s.tuner is not None]
    assert report.counts.crews[1].threads <= there[1] == run.report().counts.crews[1].threads
    assert there[1] >= tuner.gate

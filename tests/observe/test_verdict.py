"""The verdict names what limits a run: simulated runs of the real core, and real runs."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import nogil_loader as nl
from nogil_loader import runtime
from nogil_loader.observe.report import Report
from nogil_loader.observe.verdict import Verdict, judge
from tests.observe.scenarios import KINDS, scenario
from tests.observe.simulation import Simulation

SOAK = os.environ.get("NOGIL_LOADER_SOAK") == "1"
SCENARIOS = 2000 if SOAK else 60


@pytest.mark.timeout(3600 if SOAK else 120)
def test_simulated_bottlenecks_are_named_and_none_is_wrong_with_confidence() -> None:
    right: Counter[str] = Counter()
    sure = 0
    wrong: list[str] = []
    overconfident: list[str] = []
    for seed in range(SCENARIOS):
        known = scenario(seed)
        verdict = judge(Simulation(known.world).run())
        sure += verdict.sure
        if verdict.name == known.name:
            right[known.kind] += 1
            continue
        line = f"seed {seed}: {known.name} ({known.kind}), not {verdict.name}: {known.pipeline}"
        (overconfident if verdict.sure else wrong).append(line)
    assert not overconfident, "\n".join(overconfident)
    assert right.total() >= 0.95 * SCENARIOS, "\n".join(wrong)
    assert sure >= 0.8 * SCENARIOS, f"sure of only {sure}"


def test_the_ceiling_is_what_a_faster_consumer_gets() -> None:
    """The estimate made beside a slow consumer comes true with a consumer that takes no time."""
    checked = 0
    for seed in range(KINDS.index("consumer"), 10 * len(KINDS), len(KINDS)):
        known = scenario(seed)
        counts = Simulation(known.world.without_consumer()).run()
        if counts.seconds == 0.0:
            continue  # nothing but a consumer in it
        fast = counts.samples / counts.seconds
        ceiling = judge(Simulation(known.world).run()).ceiling
        assert ceiling is not None
        assert 0.7 * fast <= ceiling <= 1.4 * fast, known.pipeline
        checked += 1
    assert checked >= 6


# Real runs, on threads ------------------------------------------------------------------


def compute(seconds: float) -> None:
    """Keep a core busy for so long, as Python code: however many others want the core."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def wait(seconds: float) -> None:
    """Take so long without a core, as a disk or a network does."""
    threading.Event().wait(seconds)


def heavy(n: int) -> int:
    compute(0.004)
    return n


def light(n: int) -> int:
    compute(0.0002)
    return n


def fetch(n: int) -> int:
    wait(0.008)
    return n


def straggle(n: int) -> int:
    wait(0.4 if n % 60 == 30 else 0.002)
    return n


def slowly() -> Iterator[int]:
    for n in range(300):
        wait(0.003)
        yield n


def run(pipeline: nl.Pipeline[object], work: float = 0.0) -> Report:
    with pipeline.run() as batches:
        for _ in batches:
            if work:
                wait(work)
        report = batches.report()
    assert str(report).splitlines()[-1].startswith(f"bottleneck: {report.verdict.name}")
    return report


def test_a_costly_op_on_the_shared_workers() -> None:
    data = nl.from_sequence(range(200)).map(light).map(heavy).batch(8).workers(2)
    verdict = run(data).verdict
    takes_turns = runtime.gil_enabled() and verdict.name == "GIL"
    assert verdict.name == "heavy" or takes_turns


def test_a_stage_with_too_few_threads_of_its_own() -> None:
    verdict = run(nl.from_sequence(range(300)).map(fetch, threads=2).map(light).batch(8)).verdict
    assert (verdict.name, verdict.kind) == ("fetch", "crew")


def test_a_serial_op() -> None:
    data = nl.from_sequence(range(200)).map(fetch, serial=True).map(light).batch(8).workers(2)
    verdict = run(data).verdict
    assert (verdict.name, verdict.kind) == ("fetch", "serial")


def test_a_slow_consumer() -> None:
    report = run(nl.from_sequence(range(240)).map(light).batch(8).workers(2), work=0.03)
    assert report.verdict.name == "consumer"
    assert report.stall < 0.2


def test_a_slow_stream() -> None:
    verdict = run(nl.from_iterable(slowly).map(light).batch(8).workers(2)).verdict
    assert verdict.name == "source"


def test_single_slow_samples() -> None:
    data = nl.from_sequence(range(480)).map(straggle).batch(4).workers(4)
    verdict = run(data).verdict
    assert (verdict.name, verdict.kind) == ("straggle", "straggler")


@pytest.mark.skipif(not runtime.gil_enabled(), reason="there is no GIL to take turns at")
def test_threads_that_take_turns_at_the_gil() -> None:
    if runtime.usable_cores() < 2:
        pytest.skip("one core takes turns without any GIL")
    report = run(nl.from_sequence(range(240)).map(heavy).batch(8).workers(4))
    cores = report.counts.machine.cpu / report.counts.seconds
    if cores < 0.75:  # other programs took what the GIL would have
        assert not report.verdict.sure
    else:
        assert report.verdict.name == "GIL"


# What only counts can show --------------------------------------------------------------


def test_nothing_is_said_before_anything_was_delivered() -> None:
    with nl.from_sequence(range(8)).map(light).batch(8).run() as batches:
        verdict = batches.report().verdict
        assert isinstance(verdict, Verdict)
        assert not verdict.sure

"""The report: a plain record, and a text whose last line names the bottleneck."""

from __future__ import annotations

import json
import sys
import threading
from time import perf_counter, process_time

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader.observe.counts import Counts
from nogil_loader.observe.report import Report

BAD = (3, 250, 251)


def fragile(n: int) -> int:
    if n in BAD:
        raise ValueError(f"{n} is broken")
    return n


def finished(pipeline: nl.Pipeline[object]) -> Report:
    with pipeline.run() as batches:
        for _ in batches:
            pass
    return batches.report()


def test_every_sample_is_counted_once_in_each_stage() -> None:
    data = nl.from_sequence(range(1000)).map(abs).map(hex, threads=3).map(len).batch(10)
    counts = finished(data).counts
    assert counts.ended
    assert (counts.samples, counts.consumer.batches) == (1000, 100)
    assert [(stage.name, stage.samples) for stage in counts.stages] == [
        ("read", 1000),
        ("abs", 1000),
        ("hex", 1000),
        ("len", 1000),
    ]


def test_skipped_samples_are_listed_with_their_place_reference_and_reason() -> None:
    data = nl.from_sequence(range(300)).map(fragile, on_error="skip").batch(10)
    counts = finished(data).counts
    fragile_stage = counts.stages[1]
    assert (fragile_stage.samples, fragile_stage.failures, fragile_stage.skipped) == (300, 3, 3)
    assert [(bad.position, bad.stage, bad.error) for bad in counts.quarantined] == [
        (n, "fragile", f"ValueError: {n} is broken") for n in BAD
    ]
    assert counts.quarantined[0].sample == "sequence[3]"


def test_positions_of_skipped_samples_are_those_of_the_shuffled_order() -> None:
    data = nl.from_sequence(range(300)).shuffle(seed=1)
    order = [int(n) for n in data]  # type: ignore[call-overload]
    counts = finished(data.map(fragile, on_error="skip").batch(10)).counts
    assert {order[bad.position] for bad in counts.quarantined} == set(BAD)
    assert [bad.position for bad in counts.quarantined] == sorted(order.index(n) for n in BAD)


def test_retries_are_failures_that_are_not_skips() -> None:
    tries: dict[int, int] = {}

    def flaky(n: int) -> int:
        tries[n] = tries[n] + 1 if n in tries else 1
        if n == 5 and tries[n] < 3:
            raise OSError("not yet")
        return n

    counts = finished(nl.from_sequence(range(20)).map(flaky, on_error=nl.Retry(3)).batch(5)).counts
    stage = counts.stages[1]
    assert (stage.samples, stage.failures, stage.skipped) == (22, 2, 0)


def test_the_time_of_every_thread_is_accounted_for() -> None:
    pause = threading.Event()

    def wait(n: int) -> int:
        pause.wait(0.002)
        return n

    data = nl.from_sequence(range(400)).map(wait, threads=4).map(wait).batch(8).workers(2)
    counts = finished(data).counts
    for crew in counts.crews:
        total = crew.busy + sum(crew.waits.values())
        assert total == pytest.approx(crew.threads * counts.seconds, rel=0.2)
        mine = sum(stage.busy for stage in counts.stages if stage.crew == crew.name)
        assert mine <= crew.busy * 1.05
    consumer = counts.consumer
    whole = consumer.first + consumer.stalled + consumer.worked
    assert whole == pytest.approx(counts.seconds, rel=0.05)


@pytest.mark.parametrize("kind", ["a stream", "indexed"])
def test_no_time_is_longer_than_it_took(kind: str) -> None:
    pause = threading.Event()
    data = (nl.from_iterable if kind == "a stream" else nl.from_sequence)(range(1_000_000))
    begun, cpu = perf_counter(), process_time()
    with data.map(abs).batch(8).workers(2).run() as run:
        for number in range(40):
            next(run)
            if number == 20:
                pause.wait(0.3)  # the reader has to wait, too
        between = run.report().counts
    counts = run.report().counts
    took, on_cores = perf_counter() - begun, process_time() - cpu
    for each in (between, counts):
        consumer, machine, stream = each.consumer, each.machine, each.stream
        assert 0.3 <= each.seconds <= took
        assert 0.0 < consumer.first <= took - 0.3
        assert 0.0 < consumer.waited <= took - 0.3
        assert 0.3 <= consumer.worked <= took
        assert 0.0 <= consumer.stalled <= took - 0.3
        assert 0.0 < machine.cpu <= on_cores
        assert (stream is not None) == (kind == "a stream")
        if stream is not None:
            assert stream.paused > 0.0
            assert stream.reading > 0.0
            assert stream.reading + stream.paused <= took
        for crew in each.crews:
            assert crew.busy + sum(crew.waits.values()) <= 1.01 * crew.threads * took


def test_a_slow_stage_is_timed_call_by_call_beside_a_quick_one() -> None:
    """Blocks of quick ops pass by untimed now and then; what they cost is made up for."""
    pause = threading.Event()
    spent: list[float] = []

    def wait(n: int) -> int:
        begun = perf_counter()
        pause.wait(0.02 if n % 10 == 0 else 0.002)
        spent.append(perf_counter() - begun)
        return n

    data = nl.from_sequence(range(300)).map(abs, threads=4).map(wait).batch(8).workers(2)
    stage = finished(data).counts.stages[2]
    assert 0.9 * sum(spent) <= stage.busy <= 1.5 * sum(spent)


def test_quantiles_bound_the_times_of_single_calls() -> None:
    pause = threading.Event()

    def wait(n: int) -> int:
        pause.wait(0.1 if n % 50 == 0 else 0.003)
        return n

    stage = finished(nl.from_sequence(range(100)).map(wait).batch(8).workers(2)).counts.stages[1]
    assert 0.003 <= stage.p50 < 0.1
    assert stage.p50 <= stage.p90 <= stage.p99 <= stage.slowest
    assert stage.slowest >= 0.1


def test_the_bytes_that_leave_each_stage_are_counted() -> None:
    def blank(n: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.zeros(n * 7919 % 2001, np.uint8)

    data = nl.from_sequence(range(3000)).map(blank).map(bytes, threads=2).map(len).batch(10)
    stages = {stage.name: stage for stage in finished(data).counts.stages}
    for name in ("blank", "bytes"):
        assert stages[name].bytes == pytest.approx(3_000_000, rel=0.25)
    assert stages["len"].bytes == pytest.approx(3000 * sys.getsizeof(1), rel=0.01)


def test_the_bytes_of_costly_samples_are_exact_and_a_long_list_costs_no_walk() -> None:
    pause = threading.Event()

    def load(n: int) -> dict[str, object]:
        pause.wait(0.002)
        return {"sound": np.zeros(n, np.float32), "words": ["word"] * 100_000}

    counts = finished(nl.from_sequence(range(50)).map(load).batch(5, collate=len)).counts
    assert counts.stages[1].bytes == sum(4 * n + 400_000 for n in range(50))


@pytest.mark.parametrize("late", [False, True], ids=["rows known at once", "rows known late"])
def test_the_way_of_a_batch_is_timed_from_its_first_sample_to_the_consumer(late: bool) -> None:
    pause = threading.Event()

    def wait(n: int) -> int:
        pause.wait(0.01)
        return n

    data = nl.from_sequence(range(120)).map(wait, threads=2).map(abs)
    if late:
        data = data.filter(lambda n: True)
    consumer = finished(data.batch(8)).counts.consumer
    # Eight samples of 10 ms on two threads, and the blocks that are waited for in between.
    assert 0.03 <= consumer.p50 <= consumer.p90 <= consumer.p99 <= 2.0
    assert consumer.ready < 1.0
    slow = data.batch(8).run()
    for _ in slow:
        pause.wait(0.1)
    assert slow.report().counts.consumer.ready >= 1.0
    assert slow.report().counts.consumer.p50 >= 0.1


def test_what_waits_before_a_stage_of_its_own_is_averaged() -> None:
    pause = threading.Event()

    def wait(n: int) -> int:
        pause.wait(0.004)
        return n

    stages = finished(nl.from_sequence(range(100)).map(abs).map(wait, threads=1).batch(4)).counts
    fills = {stage.name: stage.fill for stage in stages.stages}
    assert fills["wait"] >= 1.0
    assert fills["abs"] == 0.0


def test_the_record_goes_through_json() -> None:
    record = finished(nl.from_sequence(range(100)).map(abs).batch(10)).as_dict()
    assert json.loads(json.dumps(record)) == record
    counts = record["counts"]
    assert isinstance(counts, dict)
    assert counts["samples"] == 100


def test_the_text_ends_with_the_bottleneck_and_holds_every_stage() -> None:
    made = finished(
        nl.from_sequence(range(300)).map(fragile, on_error="skip").batch(10).map(len, name="count")
    )
    lines = str(made).splitlines()
    assert lines[-1].startswith(f"bottleneck: {made.verdict.name}")
    assert lines[0].startswith("run: ")
    for name in ("read", "fragile", "  count", "workers"):
        assert any(line.startswith(name + " ") for line in lines), name
    assert max(map(len, lines[:-1])) <= 100


def test_a_running_run_can_be_looked_at_from_another_thread() -> None:
    held = threading.Event()
    inside = threading.Event()

    def hold(n: int) -> int:
        if n == 40:
            inside.set()
            held.wait()
        return n

    seen: list[Counts] = []

    def look(batches: nl.Run[object]) -> None:
        inside.wait()
        seen.append(batches.report().counts)
        held.set()

    with nl.from_sequence(range(80)).map(hold).batch(8).workers(2).run() as batches:
        watcher = threading.Thread(target=look, args=(batches,))
        watcher.start()
        assert sum(1 for _ in batches) == 10
        watcher.join()
    assert not seen[0].ended
    assert seen[0].samples <= 40
    assert batches.report().counts.ended


def test_the_clock_of_a_report_stops_with_the_run() -> None:
    with nl.from_sequence(range(10)).batch(2).run() as batches:
        next(batches)
    first = batches.report()
    assert batches.report() == first
    assert not first.counts.ended
    assert first.counts.consumer.batches == 1


def test_a_thread_that_hangs_is_reported_with_its_stack() -> None:
    held = threading.Event()

    def hang_at_three(n: int) -> int:
        if n == 3:
            held.wait()
        return n

    data = nl.from_sequence(range(20)).map(hang_at_three, timeout=0.2, on_error="skip").batch(5)
    try:
        with data.run() as batches:
            assert sum(len(batch) for batch in batches) == 19  # type: ignore[arg-type]
            made = batches.report()
            held.set()
    finally:
        held.set()
    assert len(made.counts.abandoned) == 1
    assert "hang_at_three" in made.counts.abandoned[0]
    assert "abandoned: stage 'hang_at_three' took longer" in str(made)

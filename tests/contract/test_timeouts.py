"""Ops that take too long: their lease ends, and everything else goes on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

import nogil_loader as nl
from nogil_loader.testing.child import in_child


def notes(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


@in_child()
def test_an_op_over_its_timeout_is_replaced_and_its_block_mates_delivered() -> None:
    release = threading.Event()

    def op(value: int) -> int:
        if value in (3, 5, 11):
            release.wait(60)
        return value

    begun = time.monotonic()
    chain = nl.from_sequence(range(20)).map(op, timeout=0.2, on_error="skip")
    with chain.workers(4, block=10).run() as run:
        assert list(run) == [n for n in range(20) if n not in (3, 5, 11)]
        assert time.monotonic() - begun < 10
        release.set()
        assert run.close(timeout=10)


@in_child()
def test_the_error_has_the_sample_and_the_stack_of_the_thread_that_hangs() -> None:
    release = threading.Event()

    def hang(value: int) -> int:
        if value == 3:
            release.wait(60)
        return value

    got = []
    run = nl.from_sequence(range(9)).map(hang, timeout=0.2).workers(2, block=1).run()
    try:
        for value in run:
            got.append(value)
    except nl.StageTimeout as error:
        assert got == [0, 1, 2]
        assert "release.wait" in str(error) and "'hang'" in str(error)
        assert "sequence[3]" in notes(error)
    else:
        raise AssertionError("no error")
    release.set()
    assert run.close(timeout=10)


@in_child()
def test_when_a_hung_op_wakes_no_delivered_array_changes_and_nothing_of_it_appears() -> None:
    release = threading.Event()

    def op(value: int) -> np.ndarray:
        out = np.full(50, value)
        if value == 2:
            release.wait(60)
            out[:] = -1
        return out

    chain = nl.from_sequence(range(12)).map(op, timeout=0.2, on_error=lambda *_: np.full(50, 99))
    with chain.batch(4).workers(2, block=4).run() as run:
        batches = list(run)
        before = [batch.copy() for batch in batches]
        release.set()
        assert run.close(timeout=10)
    assert all(np.array_equal(one, two) for one, two in zip(before, batches, strict=True))
    assert [int(row[0]) for batch in batches for row in batch] == [0, 1, 99, *range(3, 12)]


@in_child()
def test_after_as_many_hung_threads_as_workers_the_run_fails_with_their_stacks() -> None:
    release = threading.Event()

    def op(value: int) -> int:
        release.wait(60)
        return value

    chain = nl.from_sequence(range(40)).map(op, timeout=0.1, on_error="skip").workers(2, block=1)
    run = chain.run()
    try:
        list(run)
    except nl.StageTimeout as error:
        assert "every worker hangs" in str(error)
        assert str(error).count("release.wait") >= 2
    else:
        raise AssertionError("no error")
    release.set()
    assert run.close(timeout=10)


@in_child()
def test_a_sample_is_not_charged_with_the_time_of_the_one_before() -> None:
    def op(value: int) -> int:
        time.sleep(0.1)
        return value

    chain = nl.from_sequence(range(12)).map(op, timeout=0.5).workers(2, block=6)
    assert list(chain) == list(range(12))


@in_child()
def test_a_retry_has_a_clock_of_its_own() -> None:
    release = threading.Event()
    calls: list[int] = []

    def op(value: int) -> int:
        calls.append(value)
        if value == 1 and calls.count(1) <= 2:
            release.wait(60)
        return value

    chain = nl.from_sequence(range(4)).map(op, timeout=0.2, on_error=nl.Retry(2))
    with chain.workers(4, block=4).run() as run:
        assert list(run) == [0, 1, 2, 3]
        release.set()
        assert run.close(timeout=10)
    assert calls.count(1) == 3


@in_child()
def test_a_replacement_starts_even_where_the_hosts_pool_is_full() -> None:
    release = threading.Event()

    def op(value: int) -> int:
        if value == 0:
            release.wait(60)
        return value

    with ThreadPoolExecutor(1) as host:
        chain = nl.from_sequence(range(5)).map(op, timeout=0.2, on_error="skip").workers(1)
        with chain.run(executor=host) as run:
            assert run.next(timeout=10) == 1
            assert list(run) == [2, 3, 4]
            release.set()


@in_child()
def test_a_future_that_does_not_settle_in_time_is_a_timeout() -> None:
    futures: list[Future[int]] = []

    def op(value: int) -> Future[int] | int:
        if value != 2:
            return value
        futures.append(Future())
        return futures[-1]

    chain = nl.from_sequence(range(6)).map(op, in_flight=2, timeout=0.2, on_error="skip")
    assert list(chain.workers(2)) == [0, 1, 3, 4, 5]
    futures[0].set_result(7)  # too late, and harmless

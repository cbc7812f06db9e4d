"""Ends: break, close, Ctrl-C, fork, interpreter exit, and what lives beside a run."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

import nogil_loader as nl
from nogil_loader.sources.queue import Queue_
from nogil_loader.sources.sequence import SequenceReader
from nogil_loader.testing.child import in_child


def eventually(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether it becomes true in time: for threads that end by themselves."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_epochs_that_nobody_ended_end_in_silence_with_the_interpreter() -> None:
    script = (
        "import nogil_loader as nl\n"
        "kept = {0: iter(nl.from_sequence(range(1000)).batch(10).workers(2).epochs(100))}\n"
        "for turns in kept.values():\n"
        "    print(len(next(iter(next(turns)))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("10\n", "")


def alone() -> bool:
    return threading.active_count() == 1


def slow(value: int) -> int:
    time.sleep(0.005)
    return value


class Opened:
    """A source that counts how often what it opened was closed."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    def open(self) -> SequenceReader:
        closed = self.closed

        class Reader(SequenceReader):
            def close(self) -> None:
                closed.append(1)

        return Reader(range(100))


@in_child()
def test_no_thread_and_no_reader_outlives_a_break_an_exception_or_a_whole_pass() -> None:
    source = Opened()
    for ways, end in enumerate(("break", "raise", "whole", "with"), 1):
        chain = nl.Pipeline(source).map(slow).batch(4).workers(3)
        try:
            if end == "with":
                with chain.run() as run:
                    next(run)
            else:
                for _ in chain:
                    if end == "break":
                        break
                    if end == "raise":
                        raise LookupError
        except LookupError:
            pass
        assert eventually(alone), (end, threading.enumerate())
        assert eventually(lambda ways=ways: len(source.closed) == ways), (end, source.closed)


@in_child()
def test_a_forgotten_run_closes_itself() -> None:
    run = nl.from_sequence(range(10**6)).map(slow).batch(4).workers(3).run()
    next(run)
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None
    assert eventually(alone), threading.enumerate()


@in_child()
def test_no_sample_outlives_its_run_and_idle_workers_hold_none() -> None:
    class Sample:
        pass

    alive: list[weakref.ref[Sample]] = []

    def make(value: int) -> Sample:
        sample = Sample()
        alive.append(weakref.ref(sample))
        return sample

    def living() -> int:
        gc.collect()
        return sum(ref() is not None for ref in alive)

    chain = nl.from_sequence(range(64)).map(make, threads=2).map(lambda s: s).workers(2)
    run = chain.run()
    last = None
    for last in run:
        del last
    assert eventually(lambda: living() <= 1), living()
    run.close()
    del run
    assert eventually(lambda: living() == 0), living()


@in_child()
def test_break_from_a_queue_that_never_fills_leaves_no_thread_blocked() -> None:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    waiting.put(1)
    for value in nl.Pipeline(Queue_(waiting)):
        assert value == 1
        break
    assert eventually(alone), threading.enumerate()


@in_child()
def test_an_exhausted_run_ends_its_threads_even_while_it_is_held() -> None:
    run = nl.from_iterable(itertools.count).filter(bool).take(3).run()
    assert list(run) == [1, 2, 3]
    assert eventually(alone), threading.enumerate()
    assert run.close()


@in_child()
def test_when_the_engine_fails_its_threads_end_though_nobody_asks_for_a_batch() -> None:
    for source in (nl.from_sequence(range(10**6)), nl.from_iterable(itertools.count())):
        with source.map(abs, threads=3).batch(2).workers(2).run() as run:
            next(run)
            run._engine.fail(LookupError("of its own"))
            assert not wait(run._engine.loops, 10).not_done
            with pytest.raises(LookupError, match="of its own"):
                while True:
                    next(run)


@in_child()
def test_close_is_idempotent_bounded_and_lets_running_ops_finish() -> None:
    begun: list[int] = []
    done: list[int] = []
    release = threading.Event()

    def op(value: int) -> int:
        begun.append(value)
        release.wait(30)
        done.append(value)
        return value

    run = nl.from_sequence(range(100)).map(op).workers(2, block=1).run()
    assert eventually(lambda: len(begun) == 2)
    before = time.monotonic()
    assert not run.close(timeout=0.2), "an op still runs"
    assert 0.15 < time.monotonic() - before < 2
    release.set()
    assert run.close(timeout=10)
    assert run.close()
    assert sorted(done) == [0, 1], "queued ops were started"
    try:
        next(run)
    except nl.RunClosed:
        pass
    else:
        raise AssertionError("a closed run went on")


@in_child()
def test_a_closed_run_hands_out_nothing_that_was_ready() -> None:
    run = nl.from_sequence(range(100)).batch(2).prefetch(8).run()
    next(run)
    time.sleep(0.1)
    assert run.close()
    for _ in range(2):
        try:
            next(run)
        except nl.RunClosed:
            continue
        raise AssertionError("a closed run went on")


@in_child()
def test_when_close_returns_every_thread_of_the_run_has_ended() -> None:
    before = set(threading.enumerate())
    chain = nl.from_sequence(range(100)).workers(4).map(abs).batch(4)
    for _ in range(200):
        run = chain.run()
        next(run)
        assert run.close()
        assert set(threading.enumerate()) == before
    epochs = chain.epochs(2)
    for epoch in epochs:
        next(epoch)
    assert set(threading.enumerate()) == before


@in_child()
def test_close_from_another_thread_wakes_whoever_waits_for_a_batch() -> None:
    blocked: queue.SimpleQueue[int] = queue.SimpleQueue()
    run = nl.Pipeline(Queue_(blocked)).run()
    ends: list[str] = []

    def consume() -> None:
        try:
            next(run)
        except nl.RunClosed:
            ends.append("closed")

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    time.sleep(0.1)
    closers = [threading.Thread(target=run.close) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in [*consumers, *closers]:
        thread.join(10)
        assert not thread.is_alive()
    assert ends == ["closed"] * 3


@in_child()
def test_close_from_inside_an_op_does_not_wait_for_itself() -> None:
    runs: list[nl.Run[object]] = []
    results: list[bool] = []
    known = threading.Event()

    def op(value: int) -> int:
        if value == 5:
            known.wait(10)
            results.append(runs[0].close())
        return value

    run = nl.from_sequence(range(100)).map(op, threads=1).run()
    runs.append(run)
    known.set()
    try:
        for _ in run:
            pass
    except nl.RunClosed:
        pass
    assert eventually(lambda: bool(results))
    assert results == [False]
    assert run.close(timeout=10)


@in_child()
def test_close_during_a_source_that_blocks_for_ever_is_bounded() -> None:
    release = threading.Event()

    def stream() -> Iterator[int]:
        yield 1
        release.wait(60)
        yield 2

    run = nl.from_iterable(stream).run()
    assert next(run) == 1
    before = time.monotonic()
    assert not run.close(timeout=0.2)
    assert time.monotonic() - before < 2
    release.set()
    assert run.close(timeout=10)


@in_child()
def test_next_that_times_out_loses_nothing() -> None:
    def op(value: int) -> int:
        time.sleep(0.05)
        return value

    got = []
    timeouts = 0
    with nl.from_sequence(range(12)).map(op).workers(1, block=1).run() as run:
        while len(got) < 12:
            try:
                got.append(run.next(timeout=0.01))
            except TimeoutError:
                timeouts += 1
    assert got == list(range(12))
    assert timeouts


@in_child()
def test_ctrl_c_in_the_consumer_is_raised_at_once_and_the_run_closes() -> None:
    blocked = threading.Event()
    times: list[float] = []

    def op(value: int) -> int:
        blocked.wait(0.3)
        return value

    def interrupt() -> None:
        time.sleep(0.1)
        times.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        with nl.from_sequence(range(100)).map(op).workers(2, block=1).run() as run:
            try:
                for _ in run:
                    pass
            finally:
                times.append(time.monotonic())
    except KeyboardInterrupt:
        assert times[1] - times[0] < 0.2
        assert time.monotonic() - times[0] < 2
        assert eventually(alone)
    else:
        raise AssertionError("Ctrl-C was lost")


@in_child()
def test_a_forked_child_gets_a_clear_error_and_the_parent_is_untouched() -> None:
    if sys.version_info >= (3, 12):
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)  # what fork itself says
    run = nl.from_sequence(range(40)).map(slow).batch(4).workers(2).run()
    first = next(run).tolist()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            next(run)
        except nl.ForkedRun as error:
            status = 0 if "child" in str(error) else 2
            run.close()
            del run
            gc.collect()
            if list(nl.from_sequence(range(3)).workers(1)) != [0, 1, 2]:
                status = 3
        finally:
            os._exit(status)
    rest = [n for batch in run for n in batch.tolist()]
    assert first + rest == list(range(40))
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


EXITS = {
    "idle": "run = nl.from_sequence(range(10**6)).batch(4).run(); next(run)",
    "hung op": (
        "run = nl.from_sequence(range(9)).map(lambda v: threading.Event().wait()).run(); "
        "time.sleep(.2)"
    ),
    "hung source": (
        "run = nl.from_iterable(lambda: iter(threading.Event().wait, 1)).run(); time.sleep(.2)"
    ),
    "uncaught": "run = nl.from_sequence(range(10**6)).batch(4).run(); next(run); 1 / 0",
}


@in_child(deadline=40)
def test_the_interpreter_exits_promptly_with_a_run_alive() -> None:
    for what, code in EXITS.items():
        script = (
            f"import sys, threading, time\nimport nogil_loader as nl\nmark = time.monotonic()\n"
            f"import atexit\natexit.register(lambda: None)\ntry:\n    {code}\n"
            f"finally:\n    print(time.time(), flush=True)\n"
        )
        child = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=20
        )
        took = time.time() - float(child.stdout.split()[0])
        assert took < 3, (what, took)
        assert child.returncode == (1 if what == "uncaught" else 0), child.stderr
        if what != "uncaught":
            assert child.stderr == "", child.stderr


@in_child()
def test_an_item_of_live_data_never_waits_for_its_block_to_fill() -> None:
    waiting: queue.SimpleQueue[object] = queue.SimpleQueue()
    with nl.Pipeline(Queue_(waiting)).map(lambda v: v).workers(2, block=64).run() as run:
        for value in range(5):
            waiting.put(value)
            assert run.next(timeout=5) == value


@in_child()
def test_max_wait_closes_a_short_batch_and_what_follows_has_a_clock_of_its_own() -> None:
    waiting: queue.SimpleQueue[object] = queue.SimpleQueue()
    with nl.Pipeline(Queue_(waiting)).batch(4, max_wait=0.2).workers(1, block=6).run() as run:
        for value in range(6):
            waiting.put(value)
        assert run.next(timeout=5).tolist() == [0, 1, 2, 3]
        begun = time.monotonic()
        assert run.next(timeout=5).tolist() == [4, 5]
        assert time.monotonic() - begun < 3
        waiting.put(6)
        assert run.next(timeout=5).tolist() == [6]
        waiting.put(None)
        assert list(run) == []


@in_child()
def test_off_the_main_thread_beside_a_running_event_loop_without_handlers_or_prints() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = list(logging.getLogger().handlers)

    def work() -> list[int]:
        with nl.from_sequence(range(30)).map(slow).batch(5).workers(2).run() as run:
            return [n for batch in run for n in batch.tolist()]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*(asyncio.to_thread(work) for _ in range(2)))

    assert asyncio.run(main()) == [list(range(30))] * 2
    assert {number: signal.getsignal(number) for number in before} == before
    assert logging.getLogger().handlers == handlers


@in_child()
def test_inside_an_event_loop_a_run_can_be_used_directly() -> None:
    async def main() -> list[int]:
        return list(nl.from_sequence(range(5)).workers(1))

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


@in_child()
def test_two_runs_at_once_and_a_pipeline_inside_an_op_of_another() -> None:
    inner = nl.from_sequence(range(4)).map(slow).workers(1)

    def total(value: int) -> int:
        return sum(inner) + value

    chain = nl.from_sequence(range(10)).map(total).workers(2)
    with chain.run() as one, chain.run() as two:
        pairs = list(zip(one, two, strict=True))
    assert pairs == [(6 + n, 6 + n) for n in range(10)]


@in_child()
def test_a_hosts_executor_does_the_work_and_is_left_as_it_was() -> None:
    names: set[str] = set()

    def op(value: int) -> int:
        names.add(threading.current_thread().name)
        return value

    with ThreadPoolExecutor(2, thread_name_prefix="host") as host:
        with nl.from_sequence(range(40)).map(op).batch(4).workers(4).run(executor=host) as run:
            assert [n for batch in run for n in batch.tolist()] == list(range(40))
        assert host.submit(pow, 2, 3).result(10) == 8
    assert all(name.startswith("host") for name in names), names


@in_child()
def test_ops_see_the_contextvars_of_whoever_started_the_run() -> None:
    user = contextvars.ContextVar("user", default="nobody")
    token = user.set("ada")
    chain = nl.from_sequence(range(6)).map(lambda value: (user.get(), user.set("eve"))[0])
    run = chain.workers(2).run()
    user.reset(token)
    assert set(run) <= {"ada", "eve"}
    assert user.get() == "nobody"


@in_child()
def test_a_generator_is_entered_by_one_thread_only() -> None:
    entered: set[int] = set()

    def stream() -> Iterator[int]:
        for value in range(200):
            entered.add(threading.get_ident())
            yield value

    assert list(nl.from_iterable(stream).map(slow).workers(4)) == list(range(200))
    assert len(entered) == 1


@in_child()
def test_an_iterator_is_closed_at_the_end_and_after_a_break() -> None:
    ends: list[str] = []

    def stream() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            ends.append("closed")

    assert len(list(nl.from_iterable(stream))) == 100
    for _ in nl.from_iterable(stream):
        break
    assert eventually(lambda: ends == ["closed", "closed"]), ends


@in_child()
def test_tiny_passes_start_and_end_without_a_race() -> None:
    for count in (0, 1, 2, 3):
        for _ in range(30):
            assert len(list(nl.from_sequence(range(count)).workers(4))) == count
    assert eventually(alone), threading.enumerate()

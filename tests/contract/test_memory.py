"""Bytes in flight stay within the budget, whatever the samples are."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import nogil_loader as nl
from nogil_loader.engine.core import Core
from nogil_loader.testing.child import in_child

MB = 1_000_000


class Live:
    """Counts bytes that were made and that the consumer has not taken."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made = self.taken = self.most = 0

    def make(self, size: int) -> None:
        with self.lock:
            self.made += size
            self.most = max(self.most, self.made - self.taken)

    def take(self, size: int) -> None:
        with self.lock:
            self.taken += size


def sizes(count: int, largest: int) -> list[int]:
    return np.random.default_rng(5).integers(largest // 20, largest, count).tolist()


STEPS = ("take", "finish", "credit", "settle", "expire", "tick", "arrived", "end")


class Watched:
    """What is accounted after each step of any core, and the most that ever was."""

    def __init__(self) -> None:
        self.most = self.steps = 0
        for name in STEPS:
            setattr(Core, name, self.watching(getattr(Core, name)))

    def watching(self, step: Callable[..., object]) -> Callable[..., object]:
        def watched(core: Core, *args: object) -> object:
            result = step(core, *args)  # under the lock of the run, as every step
            self.most = max(self.most, core.ahead.charged)
            self.steps += 1
            return result

        return watched


def at_random(number: int) -> bytes:
    """1 to 20 kB."""
    return bytes(1000 + (number * 7919) % 19_001)


def small(number: int) -> bytes:
    return number.to_bytes(4, "big")


def expand(small: bytes) -> bytes:
    return at_random(int.from_bytes(small, "big"))


@in_child(deadline=60)
def test_what_is_accounted_stays_within_the_bound_at_every_step() -> None:
    watched = Watched()
    budget, workers, threads, largest = 64_000, 4, 6, 20_000
    numbers = nl.from_sequence(range(1500)).shuffle(seed=1)
    for chain, crew in (
        (numbers.map(at_random), workers),
        (numbers.map(at_random).batch(2), workers),
        (numbers.map(at_random).map(len).batch(50), workers),
        (numbers.map(at_random).filter(len).batch(3), workers),
        (numbers.map(at_random).batch(2, collate=b"".join), workers),
        (numbers.map(at_random, threads=threads), workers + threads),
        (numbers.map(small, threads=threads).map(expand), workers + threads),
        (numbers.map(small, threads=threads).map(expand).batch(2), workers + threads),
        (numbers.map(small).map(expand, timeout=20).map(bytes, limit=2), workers),
        (nl.from_iterable(range(1500)).map(at_random), workers),
    ):
        watched.most = 0
        count = 0
        with chain.workers(workers).prefetch(200).memory(budget).run() as run:
            for _ in run:
                count += 1
                if count % 50 == 0:
                    time.sleep(0.002)
        assert watched.most <= budget + largest * crew, (watched.most, chain)
        assert watched.most, "nothing was accounted"
    assert watched.steps > 10_000


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@in_child(deadline=60)
def test_what_the_process_holds_is_what_is_accounted() -> None:
    # glibc keeps large blocks that were given back, and would be what is measured.
    assert ctypes.CDLL(None).mallopt(-3, 1 << 16) == 1  # M_MMAP_THRESHOLD
    budget, workers = 64 * MB, 4
    wanted = np.random.default_rng(1).integers(MB, 20 * MB, 150).tolist()

    def filled(size: int) -> np.ndarray:
        return np.full(size, 7, np.uint8)

    chain = nl.from_sequence(wanted).map(filled).workers(workers).prefetch(100).memory(budget)
    list(chain.take(4))
    base, most = resident(), 0
    with chain.run() as run:
        for array in run:
            assert array[-1] == 7
            most = max(most, resident() - base)
            time.sleep(0.002)
    assert most <= 1.25 * (budget + max(wanted) * workers), most / MB


@in_child()
def test_large_samples_stay_within_the_budget_and_the_largest_for_each_worker() -> None:
    live = Live()
    wanted = sizes(60, 4 * MB)

    def make(size: int) -> np.ndarray:
        live.make(size)
        return np.zeros(size, np.uint8)

    budget, workers = 12 * MB, 3
    chain = nl.from_sequence(wanted).map(make).workers(workers).prefetch(40).memory(budget)
    with chain.run() as run:
        for array, size in zip(run, wanted, strict=True):
            assert array.nbytes == size
            live.take(size)
            time.sleep(0.002)
    assert live.most <= budget + max(wanted) * (workers + 1), live.most / MB


@in_child()
def test_a_sample_larger_than_the_whole_budget_is_admitted_alone() -> None:
    chain = nl.from_sequence(range(8)).map(lambda n: np.zeros(3 * MB, np.uint8)).memory(MB)
    assert len(list(chain.workers(2))) == 8
    with chain.workers(1).run() as run:
        assert len(list(run)) == 8
        assert run.report().counts.memory.let_in == 7, "all but the first"
    assert len(list(chain.batch(2).workers(2))) == 4
    assert len(list(chain.filter(lambda array: True).batch(4).workers(2))) == 2


@in_child()
def test_a_stream_is_not_read_further_ahead_than_the_budget() -> None:
    live = Live()

    def stream() -> Iterator[np.ndarray]:
        for _ in range(60):
            live.make(2 * MB)
            yield np.zeros(2 * MB, np.uint8)

    with nl.from_iterable(stream).workers(2).memory(8 * MB).run() as run:
        for array in run:
            live.take(array.nbytes)
            time.sleep(0.002)
    assert live.made == 120 * MB
    assert live.most <= (8 + 2 * 4) * MB, live.most / MB


@in_child()
def test_a_filter_that_keeps_little_under_a_budget_does_not_stop() -> None:
    chain = nl.from_sequence(range(400)).map(lambda n: (n, bytes(MB // 4)))
    chain = chain.filter(lambda pair: pair[0] % 97 == 0).batch(2).memory(MB).workers(2)
    assert [batch[0].tolist() for batch in chain] == [[0, 97], [194, 291], [388]]


@in_child()
def test_nothing_stays_charged_when_everything_was_taken() -> None:
    """The budget is the same at the end of a long run as at its start."""
    source = nl.from_sequence(range(300)).map(lambda n: bytes(n % 7 * 1000 + 1))
    for chain in (
        source,
        source.batch(7),
        source.filter(lambda value: len(value) > 3000).batch(4),
        source.flat_map(lambda value: [value, value[:10]]).batch(5, collate=b"".join),
        source.map(len).batch(6).map(lambda batch: batch[:3]),
    ):
        with chain.workers(3, block=5).memory(50 * MB).run() as run:
            for _ in run:
                pass
            with run._engine.lock:  # its workers may be on their way out
                run._engine.collect(time.monotonic())
                assert run._engine.core.ahead.charged == 0, chain


@in_child()
def test_what_was_skipped_leaves_its_error_and_not_its_block() -> None:
    import gc

    class Sample:
        pass

    def make(value: int) -> Sample:
        return Sample()

    def fail(sample: Sample) -> Sample:
        if next(counter) % 10 == 3:
            held = [sample] * 2
            raise ValueError(len(held))
        return sample

    counter = iter(range(10**9))
    chain = nl.from_sequence(range(600)).map(make).map(fail, on_error="skip").workers(1, block=20)
    with chain.run() as run:
        for _ in run:
            pass
        skipped = run._engine.core.skipped
        assert len(skipped) == 60
        assert "in fail" in skipped[0].error.__notes__[0]
        gc.collect()
        alive = sum(isinstance(thing, Sample) for thing in gc.get_objects())
        assert alive <= 21, alive  # the last block may still be held

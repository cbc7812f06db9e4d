"""Bytes in flight stay within the budget, whatever the samples are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np

import nogil_loader as nl
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
        skipped = run._engine.core.source.skipped
        assert len(skipped) == 60
        assert "in fail" in skipped[0].error.__notes__[0]
        gc.collect()
        alive = sum(isinstance(thing, Sample) for thing in gc.get_objects())
        assert alive <= 21, alive  # the last block may still be held

"""The same work as a loop written by hand: what a loader without any cost would reach.

Three loops that a good programmer might write with threads and nothing else: no order, no
back-pressure, no errors by sample, no end but the last batch. The fastest is the ceiling that
the library is measured against; whoever finds a faster one replaces it.

Guarantees
- Each loop decodes every sample once and yields ``ceil(samples / batch)`` fresh batches.
- An exception in a thread comes out of the loop; a loop that is left early first lets its
  threads finish, so that none outlives it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, TypeVar

S = TypeVar("S")
B = TypeVar("B")


def as_it_is(batch: object) -> object:
    """Seals batches that need no sealing."""
    return batch


def nothing() -> None:
    """Closes a job that holds nothing open."""


@dataclass(frozen=True, slots=True)
class Job(Generic[S, B]):
    """What to do: ``put(batch, row, sample)`` into what ``new(rows)`` made, then ``seal`` it.

    ``close`` gives back what the job holds open, when no loop runs any more.
    """

    samples: Sequence[S]
    new: Callable[[int], B]
    put: Callable[[B, int, S], None]
    seal: Callable[[B], object]
    close: Callable[[], None] = nothing

    def run(self, loop: str, batch: int, workers: int) -> Iterator[object]:
        """One pass by the loop of that name."""
        return LOOPS[loop](self, batch, workers)


def by_batch(job: Job[S, B], batch: int, workers: int) -> Iterator[object]:
    """Threads on a shared counter of batches; each fills whole batches of its own."""
    total = len(job.samples)
    counter, lock, done = iter(range(0, total, batch)), threading.Lock(), _Done()

    def work() -> None:
        samples, new, put, seal = job.samples, job.new, job.put, job.seal
        while True:
            with lock:
                start = next(counter, None)
            if start is None:
                return
            rows = min(batch, total - start)
            target = new(rows)
            for row in range(rows):
                put(target, row, samples[start + row])
            done.put(seal(target))

    return done.collect(work, workers, -(-total // batch))


def by_stripe(job: Job[S, B], batch: int, workers: int) -> Iterator[object]:
    """No counter: thread t fills batches t, t + workers, … whatever the others do."""
    total = len(job.samples)
    firsts, done = SimpleQueue[int](), _Done()
    for number in range(workers):
        firsts.put(number * batch)

    def work() -> None:
        samples, new, put, seal = job.samples, job.new, job.put, job.seal
        for start in range(firsts.get(), total, batch * workers):
            rows = min(batch, total - start)
            target = new(rows)
            for row in range(rows):
                put(target, row, samples[start + row])
            done.put(seal(target))

    return done.collect(work, workers, -(-total // batch))


def by_sample(job: Job[S, B], batch: int, workers: int) -> Iterator[object]:
    """Threads on a shared counter of samples; all fill the rows of the same batch."""
    total = len(job.samples)
    counter, lock, done = iter(range(total)), threading.Lock(), _Done()
    targets: dict[int, B] = {}
    left = [min(batch, total - start) for start in range(0, total, batch)]

    def work() -> None:
        samples, new, put, seal = job.samples, job.new, job.put, job.seal
        while True:
            with lock:
                index = next(counter, None)
                if index is None:
                    return
                number, row = divmod(index, batch)
                if row == 0:
                    targets[number] = new(left[number])
                target = targets[number]
            put(target, row, samples[index])
            with lock:
                left[number] -= 1
                last = left[number] == 0
            if last:
                done.put(seal(targets.pop(number)))

    return done.collect(work, workers, len(left))


class _Done:
    """Finished batches, from threads to the one that consumes them."""

    def __init__(self) -> None:
        self._queue = SimpleQueue[object]()
        self.put = self._queue.put

    def collect(self, work: Callable[[], None], workers: int, count: int) -> Iterator[object]:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # it belongs to the consumer
                self._queue.put(error)

        threads = [threading.Thread(target=guarded, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(count):
                batch = self._queue.get()
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            for thread in threads:
                thread.join()


LOOPS = {"by_batch": by_batch, "by_sample": by_sample, "by_stripe": by_stripe}

"""Real threads, 1 to 32 of them: random op times, failures, breaks and closes.

Each case is drawn by a printed seed and held against a plain loop: a minute in all, an hour
with ``NOGIL_LOADER_SOAK=1``, and the same cases again with ``NOGIL_LOADER_SEED=…``. In a child
process, for a hang is a failure; with the GIL under a switch interval of a microsecond.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import pytest

import nogil_loader as nl
from nogil_loader.testing.child import in_child

SECONDS = 2400.0 if os.environ.get("NOGIL_LOADER_SOAK") == "1" else 40.0
"""Of drawn runs; half as many of runs that fail."""
PATIENCE = 30.0
DEADLINE = SECONDS + 100.0
long = pytest.mark.timeout(DEADLINE + 20.0)


class Broken(Exception):
    """Raised by the ops of these tests."""


def busy(value: int) -> int:
    """Takes from nothing to two milliseconds, asleep or at work, by what the value is."""
    kind = hash((value, "kind")) % 12
    if kind == 0:
        time.sleep((value % 7) * 0.0003)
    elif kind == 1:
        sum(range(value % 4000))
    return value


class Sometimes:
    """Fails for a share of the values, the first attempts or all of them."""

    def __init__(self, share: int, attempts: int) -> None:
        self.share = share
        self.attempts = attempts
        self.lock = threading.Lock()
        self.calls: dict[int, int] = {}

    def hits(self, value: int) -> bool:
        return value % self.share == self.share // 2

    def __call__(self, value: int) -> int:
        busy(value)
        if self.hits(value):
            with self.lock:
                calls = self.calls[value] = self.calls.get(value, 0) + 1
            if calls <= self.attempts:
                raise Broken(value)
        return value


def children(value: int) -> list[int]:
    return [value * 3 + number for number in range(value % 3)]


def even(value: int) -> bool:
    return value % 2 == 0


class Case:
    """A drawn chain, and what a plain loop makes of it."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        count = draw.choice([3, 50, 400, 1500])
        self.chain = nl.from_sequence(range(count))
        self.values = list(range(count))
        self.failure: int | None = None
        if draw.random() < 0.3:
            self.chain = nl.from_iterable(lambda: iter(range(count)))
        for _ in range(draw.randint(1, 3)):
            self.add()
        self.batch = draw.choice([None, 1, 4, 33])
        if self.batch is not None:
            self.chain = self.chain.batch(self.batch)
        workers = draw.choice([1, 2, 3, 8, 32])
        self.chain = self.chain.workers(workers, block=draw.choice([None, None, 1, 7]))
        self.chain = self.chain.prefetch(draw.choice([1, 2, 8]))
        if draw.random() < 0.3:
            self.chain = self.chain.memory(draw.choice([1, 2000, 1 << 20]))

    def add(self) -> None:
        draw = self.draw
        kind = draw.randrange(8)
        if kind == 0:
            self.chain = self.chain.filter(even)
            self.values = list(filter(even, self.values))
        elif kind == 1:
            self.chain = self.chain.flat_map(children)
            self.values = [child for value in self.values for child in children(value)]
        elif kind == 2:
            self.chain = self.chain.map(busy, threads=draw.choice([1, 4]))
        elif kind == 3:
            self.chain = self.chain.map(busy, serial=True)
        elif kind == 4:
            self.chain = self.chain.map(busy, limit=draw.randint(1, 3))
        elif kind == 5 and self.failure is None:
            op = Sometimes(11, 10**9)
            self.chain = self.chain.map(op, on_error="skip")
            self.values = [value for value in self.values if not op.hits(value)]
        elif kind == 6:
            backoff = draw.choice([0.0, 0.001])
            op = Sometimes(13, 2)
            self.chain = self.chain.map(op, on_error=nl.Retry(9, backoff=backoff), timeout=60)
        else:
            self.chain = self.chain.map(busy)

    def rows(self) -> list[int]:
        return self.values

    def play(self) -> None:
        how = self.draw.choice(["whole", "whole", "unordered", "break", "close", "forget"])
        stop = self.draw.randint(0, 20)
        got: list[int] = []
        begun = threading.active_count()
        run = self.chain.run(ordered=how != "unordered")
        try:
            while how in ("whole", "unordered") or len(got) < stop:
                value = run.next(timeout=PATIENCE)
                got.extend([value] if self.batch is None else value.tolist())
        except StopIteration:
            stop = len(self.values)
        if how == "close":
            closers = [threading.Thread(target=run.close) for _ in range(2)]
            for closer in closers:
                closer.start()
            for closer in closers:
                closer.join(PATIENCE)
        elif how != "forget":
            assert run.close(timeout=PATIENCE)
        del run
        if how == "unordered":
            assert sorted(got) == sorted(self.values)
        else:
            assert got == self.values[: len(got)]
            assert how != "whole" or len(got) == len(self.values)
        end = time.monotonic() + PATIENCE
        while threading.active_count() > begun:
            assert time.monotonic() < end, threading.enumerate()
            time.sleep(0.001)


def first_seed() -> int:
    """The seed to begin with, which is told; each further case has the next one."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        sys.setswitchinterval(1e-6)
    seed = int(os.environ.get("NOGIL_LOADER_SEED", random.randrange(1 << 30)))
    print(f"NOGIL_LOADER_SEED={seed}", flush=True)
    return seed


@long
@in_child(deadline=DEADLINE)
def test_thousands_of_drawn_runs_are_as_a_plain_loop_and_leave_no_thread() -> None:
    seed = first_seed()
    end = time.monotonic() + SECONDS
    played = 0
    while time.monotonic() < end or played < 10:
        case = Case(seed)
        try:
            case.play()
        except BaseException as error:
            error.add_note(f"NOGIL_LOADER_SEED={seed}: {case.chain!r}")
            raise
        seed += 1
        played += 1


@long
@in_child(deadline=DEADLINE)
def test_a_failure_surfaces_at_its_place_whatever_else_goes_on() -> None:
    seed = first_seed()
    end = time.monotonic() + SECONDS / 2
    while time.monotonic() < end:
        draw = random.Random(seed)
        count, at = draw.choice([20, 700]), draw.randrange(20)

        def op(value: int, at: int = at) -> int:
            busy(value)
            if value >= at:
                raise Broken(value)
            return value

        chain = nl.from_sequence(range(count)).map(busy, threads=draw.choice([1, 5])).map(op)
        chain = chain.workers(draw.choice([1, 4, 16]), block=draw.choice([None, 1, 9]))
        got = []
        run = chain.run()
        try:
            while True:
                got.append(run.next(timeout=PATIENCE))
        except Broken as error:
            assert error.args == (at,), f"seed {seed}"
        assert got == list(range(at)), f"seed {seed}"
        assert run.close(timeout=PATIENCE)
        seed += 1

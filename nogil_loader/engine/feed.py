"""Reading a stream: the one thread that enters the iterator.

Guarantees
- The iterator is entered by this thread only, in order, and closed by it at the end.
- A block never waits to fill: whatever has been read can be claimed at once.
- It reads ahead no further than the run's look-ahead, and then parks.
"""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from nogil_loader.engine.batches import sizeof
from nogil_loader.engine.core import Core, RunStart, Task
from nogil_loader.sources.base import JSON, StreamReader

if TYPE_CHECKING:
    from nogil_loader.engine.workers import Engine

_EVERY = 64
"""Samples between two snapshots of the stream."""
_LEAST = 64
"""Samples that are read ahead at least."""


class Feed:
    """See the top of this module.

    Resuming, ``passed`` samples are read and forgotten first. Where samples before the point
    waited in open groups at the cut, reading begins with the first of them, and of the others
    before the point only those that waited are kept.
    """

    def __init__(self, engine: Engine, reader: StreamReader, start: RunStart) -> None:
        self._engine = engine
        self._reader = reader
        self._samples: deque[object] = deque()
        source = engine.core.source
        self._passed = start.passed
        self._again = frozenset(source.stand_in.values())
        """Units before the point that are to be run again."""
        self._point = source.point.unit
        self._number = min(self._again, default=self._point) - start.passed
        """Samples of the stream before the next one to read."""
        self._ahead = max(_LEAST, 2 * engine.core.ahead.least)
        self._allowed = engine.core.ahead.claimed + self._ahead
        self._announced = self.count = engine.core.ahead.claimed
        """Units read so far: written by this thread alone."""
        self._error: BaseException | None = None
        self._ended = self._told = False
        self._paused = self._over = False
        self._waited = self._since = 0.0
        self.begun = monotonic()
        self.stopped: float | None = None
        """When the stream ended."""
        self._budget = engine.program.core.memory
        self._sizes: deque[int] = deque()
        """With a byte budget: of the samples that wait."""
        self._bytes_read = self._bytes_claimed = 0
        self._lock = threading.Lock()
        self._lock.acquire()
        self.snapshots: deque[tuple[int, JSON]] = deque()
        """(unit, where the stream was before it), oldest first."""

    def run(self) -> None:
        """Read until the end, an error, or the close of the run."""
        try:
            self._read()
        except BaseException as error:
            self._error = _outcome(error)
        finally:
            self.stopped = monotonic()
            self._ended = True
            self._engine.wake_any()
            self._reader.close()

    def _read(self) -> None:
        engine, samples = self._engine, self._samples
        kind = engine.core.head.spec.kind
        waiting = engine.parked[kind]
        snapshots = self._snapshot()
        first, again, point = self._number + self._passed, self._again, self._point
        for sample in self._reader:
            if self._over or engine.closing:
                return
            unit = self._number
            self._number = unit + 1
            if unit < point and (unit < first or unit not in again):
                continue
            # A sample in which the point lies may be wanted twice: for what waited, and for
            # what comes behind the point.
            for _ in range(2 if unit == point and unit in again else 1):
                if self._budget is not None:
                    size = sizeof(sample)
                    self._sizes.append(size)
                    self._bytes_read += size
                samples.append(sample)
                self.count += 1
            if snapshots and self._number % _EVERY == 0:
                self._snapshot()
            if waiting:
                engine.wake(kind)
            if self.full:
                self._pause()

    def _snapshot(self) -> bool:
        state = self._reader.snapshot()
        if state is None:
            return False
        self.snapshots.append((self._number, state))
        return True

    @property
    def full(self) -> bool:
        """Whether enough was read: the look-ahead, or (but for one sample) all bytes there are."""
        if self._budget is None:
            return self.count >= self._allowed
        held = self._bytes_read - self._bytes_claimed
        over = held + self._engine.core.ahead.charged > self._budget
        return self.count >= self._allowed or (over and len(self._samples) > 0)

    def _pause(self) -> None:
        """Wait for room. The flag goes up before the bound is looked at once more."""
        self._paused = True
        self._since = monotonic()
        while self.full and not (self._over or self._engine.closing):
            self._lock.acquire()
        self._paused = False
        self._waited += monotonic() - self._since

    def waited(self, now: float) -> float:
        """Seconds that the reader has waited for room, a wait that still goes on included."""
        return self._waited + (now - self._since if self._paused else 0.0)

    def wake(self) -> None:
        """Let a parked reader look again; from any thread, any number of times."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # somebody was first, and the reader has yet to take notice

    def stop(self) -> None:
        """Nothing more is wanted: make a blocked read return, where the stream can do that."""
        if not self._over:
            self._over = True
            self._reader.interrupt()
            self.wake()

    @property
    def news(self) -> bool:
        """Whether more was read, or the end reached, than the core knows."""
        return self.count > self._announced or (self._ended and not self._told)

    def announce(self, core: Core, now: float) -> None:
        """With the core's lock: tell it what has been read, and the reader what is wanted."""
        # Read before the count, which is final once it is set; and before the other flag, for
        # a stream that was cut off by the close of its run has not come to its end.
        ended = self._ended and not self._engine.closing
        count = self.count
        if count > self._announced:
            self._announced = count
            core.arrived(count)
        if ended and not self._told:
            self._told = True
            core.end(count, now, self._error)
        self._allowed = core.ahead.claimed + self._ahead
        if self._paused and count < self._allowed - self._ahead // 2 and not self.full:
            self.wake()

    def supply(self, task: Task) -> None:
        """With the core's lock: the samples for units that were just claimed."""
        block = task.block
        if block is None or block.level or block.cells is not None:
            return
        take = self._samples.popleft
        block.cells = [take() for _ in range(block.count)]
        if block.alone:
            block.ids = [block.first]
        if self._budget is not None:
            for _ in range(block.count):
                self._bytes_claimed += self._sizes.popleft()

    def place(self, unit: int) -> tuple[int, JSON] | None:
        """For a state: the last snapshot at or before the unit, if the stream takes any."""
        place: tuple[int, JSON] | None = None
        for number, snapshot in list(self.snapshots):
            if number > unit:
                break
            place = number, snapshot
        return place

    def forget(self, unit: int) -> None:
        """Snapshots that no state will need any more, with everything before ``unit`` taken."""
        while len(self.snapshots) > 1 and self.snapshots[1][0] <= unit:
            self.snapshots.popleft()


def _outcome(error: BaseException) -> BaseException:
    """A StopIteration out of ``iter()`` itself must not look like an early end."""
    if isinstance(error, StopIteration):
        wrong = RuntimeError("the source raised StopIteration")
        wrong.__cause__ = error
        return wrong
    return error

"""What the user holds: an iterator over batches, and the lifetime of their making.

Guarantees
- Every batch is handed out exactly once, however many threads share the run.
- An op's exception reaches the consumer as the object that was raised, after the batches
  before it; afterwards the run is closed.
- When the run is closed, exhausted, abandoned or forgotten, its threads end by themselves.
- A ``next`` that times out loses nothing.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from queue import Empty
from time import monotonic, process_time
from types import TracebackType
from typing import Generic, TypeAlias, TypeVar, cast

from nogil_loader import runtime
from nogil_loader.engine.core import Delivery, Failure, Point
from nogil_loader.engine.counting import count
from nogil_loader.engine.errors import ForkedRun, RunClosed
from nogil_loader.engine.ops import Final
from nogil_loader.engine.origin import Origin, Returned
from nogil_loader.engine.program import Places
from nogil_loader.engine.tracing import ConsumerLane
from nogil_loader.engine.workers import Engine, finished
from nogil_loader.observe.counts import ConsumerCount, MachineCount
from nogil_loader.observe.meters import OpCount, OpMeter
from nogil_loader.observe.report import Report
from nogil_loader.sources.base import JSON

T = TypeVar("T")
Place: TypeAlias = "tuple[Delivery, int]"
"""A value: which of a delivery."""

_GRACE = 5.0
"""Seconds that ``close`` waits for ops that are running."""
_PRUNE = 64
"""Values between two looks at what a stream has to remember."""
_HURRIED = 0.15
"""Seconds that the end of a ``with`` block waits for them after Ctrl-C."""
_AT_EXIT = 0.5
"""Seconds that the interpreter's exit waits for them."""


class Run(Generic[T]):
    """One pass over a pipeline, while it goes.

    An iterator and a context manager. Made by ``Pipeline.run``; use it in a ``with`` block,
    so that it is closed at once whatever happens in the body.
    """

    def __init__(self, engine: Engine, origin: Origin) -> None:
        self._engine = engine
        self._origin = origin
        ordered = engine.program.core.ordered and not origin.beyond
        self._returned = None if ordered else Returned(origin)
        self._transfer = engine.program.transfer
        self._agreed: Iterator[Place] | None = None
        self._pid = os.getpid()
        self._ready: deque[tuple[Delivery, int]] = deque()
        self._last: tuple[Delivery, int] | None = None
        self._over: BaseException | None = None
        self._ended = self._closed = False
        self.waited = 0.0
        """Seconds that the consumer has waited for batches."""
        self.yielded = 0
        """Batches (or samples, where nothing is batched) handed out so far."""
        self._samples = 0
        self._first: tuple[float, float] | None = None
        """When the first delivery came, and how long the consumer had waited for it."""
        self._asks = self._found = 0
        """Times that the consumer asked, and deliveries that were ready then, added up."""
        self._latency = OpMeter()
        """From source to consumer."""
        self._asked: float | None = None
        """When the consumer began to wait, while it does."""
        self._gone: tuple[float, float] | None = None
        """When the run ended or was closed, and the process's time on cores then."""
        self._cpu = process_time()
        self._lane = None if engine.trace is None else ConsumerLane(engine.trace)
        self._finalizer = weakref.finalize(self, _forget, engine, os.getpid())

    def __iter__(self) -> Run[T]:
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """The next batch.

        ``timeout``: seconds to wait; then ``TimeoutError``, and nothing is lost: the next call
        goes on waiting for the same batch. Raises ``StopIteration`` at the end, what an op
        raised when it is its turn, and ``RunClosed`` after that or after ``close``.
        """
        if os.getpid() != self._pid:
            raise ForkedRun(
                "this run belongs to the process that started it: run anew in the child"
            )
        here = self._take(timeout) if self._agreed is None else next(self._agreed)
        delivery, index = here
        values = delivery.values
        value = finished(values[index])
        values[index] = None  # the consumer's alone from here on
        self._last = here
        if self._returned is not None:
            self._returned.add(delivery, index)
        self.yielded += 1
        if self._engine.feed is not None and self.yielded % _PRUNE == 0:
            self._forget_snapshots()
        if self._transfer is not None:
            value = self._transfer.hand_over(value)
        return cast(T, value)

    def agree(self, on: Callable[[Iterator[Place]], Iterator[Place]]) -> None:
        """Before the first batch: hand out only what ``on`` lets through, in order."""
        self._agreed = on(_Places(self))

    def _take(self, timeout: float | None) -> Place:
        """The next value that was delivered, by its place."""
        ready = self._ready
        while True:
            if self._closed:
                raise RunClosed("the run was closed: start another") from self._over
            if not ready:
                self._fetch(timeout)
            try:
                return ready.popleft()
            except IndexError:
                continue  # another thread was faster

    def _fetch(self, timeout: float | None) -> None:
        """Wait for a delivery, and credit it at once: it is the consumer's now."""
        if self._ended:
            raise StopIteration
        engine = self._engine
        if self._over is not None or (engine.closing and engine.queue.empty()):
            raise RunClosed("the run was closed: start another") from self._over
        self._asks += 1
        self._found += engine.queue.qsize()
        begun = self._asked = monotonic()
        try:
            delivery = engine.queue.get(timeout=timeout)
        except Empty:
            raise TimeoutError(f"no batch within {timeout} s; nothing is lost, ask again") from None
        finally:
            self._asked = None
            self.waited += monotonic() - begun
        if delivery is None:
            if engine.closing:
                engine.queue.put(None)  # another thread may wait, too
                raise RunClosed("the run was closed: start another") from self._over
            return
        if delivery.ended:
            engine.queue.put(delivery)
            self._end(delivery)
            return
        now = monotonic()
        if self._first is None:
            self._first = now, self.waited
        self._samples += delivery.weight
        count = len(delivery.values)
        if delivery.since:
            self._latency.add(count, (now - delivery.since) * count, 0)
        if count == 0 and self._returned is not None:
            self._returned.pass_over(delivery)
        if self._lane is not None:
            self._lane.fetched(begun, now, count)
        if count == 1:
            self._ready.append((delivery, 0))
        else:
            self._ready.extend(zip(repeat(delivery, count), range(count), strict=True))
        engine.credit(delivery)

    def _end(self, delivery: Delivery) -> None:
        self._stop_clock()
        self._engine.write_trace()
        try:
            self._engine.write_skipped()
        except OSError as error:
            delivery.failure = Failure(-1, -1, -1, error)
        if delivery.failure is not None:
            self._fail(delivery.failure)
        self._ended = True
        raise StopIteration

    def _fail(self, failure: Failure) -> None:
        if self._over is not None:
            raise RunClosed("the run has failed: start another") from self._over
        error = failure.error
        if isinstance(error, Final):
            error = error.error
        self._over = error
        note = self._note(failure)
        if note and not any(note == old for old in getattr(error, "__notes__", ())):
            error.add_note(note)
        self._engine.abandon()
        raise error

    def _note(self, failure: Failure) -> str:
        """Stage, position and sample, for people."""
        if failure.level < 0:
            return ""
        program = self._engine.program
        ops = program.ops[failure.level]
        stage = ops[failure.op].name if 0 <= failure.op < len(ops) else "collate"
        if failure.op < 0 and failure.level == 0 and program.order is None:
            stage = "source"
        ident = failure.ident
        unit = ident if isinstance(ident, int) else ident[0]
        if failure.level:
            return f"in stage {stage!r}, batch {unit}"
        places = Places(program)
        return f"in stage {stage!r}, position {places.position(unit)}, sample {places.ref(unit)!s}"

    # Where it is ------------------------------------------------------------------------

    def state(self) -> dict[str, JSON]:
        """Where the value that was handed out last ends: JSON, some numbers.

        ``Pipeline.run(resume=state)`` goes on with the very next one; what was prefetched is
        not counted as delivered. Before the first value it is where the run began. Raises
        ``ValueError`` where there can be no state: with ``batch(max_wait=...)``, and with
        ``ordered=False`` and nothing batched.
        """
        last = self._last
        if self._returned is not None:
            point, beyond = self._returned.state()
        else:
            point, beyond = None if last is None else last[0].point(last[1]), ()
        return self._origin.state(point, beyond, self._snapshot(point))

    def _snapshot(self, point: Point | None) -> tuple[int, JSON] | None:
        """For a stream that can say where it is: the last snapshot before the point."""
        feed = self._engine.feed
        if feed is None:
            return None
        point = self._origin.point if point is None else point
        while point is not None and point.below is not None:
            point = point.below
        return feed.place(0 if point is None else point.begin)

    def _forget_snapshots(self) -> None:
        """A stream's snapshots before the oldest that a state could still need."""
        place = self._snapshot(self._last[0].point(self._last[1]) if self._last else None)
        if place is not None and self._engine.feed is not None:
            self._engine.feed.forget(place[0])

    # Where the time goes ----------------------------------------------------------------

    def report(self) -> Report:
        """Where the time went so far: a record, and as text a table with a verdict.

        May be called from any thread, while the run goes and after it. The last line of its
        text names the bottleneck.

        >>> import nogil_loader as nl
        >>> with nl.from_sequence(range(100)).batch(10).run() as run:
        ...     total = sum(batch.sum() for batch in run)
        >>> run.report().counts.samples
        100
        """
        now, cpu = self._gone or (monotonic(), process_time())
        asked = self._asked
        waited = self.waited + (0.0 if asked is None else max(0.0, now - asked))
        came, startup = self._first or (now, waited)
        stalled = max(0.0, waited - startup)
        worked = max(0.0, now - came - stalled)
        ready = self._found / max(1, self._asks)
        quantile = OpCount(histogram=tuple(self._latency.histogram)).quantile
        consumer = ConsumerCount(
            self.yielded, waited, came - self._engine.begun, stalled, worked, ready,
            quantile(0.5), quantile(0.9), quantile(0.99),
        )  # fmt: skip
        machine = MachineCount(runtime.usable_cores(), runtime.gil_enabled(), cpu - self._cpu)
        return Report.of(count(self._engine, consumer, machine, self._samples, self._ended, now))

    def _stop_clock(self) -> None:
        if self._gone is None:
            self._gone = monotonic(), process_time()

    # The end ----------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> bool:
        """Stop: ops that run finish, queued ones do not start, files and threads are let go.

        ``timeout``: seconds to wait for running ops (5 by default); they are never
        interrupted, and what they still return is discarded. Returns whether everything had
        stopped in time. Idempotent, and allowed from any thread, also from within an op
        (which does not wait for itself).
        """
        if os.getpid() != self._pid:
            return True
        self._closed = True
        self._stop_clock()
        self._finalizer.detach()
        gone = self._engine.stop(_GRACE if timeout is None else timeout)
        self._discard()
        self._engine.write_trace()
        if self._over is None:
            self._engine.write_skipped()
        return gone

    def _discard(self) -> None:
        """Let go of the batches that nobody asked for; whoever waits for one hears of it."""
        queue = self._engine.queue
        self._ready.clear()
        try:
            while True:
                queue.get_nowait()
        except Empty:
            queue.put(None)

    def __enter__(self) -> Run[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hurried = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close(_HURRIED if hurried else None)


class _Places:
    """What a run delivers, for whoever decides what of it is handed out."""

    def __init__(self, run: Run[T]) -> None:
        self._run = weakref.ref(run)

    def __iter__(self) -> _Places:
        return self

    def __next__(self) -> Place:
        run = self._run()
        if run is None:
            raise StopIteration
        return run._take(None)


def _forget(engine: Engine, pid: int) -> None:
    """The run is gone: signal, and only at the exit of the interpreter wait a moment."""
    if os.getpid() != pid:
        return
    if threading.main_thread().is_alive():
        engine.abandon()
    else:
        engine.stop(_AT_EXIT)
    engine.write_trace()

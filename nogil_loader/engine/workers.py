"""The threads of a run: take a task from the core, run it, give it back.

Guarantees
- Workers contain no decision about order, budget or failure; the core makes them all, under
  one lock that is touched once a block.
- An idle thread parks on a lock of its own and is woken by name: by whoever made work for
  it, or by the consumer. No wake-up is lost: a thread parks *before* it looks for messages a
  last time, and a message is left *before* its sender looks for a parked thread.
- The consumer runs no transition of the core. It takes from a queue, leaves a credit, and
  releases one parked thread.
- Nothing here keeps the user's ``Run`` alive.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from functools import partial
from queue import SimpleQueue
from time import monotonic, perf_counter, thread_time

from nogil_loader.engine.batches import BatchBuffer, sizeof, stack
from nogil_loader.engine.calls import let_go
from nogil_loader.engine.core import Block, Core, Delivery, RunStart, Task
from nogil_loader.engine.core.block import unit_of
from nogil_loader.engine.core.idle import idle_reason
from nogil_loader.engine.core.level import Closed, Slot
from nogil_loader.engine.core.segment import Segment
from nogil_loader.engine.core.task import Rows
from nogil_loader.engine.counting import quarantined
from nogil_loader.engine.feed import Feed
from nogil_loader.engine.lease import Keeper
from nogil_loader.engine.program import Places, Program, bind_steps
from nogil_loader.engine.steps import Slot as WorkerSlot
from nogil_loader.engine.steps import carry, course, hurry
from nogil_loader.engine.threads import Threads
from nogil_loader.engine.tracing import note, open_trace
from nogil_loader.observe.meters import WorkerMeter
from nogil_loader.observe.quarantine import QuarantineFile
from nogil_loader.sources.base import StreamReader

_TRIES = 200
"""Times that the core's lock is tried before the thread blocks on it; it is held for
microseconds, and a blocking acquire of a contended lock costs a trip to the kernel."""


_UNTIMED = 31
"""Short blocks that go by untimed between two timed ones."""
_QUICK = 1e-4
"""Seconds up to which a block is short."""


class Parked:
    """An idle thread: it holds on to ``lock``, which whoever wakes it releases."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()


class Engine:
    """The shared state of a run's threads."""

    def __init__(
        self,
        program: Program,
        start: RunStart,
        pool: Executor | None = None,
        host: Executor | None = None,
        exhausted: Callable[[], None] | None = None,
        trace: str | os.PathLike[str] | None = None,
        quarantine: str | os.PathLike[str] | None = None,
    ) -> None:
        self.program = program
        self.core = core = Core(program.core, start)
        self.trace = None if trace is None else open_trace(trace, core)
        self.quarantine = (
            None
            if quarantine is None
            else QuarantineFile(quarantine, partial(quarantined, core, program))
        )
        self.lock = threading.Lock()
        self.making = threading.Lock()
        """Held while the arrays of a batch are made."""
        self.queue: SimpleQueue[Delivery | None] = SimpleQueue()
        """Deliveries; None wakes a consumer that waits while the run closes."""
        self.credits: deque[tuple[int, int]] = deque()
        self.settled: deque[Task] = deque()
        self.parked: tuple[deque[Parked], ...] = tuple(deque() for _ in program.core.workers)
        self.closing = False
        self.own_pool = pool is None
        self.pool = Threads() if pool is None else pool
        self.host = host
        self.context = contextvars.copy_context()
        self.loops: list[Future[None]] = []
        self.meters: list[WorkerMeter] = []
        self.slots: list[WorkerSlot] = []
        self.begun = monotonic()
        self.exhausted = exhausted
        reader = program.reader
        self.feed = Feed(self, reader, start) if isinstance(reader, StreamReader) else None
        self.keeper = Keeper(self) if _needs_keeper(program) else None
        self.restless = self.feed is not None
        """Whether ``collect`` has more to look at than credits and settled futures."""
        self.weighs = program.core.memory is not None
        """Whether samples are weighed, for there is a byte budget."""
        self.watchful = (
            self.keeper is not None
            or exhausted is not None
            or quarantine is not None
            or _has_futures(program)
        )
        """Whether workers have more to look at between two blocks."""
        self.abandoned: list[str] = []
        self.hired = [0] * len(program.core.workers)
        """Threads by kind."""
        self.members = 1
        """Threads that are alive, and the one that starts them."""

    def start(self) -> None:
        """Start every thread."""
        with self.lock:
            self.hand_over()
        tuned = {s.spec.kind: s.tuner.gate for s in self.core.segments if s.tuner is not None}
        for kind, count in enumerate(self.program.core.workers):
            for _ in range(tuned[kind] if kind in tuned else count):
                self.hire(kind)
        if self.feed is not None:
            self._enlist(self.pool, self.feed.run)
        if self.keeper is not None:
            self._enlist(self.pool, self.keeper.run)
        self.leave()

    def hire(self, kind: int, *, replaces: bool = False) -> None:
        """One more thread of a kind. (The thread that it replaces hangs, and a host's pool may
        have no other.)"""
        host = self.host if kind == 0 and not replaces else None
        self.hired[kind] += not replaces
        self._employ(self.pool if host is None else host, kind)

    def _employ(self, pool: Executor, kind: int) -> None:
        self._enlist(pool, partial(_work, self, kind))

    def adapt(self) -> None:
        """``threads="auto"``: hire those that a stage may now have and does not."""
        with self.lock:
            self.core.retuned = False
            wanted = [
                (s.spec.kind, s.tuner.gate) for s in self.core.segments if s.tuner is not None
            ]
            missing = [kind for kind, gate in wanted for _ in range(gate - self.hired[kind])]
            for kind in missing:
                self.hired[kind] += 1
        for kind in missing:
            self._employ(self.pool, kind)

    def _enlist(self, pool: Executor, life: Callable[[], None]) -> None:
        """A thread that is waited for at the end; each lives in a context of its own."""
        with self.lock:
            self.members += 1
        self.loops.append(pool.submit(self.context.copy().run, self._live, life))

    def _live(self, life: Callable[[], None]) -> None:
        try:
            life()
            self.write_skipped()
        except BaseException as error:
            self.fail(error)
        finally:
            self.wake_all()
            self.leave()

    def leave(self) -> None:
        """A thread ends; the last one out gives back what the run held."""
        with self.lock:
            self.members -= 1
            last = self.members == 0
        if last:
            if self.quarantine is not None:
                self.quarantine.close()
            for keeper in self.program.keepers:
                keeper()
            if self.own_pool:
                self.pool.shutdown(wait=False)

    # Messages ---------------------------------------------------------------------------

    def acquire(self) -> None:
        """Take the core's lock, without a trip to the kernel where it is free soon."""
        acquire = self.lock.acquire
        for _ in range(_TRIES):
            if acquire(False):
                return
        acquire()

    def collect(self, now: float) -> None:
        """With the lock: tell the core what others left for it."""
        core = self.core
        credits, settled = self.credits, self.settled
        while credits:
            core.credit(*credits.popleft())
        while settled:
            core.settle(settled.popleft(), now)
        if self.feed is not None:
            self.feed.announce(core, now)
        if self.closing and not core.closing:
            core.close()
        if core.deliveries:
            self.hand_over()

    def hand_over(self) -> None:
        """With the lock: what was made goes to the consumer."""
        core = self.core
        for delivery in core.deliveries:
            self.queue.put(delivery)
        core.deliveries.clear()

    def furnish(self, rows: list[Rows]) -> None:
        """With the lock: a batch whose first rows are handed out gets its buffer."""
        for slot, _, _, _ in rows:
            if slot.buffer is None:
                slot.buffer = BatchBuffer(slot.rows, self.program.allocate, self.making)

    def messages(self) -> bool:
        """Whether somebody left something that ``collect`` would find."""
        if self.credits or self.settled:
            return True
        if self.closing and not self.core.closing:
            return True
        return self.feed is not None and self.feed.news

    def wake(self, kind: int) -> bool:
        """Release one parked thread of a kind: the one that has rested longest.

        On 3.13t what a thread made and another dropped is freed when its maker next runs.
        """
        try:
            sleeper = self.parked[kind].popleft()
        except IndexError:
            return False
        sleeper.lock.release()
        return True

    def wake_any(self) -> None:
        """Release one parked thread, whichever, to collect what was left."""
        for kind in range(len(self.parked)):
            if self.wake(kind):
                return

    def wake_all(self) -> None:
        """Release every parked thread."""
        for kind in range(len(self.parked)):
            while self.wake(kind):
                pass
        if self.keeper is not None:
            self.keeper.wake()
        if self.feed is not None:
            self.feed.wake()

    def credit(self, delivery: Delivery) -> None:
        """From the consumer: a delivery was taken."""
        self.credits.append((delivery.weight, delivery.size))
        self.wake_any()

    # The end ----------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """End the run with this error, whatever its order."""
        self.acquire()
        try:
            self.core.abort(error)
            self.hand_over()
        finally:
            self.lock.release()
        self.wake_all()

    def abandon(self) -> None:
        """Signal the end, from anywhere, without waiting or taking a lock."""
        self.closing = self.restless = True
        self.queue.put(None)
        self.wake_all()

    def write_skipped(self) -> None:
        """Add what was skipped since the last time to the file, if there is one."""
        if self.quarantine is not None and len(self.core.skipped) > self.quarantine.written:
            self.quarantine.write()

    def write_trace(self) -> None:
        """The run is over, as far as its consumer is concerned. Idempotent."""
        if self.trace is not None:
            self.trace.write()

    def stop(self, timeout: float | None) -> bool:
        """Signal the end and wait for the threads; whether they are all gone in time."""
        self.abandon()
        here = threading.get_ident()
        if any(slot.ident == here for slot in self.slots):
            return False
        if wait(self.loops, timeout).not_done:
            return False
        if self.own_pool:
            self.pool.shutdown()  # what their last frames hold is let go, too
        return True


def _needs_keeper(program: Program) -> bool:
    for level in program.core.levels:
        if level.max_wait is not None:
            return True
        for op in level.ops:
            if op.timeout is not None or (op.policy.retries and op.policy.backoff is not None):
                return True
    return False


def _has_futures(program: Program) -> bool:
    return any(op.future for ops in program.ops for op in ops)


class Worker:
    """One thread's own things: its bound ops, its places in the data, its counters."""

    __slots__ = ("courses", "engine", "kind", "meter", "parked", "places", "quick", "slot", "steps")

    def __init__(self, engine: Engine, kind: int) -> None:
        self.engine = engine
        self.kind = kind
        self.parked = Parked()
        self.places = Places(engine.program)
        self.steps = bind_steps(engine.program, self.places)
        self.slot = WorkerSlot(kind)
        self.courses = [
            course(segment.spec.first, self.steps[segment.level.number][part_of(segment)])
            if engine.program.core.memory is None  # else every block is measured
            else None
            for segment in engine.core.segments
        ]
        self.quick = False
        """Whether the last block took no longer than looking at the clock matters for."""
        self.meter = WorkerMeter(kind, map(len, engine.program.ops), monotonic())
        self.meter.untimed = [
            (segment.level.number, plain)
            for segment, plain in zip(engine.core.segments, self.courses, strict=True)
            if plain is not None
        ]
        engine.slots.append(self.slot)
        engine.meters.append(self.meter)


def part_of(segment: Segment) -> slice:
    """The ops of a segment among those of its level."""
    return slice(segment.spec.first, segment.spec.last)


def _work(engine: Engine, kind: int) -> None:
    """The life of a worker."""
    worker = Worker(engine, kind)
    try:
        _loop(engine, worker, kind)
    finally:
        worker.slot.ident = 0  # the next thread to begin may get this one's number
    if engine.feed is not None and engine.core.spent():
        engine.feed.stop()


def _loop(engine: Engine, worker: Worker, kind: int) -> None:
    core, lock, parked = engine.core, engine.lock, engine.parked
    credits, settled, meter = engine.credits, engine.settled, worker.meter
    acquire, release = lock.acquire, lock.release
    finish, take = core.finish, core.take
    kinds = range(len(parked))
    task: Task | None = None
    trace = engine.trace
    lane = None if trace is None else trace.lane(engine.program.kinds[kind])
    spent = thread_time()  # a thread that is kept warm has worked for other runs
    while True:
        now = monotonic()
        if lane is not None and trace is not None:
            note(trace, lane, task, meter, now)
        if task is None:
            meter.waited(now)
        else:
            worker.quick = now - meter.since < _QUICK
            meter.busy += now - meter.since
        meter.since = now
        if not worker.quick:
            meter.cpu = thread_time() - spent
        if not acquire(False):
            engine.acquire()
        try:
            if task is not None:
                if task.revoked:
                    return  # it took too long, and somebody else has this thread's place
                finish(task, now)
            if credits or settled or engine.restless:
                engine.collect(now)
            following = take(kind, now)
            if following is not None:
                slots = following.slots
                if slots is not None and (len(slots) > 1 or slots[0][0].buffer is None):
                    engine.furnish(slots)
                if engine.feed is not None:
                    engine.feed.supply(following)
            if core.deliveries:
                engine.hand_over()
            wakes = [other for other in kinds if parked[other] and core.can(other)]
            if following is None:
                meter.reason = idle_reason(core, kind)
                if core.spent():
                    return
                parked[kind].append(worker.parked)
        finally:
            release()
        for other in wakes:
            engine.wake(other)
        if core.retuned:
            engine.adapt()
        if engine.watchful:
            _look_around(engine, task)
        task = following
        if task is None:
            _park(engine, worker)
        else:
            _run(engine, worker, task)


def _look_around(engine: Engine, task: Task | None) -> None:
    """Between two blocks, where futures, times or a following epoch are at stake."""
    if task is not None and task.futures and task.block is not None:
        _watch(engine, task, task.block.out or [])
    if engine.keeper is not None:
        engine.keeper.nudge()
    engine.write_skipped()
    if engine.exhausted is not None and engine.core.ahead.exhausted:
        _begin_next(engine)


def _begin_next(engine: Engine) -> None:
    exhausted, engine.exhausted = engine.exhausted, None
    if exhausted is not None:
        exhausted()


def _park(engine: Engine, worker: Worker) -> None:
    """Wait to be woken, unless a message came in while nobody was seen to be parked."""
    if engine.messages():
        try:
            engine.parked[worker.kind].remove(worker.parked)
        except ValueError:
            worker.parked.lock.acquire()  # already being woken
        return
    worker.parked.lock.acquire()


def _run(engine: Engine, worker: Worker, task: Task) -> None:
    if task.closed is not None:
        _collate(engine, worker, task, task.closed)
        return
    block, segment = task.block, task.segment
    assert block is not None and segment is not None
    if block.level and block.op == 0 and block.cells and block.out is None:
        block.cells = [finished(cell) for cell in block.cells]
    plain = worker.courses[segment.number]
    if plain is not None and block.op == plain.first and block.out is None and not block.alone:
        short = worker.quick and segment.estimate * block.count < _QUICK
        if short and plain.passed < _UNTIMED:
            hurry(task, block, plain)
            if task.failed:
                worker.meter.ops[block.level][block.op].failures += len(task.failed)
                _forgive(task, block, segment)
            elif task.slots is not None:
                _write_rows(engine, task, task.slots, block)
            return
        plain.make_up(worker.meter.ops[block.level])
    last = segment.spec.last
    carry(
        task,
        block,
        last,
        worker.steps[block.level],
        worker.places,
        worker.slot,
        worker.meter.ops[block.level],
    )
    if task.revoked:
        return
    if task.failed:
        _forgive(task, block, segment)
    if engine.weighs:
        _weigh(task, block)
    if task.slots and block.op == last and not task.failed and not task.futures:
        _write_rows(engine, task, task.slots, block)


def _forgive(task: Task, block: Block, segment: Segment) -> None:
    """Skipped samples go, and only their errors stay."""
    if segment.level.spec.ops[block.op].policy.then == "skip":
        let_go(task.failed)


def _weigh(task: Task, block: Block) -> None:
    """With a byte budget: what the cells have become."""
    cells = block.cells if block.out is None else block.out
    sizes = [sizeof(cell) for cell in cells or ()]
    block.size = sum(sizes)
    task.largest = max(sizes, default=0)


def finished(value: object) -> object:
    """A unit of an upper level, as the user knows it."""
    if type(value) is Slot:
        assert value.buffer is not None
        return value.buffer.result(value.rows)
    return value


def _write_rows(engine: Engine, task: Task, slots: list[Rows], block: Block) -> None:
    """Early rows: the finished samples go to their places at once."""
    cells = block.cells
    if not cells:
        return
    alone = len(slots) == 1
    for slot, row, begin, end in slots:
        part = cells if alone else cells[begin - block.start : end - block.start]
        if not part:
            continue
        buffer = slot.buffer
        assert buffer is not None
        try:
            allocated = buffer.write(row, part)
        except BaseException as error:
            buffer.spoil(row, error)
            allocated = 0
        if engine.weighs:
            allocated += buffer.kept(part)
        if allocated:
            task.growth = [*task.growth, (slot, allocated)]
        if buffer.misfit:
            slot.misfit = True


def _collate(engine: Engine, worker: Worker, task: Task, closed: Closed) -> None:
    """Late rows: the members are known, one worker makes the batch."""
    begun = perf_counter()
    names = Names(worker.places, closed)
    collate = engine.program.collates[closed.level]
    try:
        first = closed.cells[0]
        if not closed.idents and type(first) is Slot:
            assert first.buffer is not None
            raise first.buffer.explain(first.rows, names)
        cells = list(map(finished, closed.cells)) if closed.level else closed.cells
        if collate is not None:
            task.value = collate(cells, closed.layout)
        else:
            task.value = stack(cells, names, engine.program.allocate, engine.making)
        if engine.weighs:
            task.allocated = sizeof(task.value)
    except BaseException as error:
        task.failed = [(0, error)]
    worker.meter.collate.add(len(closed.cells), perf_counter() - begun, len(task.failed))


class Names:
    """Says which sample a row of a group is. (A closure would never be freed on 3.13t.)"""

    __slots__ = ("closed", "places")

    def __init__(self, places: Places, closed: Closed) -> None:
        self.places = places
        self.closed = closed

    def __call__(self, row: int) -> str:
        closed = self.closed
        if closed.level:
            return f"sample {row} of the batch"
        unit = unit_of(closed.idents[row]) if closed.idents else closed.span.first + row
        return f"sample {self.places.position(unit)} ({self.places.ref(unit)!s})"


def _watch(engine: Engine, task: Task, futures: list[object]) -> None:
    for future in futures:
        if isinstance(future, Future):
            future.add_done_callback(_Settle(engine, task))


class _Settle:
    """What a future calls when it is done: leave a message, wake somebody."""

    __slots__ = ("engine", "task")

    def __init__(self, engine: Engine, task: Task) -> None:
        self.engine = engine
        self.task = task

    def __call__(self, future: Future[object]) -> None:
        self.engine.settled.append(self.task)
        self.engine.wake_any()

"""A run without threads: the real core, driven by a clock that jumps from event to event.

What a worker does takes the time that a cost function says; everything else (which task comes
next, who waits and why, what is counted) is the code that real runs use. So a pipeline of
hours is judged in milliseconds, and the same seed gives the same run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from nogil_loader.engine.core import Block, Core, CoreSpec, Delivery, RunStart, Task
from nogil_loader.engine.core.idle import idle_reason
from nogil_loader.engine.core.spec import CPU
from nogil_loader.engine.counting import count_changes, count_crews, count_memory, count_stages
from nogil_loader.observe.counts import ConsumerCount, Counts, MachineCount, StreamCount
from nogil_loader.observe.meters import WorkerMeter

Cost = Callable[[int], float]
"""Unit -> seconds."""


@dataclass(frozen=True)
class World:
    """What surrounds the core."""

    spec: CoreSpec
    kinds: tuple[str, ...]
    """Names of the kinds of threads."""
    length: int
    costs: Mapping[str, Cost]
    """By op: seconds for one sample (for an ``in_flight`` op: until its future settles)."""
    consume: float = 0.0
    """Seconds that the consumer takes for one delivery."""
    stream: float | None = None
    """Seconds that a stream takes to yield a sample; None for a source with random access."""
    size: int = 0
    """Bytes of a sample."""
    gil: bool = False
    """Whether the shared workers take turns."""
    blocked: float = 0.98
    """Of a private thread's time in an op, how much is not spent on a core."""

    def without_consumer(self) -> World:
        """The same, with a consumer that takes no time."""
        return replace(self, consume=0.0)


@dataclass
class _Worker:
    kind: int
    meter: WorkerMeter
    task: Task | None = None
    spent: list[tuple[int, int, int, float]] = field(default_factory=list)
    """What the task will have done: (level, op, cells, seconds)."""


class Simulation:
    """One run of a ``World``; ``run`` it once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.now = 0.0
        self.core = Core(
            world.spec,
            RunStart(None if world.stream is not None else world.length, world.stream is not None),
        )
        ops = [len(level.ops) for level in world.spec.levels]
        self.workers = [
            _Worker(kind, WorkerMeter(kind, ops, 0.0))
            for kind, count in enumerate(world.spec.workers)
            for _ in range(count)
        ]
        self.parked: list[list[_Worker]] = [[] for _ in world.spec.workers]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = 0
        self.queue: deque[Delivery] = deque()
        self.on_core = 0.0
        # The consumer.
        self.asked: float | None = 0.0
        self.batches = self.samples = 0
        self.waited = 0.0
        self.first: tuple[float, float] | None = None
        self.ended = False
        self.taken: list[tuple[float, int]] = []
        """When the consumer took what, samples in all."""
        # The stream.
        self.read = 0
        self.ahead = max(64, 2 * self.core.ahead.least)
        self.paused: float | None = None
        self.paused_for = 0.0
        self.stream_end: float | None = None

    def run(self) -> Counts:
        """Until the end of the data, or as many deliveries as there are."""
        if self.world.stream is not None:
            self._later(self.world.stream, self._yield)
        for worker in self.workers:
            self._next(worker)
        self._pump()
        while self.events and not self.ended:
            self.now, _, action = heappop(self.events)
            action()
            self._pump()
        assert self.ended, "the simulation came to a stop before its end"
        return self._counts()

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        self.sequence += 1
        heappush(self.events, (self.now + delay, self.sequence, action))

    def _pump(self) -> None:
        """Whatever follows at this very moment."""
        core = self.core
        moved = True
        while moved and not self.ended:
            self.queue.extend(core.deliveries)
            core.deliveries.clear()
            moved = self._consume()
            self._resume_stream()
            for kind, parked in enumerate(self.parked):
                if parked and core.can(kind):
                    worker = parked.pop()
                    worker.meter.waited(self.now)
                    worker.meter.since = self.now
                    self._next(worker)
                    moved = True

    # The consumer -----------------------------------------------------------------------

    def _consume(self) -> bool:
        if self.asked is None or not self.queue:
            return False
        delivery = self.queue.popleft()
        self.waited += self.now - self.asked
        if delivery.ended:
            self.ended = True
            return True
        self.asked = None
        if self.first is None:
            self.first = self.now, self.waited
        self.batches += len(delivery.values)
        self.samples += delivery.weight
        self.taken.append((self.now, self.samples))
        self.core.credit(delivery.weight, delivery.size)
        self._later(self.world.consume * len(delivery.values), self._ask)
        return True

    def _ask(self) -> None:
        self.asked = self.now

    # The stream -------------------------------------------------------------------------

    def _yield(self) -> None:
        assert self.world.stream is not None
        self.read += 1
        self.core.arrived(self.read)
        if self.read == self.world.length:
            self.core.end(self.read, self.now)
            self.stream_end = self.now
        elif self.read >= self.core.ahead.claimed + self.ahead:
            self.paused = self.now
        else:
            self._later(self.world.stream, self._yield)

    def _resume_stream(self) -> None:
        if self.paused is None:
            return
        if self.read < self.core.ahead.claimed + self.ahead // 2:
            assert self.world.stream is not None
            self.paused_for += self.now - self.paused
            self.paused = None
            self._later(self.world.stream, self._yield)

    # Workers ----------------------------------------------------------------------------

    def _next(self, worker: _Worker) -> None:
        task = self.core.take(worker.kind, self.now)
        if task is None:
            worker.meter.reason = idle_reason(self.core, worker.kind)
            if worker.meter.reason != "end" or not self.core.spent():
                self.parked[worker.kind].append(worker)
            return
        worker.task = task
        seconds = self._work(worker, task)
        if self.world.gil and worker.kind == CPU:
            seconds *= sum(w.task is not None for w in self.workers if w.kind == CPU)
        self._later(seconds, _Done(self, worker))

    def _work(self, worker: _Worker, task: Task) -> float:
        """Carry the block through its ops in no time; returns how long it really takes."""
        block, segment = task.block, task.segment
        worker.spent = []
        if task.closed is not None or block is None or segment is None:
            assert task.closed is not None
            task.value = task.closed.cells
            return 0.0
        level = segment.level
        if block.cells is None:
            block.cells = list(range(block.start, block.stop))
        total = 0.0
        while block.op < segment.spec.last:
            if block.out is not None:
                block.out, block.pending = None, ()
                block.op += 1
                continue
            last = block.op == segment.spec.last - 1
            if last and segment.spec.in_flight is not None:
                worker.spent.append((level.number, block.op, len(block.cells), 0.0))
                block.out = list(block.cells)
                task.futures = len(block.out)
                return total
            cost = self.world.costs[level.spec.ops[block.op].name]
            seconds = sum(cost(block.start + n) for n in range(len(block.cells)))
            worker.spent.append((level.number, block.op, len(block.cells), seconds))
            total += seconds
            block.op += 1
        self._fill(task, block)
        return total

    def _fill(self, task: Task, block: Block) -> None:
        """Bytes, as the engine's workers report them."""
        if self.world.spec.memory is None:
            return
        cells = len(block.cells or ())
        if task.slots is None:
            block.size, task.largest = cells * self.world.size, self.world.size
            return
        for slot, _, _, _ in task.slots:
            if slot.buffer is None:
                slot.buffer = "made"
                task.growth = [*task.growth, (slot, slot.rows * self.world.size)]

    def _done(self, worker: _Worker) -> None:
        task, meter = worker.task, worker.meter
        assert task is not None
        took = self.now - meter.since
        planned = sum(entry[3] for entry in worker.spent)
        for level, op, cells, seconds in worker.spent:
            stretched = seconds * took / planned if planned else 0.0
            meter.ops[level][op].add(cells, stretched, 0)
        meter.busy += took
        on_core = planned * (1.0 - self.world.blocked if worker.kind else 1.0)
        meter.cpu += on_core
        self.on_core += on_core
        meter.since = self.now
        worker.task = None
        self.core.finish(task, self.now)
        if task.futures:
            self._fly(task)
        self._next(worker)

    def _fly(self, task: Task) -> None:
        assert task.block is not None and task.segment is not None
        block, segment = task.block, task.segment
        cost = self.world.costs[segment.level.spec.ops[block.op].name]
        for number in range(task.futures):
            self._later(cost(block.start + number), _Settled(self, task))

    # What was counted -------------------------------------------------------------------

    def _counts(self) -> Counts:
        world, now = self.world, self.now
        meters = [worker.meter for worker in self.workers]
        came, startup = self.first or (now, self.waited)
        stalled = self.waited - startup
        consumer = ConsumerCount(
            self.batches, self.waited, came, stalled, max(0.0, now - came - stalled)
        )
        stream = None
        if world.stream is not None:
            end = now if self.stream_end is None else self.stream_end
            stream = StreamCount(end - self.paused_for, self.paused_for)
        return Counts(
            seconds=now,
            ended=True,
            samples=self.samples,
            stages=count_stages(self.core, world.kinds, meters),
            crews=count_crews(self.core, world.kinds, meters, now),
            consumer=consumer,
            stream=stream,
            memory=count_memory(self.core),
            machine=MachineCount(world.spec.workers[0], world.gil, self.on_core),
            ordered=world.spec.ordered,
            changes=count_changes(self.core),
        )


@dataclass(frozen=True)
class _Done:
    simulation: Simulation
    worker: _Worker

    def __call__(self) -> None:
        self.simulation._done(self.worker)


@dataclass(frozen=True)
class _Settled:
    simulation: Simulation
    task: Task

    def __call__(self) -> None:
        self.simulation.core.settle(self.task, self.simulation.now)

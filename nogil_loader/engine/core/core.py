"""The scheduler: which task a worker gets, and what follows when it is done.

Guarantees
- Every claimed unit is in exactly one place: before a segment, in a running task, behind a
  timer, behind an unsettled future, or judged by its level.
- Units are claimed in order, and only while the look-ahead and the byte budget allow it; the
  unit that the next delivery waits for is always admitted.
- A worker gets the most downstream task there is.
- Whenever work remains, and nothing runs or waits for a time, a future, a stream or the
  consumer, some kind of worker can be given a task.

Nothing here blocks, reads a clock, or calls code of the user. The caller holds one lock
around every call and passes the time in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from nogil_loader.engine.core import early
from nogil_loader.engine.core.ahead import Ahead
from nogil_loader.engine.core.block import RESOLVE, Block, Failure, Pending, Skip, unit_of
from nogil_loader.engine.core.level import Closed, Delivery, Level, Point, Slot
from nogil_loader.engine.core.policy import judge, scatter
from nogil_loader.engine.core.segment import Segment
from nogil_loader.engine.core.spec import CPU, CoreSpec, RunStart
from nogil_loader.engine.core.task import Rows, Task
from nogil_loader.engine.core.timers import Timers
from nogil_loader.engine.core.tuning import Tuner
from nogil_loader.engine.errors import StageTimeout


class Core:
    """See the top of this module."""

    def __init__(self, spec: CoreSpec, start: RunStart) -> None:
        self.spec = spec
        self.levels = _levels(spec, start.point)
        self.skipped: list[Skip] = []
        """Of all levels, as they are judged."""
        for level in self.levels:
            level.skipped = self.skipped
        self.source = self.levels[0]
        self.source.stop = start.length
        if start.length is not None and self.source.spec.complete:
            self.source.stop = start.length + sum(self.source.dropped)
        self.source.partial = start.partial
        self.last = self.levels[-1]
        self.kinds = _segments(spec, self.levels)
        """Segments by kind of worker, the most downstream first."""
        self.segments = [segment for level in self.levels for segment in level.segments]
        for number, segment in enumerate(self.segments):
            segment.number = number
        self.head = self.source.segments[0]
        """The segment that claims units."""
        self.ahead = Ahead(spec, self.source, self.head, stream=start.stream)
        self.beyond = start.beyond
        self._plain_end = not (self.last.segments or self.last.grouper or self.beyond)
        """Whether the last level only puts batches in order."""
        self.fills: list[Task] = []
        """Groups to collate, oldest first."""
        self.running = 0
        """Tasks that workers have."""
        self.unsettled: set[Task] = set()
        self.timers = Timers()
        self.deliveries: list[Delivery] = []
        """Made, and not yet picked up by the caller."""
        self.delivered = self.taken = 0
        """Deliveries that were made, and that the consumer took."""
        self.stalls = 0
        """Times that one unit was let in over the bounds because all else stood still."""
        self.retuned = False
        """Whether the number of threads that a stage should have has changed."""
        self.finished = False
        self.closing = False
        self._settle(0.0)

    # What may run -----------------------------------------------------------------------

    def take(self, kind: int, now: float) -> Task | None:
        """The next task for a worker of this kind, or None."""
        if self.closing or self.finished:
            return None
        if self.timers.entries and self.timers.due(now):
            self.tick(now)
        if self.fills and kind == CPU:
            task = self.fills.pop(0)
            task.since = now
            self.running += 1
            return task
        for segment in self.kinds[kind]:
            if segment.units and segment.ready:
                return self._start(segment, segment.get(), now)
            if segment is self.head:
                count = self.ahead.allowed()
                if count == 0 and self._stuck():
                    count = 1
                    self.stalls += 1
                if count:
                    if self.beyond:
                        count = self._before_beyond(count)
                    return self._start(segment, self.ahead.claim(count), now)
        return None

    def can(self, kind: int) -> bool:
        """Whether ``take`` would find something."""
        if self.closing or self.finished:
            return False
        if self.fills and kind == CPU:
            return True
        for segment in self.kinds[kind]:
            if segment.units and segment.ready:
                return True
            if segment is self.head and (self.ahead.allowed() or self._stuck()):
                return True
        return False

    def spent(self) -> bool:
        """Whether no task will ever come again (so that the threads may leave)."""
        if self.closing or self.finished:
            return True
        return self.ahead.exhausted and self._quiet()

    def _quiet(self) -> bool:
        """Nothing runs, waits to run, or will come back by itself."""
        if self.running or self.timers or self.unsettled or self.fills:
            return False
        waiting = 0
        for segment in self.segments:  # no generator: 3.13t would never free its function
            waiting += segment.units
        return waiting == 0

    def _stuck(self) -> bool:
        """Nothing moves, and nothing will unless one more unit is let in."""
        if self.running or self.taken != self.delivered or self.ahead.doomed:
            return False
        return self.ahead.left > 0 and self._quiet()

    def _before_beyond(self, count: int) -> int:
        """Fewer units where a batch that was delivered out of order begins."""
        rows = self.source.spec.rows
        if rows is None:
            return count
        return min(count, rows - (self.ahead.claimed - self.source.first) % rows)

    def _start(self, segment: Segment, block: Block, now: float) -> Task:
        task = Task(segment, block, now)
        if block.cells is None and not block.since:
            block.since = now
        segment.running += 1
        self.running += 1
        if segment.rows is not None:
            task.slots = early.rows_of(segment.level, segment.rows, block)
        if self.ahead.memory is not None:
            task.charged = self.ahead.reserve(block)
        return task

    # The source -------------------------------------------------------------------------

    def arrived(self, units: int) -> None:
        """A stream has been read up to this unit (exclusive)."""
        self.ahead.available = units

    def end(self, units: int, now: float, error: BaseException | None = None) -> None:
        """The source ended, or failed, at this unit."""
        source = self.source
        source.stop = units if source.stop is None else min(source.stop, units)
        self.ahead.available = units
        if error is not None:
            source.stop = units + 1
            block = Block(0, 0, units, 1, [], [])
            block.failure = Failure(0, units, -1, error)
            source.arrive(block, now)
        self._settle(now)

    # What was done ----------------------------------------------------------------------

    def finish(self, task: Task, now: float) -> None:
        """A worker did its task, or as much of it as it could."""
        if task.revoked:
            return
        task.over = True
        self.running -= 1
        segment, block = task.segment, task.block
        if segment is None or block is None:
            self._collated(task, now)
            self._settle(now)
            return
        segment.running -= 1
        if self.ahead.memory is not None:
            final = segment.following is None and not (task.futures or task.failed)
            self.ahead.settle(task.charged, block, task.largest, final=final)
        if task.futures:
            self._wait_for(task, segment, block, now)
        elif task.failed:
            self._failed(segment, block, task.failed, now)
        else:
            if segment.block is None and block.count:
                segment.observe(block.count, now - task.since)
            if segment.special:
                if segment.tuner is not None:
                    self._tune(segment.tuner, block.count, now - task.since, now)
                if segment.spec.serial:
                    segment.next = block.stop
            if segment.following is not None:
                segment.following.put(block)
                return
            if task.slots is None:
                self._arrive(segment.level, block, now)
            elif self._written(task, task.slots, block, now):
                return
        self._settle(now)

    def _tune(self, tuner: Tuner, units: int, seconds: float, now: float) -> None:
        starved = self.delivered == self.taken
        if tuner.finished(units, seconds, starved, now):
            self.retuned = True

    def _arrive(self, level: Level, block: Block, now: float) -> None:
        """The block went through the whole level."""
        if level is self.last:
            if block.start in self.beyond:
                level.deliver_again(block)
            elif not self.spec.ordered:
                level.deliver_early(block)
        level.arrive(block, now)

    def _written(self, task: Task, slots: list[Rows], block: Block, now: float) -> bool:
        """Rows of early batches were filled; whole batches go up.

        Returns whether that is all there is to it.
        """
        level = self.source
        if task.growth:
            for grown, size in task.growth:
                self.ahead.grow(grown, size)
        if len(slots) == 1 and block.ids is None and not block.size:
            slot = slots[0][0]
            count = block.count
            slot.left -= count
            if slot.left:
                front = level.front
                if block.start == front and not level.waiting and block.failure is None:
                    level.front = front = front + count  # in turn, and nothing is whole by it
                    level.judged += count
                    return front != level.stop and not task.growth
                block.cells = []
            else:
                block.cells = []
                self._rise(slot, now)
        else:
            self.ahead.charged -= block.size
            for slot in early.written(block, slots):
                self._rise(slot, now)
        self._arrive(level, block, now)
        return False

    def _rise(self, slot: Slot, now: float) -> None:
        """An early batch is whole."""
        source, rows = self.source, self.source.spec.rows
        assert rows is not None
        if self.ahead.memory is not None:
            self.ahead.whole(slot)
        if self._plain_end and not slot.misfit and self.last.number == 1:
            delivery = self.last.pass_through(slot.number, slot, slot.rows, slot.size, slot.since)
            if delivery is not None:
                delivery.end = source.first + (slot.number - source.groups) * rows + slot.rows
                del source.slots[slot.number]
                return
        closed = early.closed(source, rows, slot)
        if slot.misfit:
            self.fills.append(Task.collate(closed))  # to find out, and say, what does not fit
        else:
            self._unit_above(closed, slot, slot.size, now)

    def _unit_above(self, closed: Closed, value: object, size: int, now: float) -> None:
        """A group is complete: it is a unit of the level above."""
        above = self.levels[closed.level + 1]
        if self._plain_end and above is self.last:
            weight = closed.span.weight
            delivery = above.pass_through(closed.number, value, weight, size, closed.since)
            if delivery is not None:
                delivery.spans = [closed.span]
                return
        above.spans[closed.number] = closed.span
        block = Block(above.number, 0, closed.number, 1, [value])
        block.size = size
        block.alone = True
        block.first = closed.span.first
        block.since = closed.since
        if above.segments:
            above.segments[0].put(block)
        else:
            self._arrive(above, block, now)

    def _collated(self, task: Task, now: float) -> None:
        closed = task.closed
        assert closed is not None
        self.ahead.charged += task.allocated - closed.size
        if not task.failed:
            self._unit_above(closed, task.value, task.allocated, now)
            return
        self.ahead.doom()
        above = self.levels[closed.level + 1]
        above.spans[closed.number] = closed.span
        first = unit_of(closed.idents[0]) if closed.idents else closed.span.first
        failure = Failure(closed.level, first, -1, task.failed[0][1])
        self._fail_above(above, closed.number, failure, now)

    @staticmethod
    def _fail_above(above: Level, number: int, failure: Failure, now: float) -> None:
        """A unit that is nothing but a failure takes its place in the order."""
        block = Block(above.number, 0, number, 1, [], [])
        block.failure = failure
        above.arrive(block, now)

    def _failed(
        self,
        segment: Segment,
        block: Block,
        failed: Sequence[tuple[int, BaseException]],
        now: float,
        undone: Sequence[Pending] = (),
    ) -> None:
        """Some cells of op ``block.op`` raised: the policy of the op decides on each."""
        op = segment.level.spec.ops[block.op]
        pending, wait = judge(block, op.policy, failed, undone)
        if block.failure is not None:
            self.ahead.doom()
        whole = segment.spec.serial or block.alone
        if pending and whole:
            block.pending = pending
        for part in [block] if whole else scatter(block, pending):
            if part.pending and wait > 0.0:
                self.timers.add(now + wait, part)
            else:
                segment.put(part)

    # Time and futures -------------------------------------------------------------------

    def _wait_for(self, task: Task, segment: Segment, block: Block, now: float) -> None:
        """The op returned futures: the block waits for them."""
        segment.in_flight += task.futures
        self.unsettled.add(task)
        timeout = segment.level.spec.ops[block.op].timeout
        if timeout is not None:
            self.timers.add(now + timeout, task)

    def settle(self, task: Task, now: float) -> None:
        """One of the futures that the task returned is done."""
        segment, block = task.segment, task.block
        assert segment is not None and block is not None
        task.futures -= 1
        if task.revoked:
            return
        segment.in_flight -= 1
        segment.flown += now - task.since
        if task.futures == 0:
            self.unsettled.discard(task)
            self.timers.forget(task)
            outs = range(len(block.out or ()))
            block.pending = [Pending(index, RESOLVE, None) for index in outs]
            segment.put(block)
        self._settle(now)

    def expire(
        self,
        task: Task,
        half_done: Block,
        failed: list[tuple[int, BaseException]],
        undone: Sequence[Pending],
        now: float,
    ) -> bool:
        """The lease of a running task ended: the last of the ``failed`` cells hangs.

        ``half_done`` is a copy of the block in which nothing is shared with the hung thread
        but the cells; results before the hung one are in its ``out``, and ``undone`` are the
        cells behind it that have none. False if the task was finished in the meantime.
        """
        segment = task.segment
        if task.revoked or task.over or segment is None:
            return False
        task.revoked = True
        self.running -= 1
        segment.running -= 1
        if self.ahead.memory is not None:
            self.ahead.settle(task.charged, half_done, 0, final=False)
        self._failed(segment, half_done, failed, now, undone)
        self._settle(now)
        return True

    def tick(self, now: float) -> None:
        """Let what waited for a time go on."""
        for entry in self.timers.pop(now):
            if isinstance(entry, Block):
                self._segment_of(entry).put(entry)
            elif isinstance(entry, Task):
                self._expire_futures(entry, now)
            elif entry.since is not None and entry.spec.max_wait is not None:
                if entry.since + entry.spec.max_wait <= now:
                    entry.close_open()
                else:
                    self.timers.add(entry.since + entry.spec.max_wait, entry)
        self._settle(now)

    def _expire_futures(self, task: Task, now: float) -> None:
        segment, block = task.segment, task.block
        assert segment is not None and block is not None
        task.revoked = True
        segment.in_flight -= task.futures
        self.unsettled.discard(task)
        op = segment.level.spec.ops[block.op]
        hung = StageTimeout(
            f"stage {op.name!r} took longer than {op.timeout} s to settle its future"
        )
        self._failed(segment, block, [(index, hung) for index in range(len(block.out or ()))], now)

    def _segment_of(self, block: Block) -> Segment:
        segments = self.levels[block.level].segments
        for segment in segments:
            if block.op < segment.spec.last:
                return segment
        return segments[-1]

    def deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        return self.timers.first()

    # The consumer, and the end ----------------------------------------------------------

    def credit(self, weight: int, size: int) -> None:
        """The consumer took a delivery."""
        self.taken += 1
        self.ahead.credited += weight
        self.ahead.charged -= size

    def close(self) -> list[Block]:
        """Hand out nothing any more; what was queued is returned, to be forgotten."""
        self.closing = True
        return [block for segments in self.kinds for s in segments for block in s.drain()]

    def abort(self, error: BaseException) -> None:
        """End the run here and now, whatever its order."""
        if not self.finished:
            self.last.failure = Failure(-1, -1, -1, error)
            self._finish()

    def _settle(self, now: float) -> None:
        """Carry judged outputs up, level by level, as far as they go."""
        for level in self.levels:
            if level.over and not level.ended:
                self._finish_level(level, now)
            if level.news:
                self._collect(level)
            if level.since is not None and level.spec.max_wait is not None:
                self.timers.add_once(level.since + level.spec.max_wait, level)
        if self.last.ended and not self.finished:
            self._finish()

    def _collect(self, level: Level) -> None:
        level.news = False
        self.ahead.credited += level.spare
        self.ahead.charged -= level.freed
        level.spare = level.freed = 0
        if level.closed:
            self.fills.extend(map(Task.collate, level.closed))
            level.closed = []
        if level.deliveries:
            self.delivered += len(level.deliveries)
            self.deliveries.extend(level.deliveries)
            level.deliveries = []

    def _finish_level(self, level: Level, now: float) -> None:
        """All that there will be of a level was judged: the next one learns its end."""
        level.finish()
        if level is self.source:
            self.ahead.doom()
        if level is self.last:
            return
        above = self.levels[level.number + 1]
        number = level.groups
        if level.spec.rows is not None:
            number, whole = early.end(level, level.spec.rows)
            for slot in whole:
                self._rise(slot, now)
        above.stop = number
        if level.failure is not None:
            # The incomplete group in which the failure lies stands for it one level up.
            above.stop = number + 1
            self._fail_above(above, number, level.failure, now)

    def _finish(self) -> None:
        self.finished = True
        end = Delivery(self.last.number, self.last.front, [])
        end.ended = True
        end.failure = self.last.failure
        self.deliveries.append(end)


def _segments(spec: CoreSpec, levels: Sequence[Level]) -> list[list[Segment]]:
    """The segments of every level, linked; by kind of worker, the most downstream first."""
    kinds: list[list[Segment]] = [[] for _ in spec.workers]
    for level in levels:
        for part in level.spec.segments:
            segment = Segment(level, part, spec.workers[part.kind], spec.block, spec.target)
            level.segments.append(segment)
            kinds[part.kind].insert(0, segment)
        for segment, following in pairwise(level.segments):
            segment.following = following
        if level.segments:
            level.segments[-1].rows = level.spec.rows
    return kinds


def _levels(spec: CoreSpec, point: Point | None) -> list[Level]:
    """The levels, each at its part of the point (which is nested from the last one down)."""
    points: list[Point | None] = []
    while point is not None:
        points.insert(0, point)
        point = point.below
    levels = [
        Level(number, part, points[number] if number < len(points) else None)
        for number, part in enumerate(spec.levels)
    ]
    for level, above in pairwise(levels):
        level.groups = above.first
        if above.point.below is None:
            above.point = above.point._replace(below=level.point)
    return levels

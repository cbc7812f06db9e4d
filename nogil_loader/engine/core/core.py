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

from itertools import pairwise

from nogil_loader.engine.core.block import RESOLVE, Block, Failure, Pending, unit_of
from nogil_loader.engine.core.level import Closed, Delivery, Level, Point, Slot, Span
from nogil_loader.engine.core.policy import judge, scatter
from nogil_loader.engine.core.segment import Segment
from nogil_loader.engine.core.spec import CPU, CoreSpec, RunStart
from nogil_loader.engine.core.task import Task
from nogil_loader.engine.core.timers import Timers
from nogil_loader.engine.errors import StageTimeout

_SPREAD = 4
"""Blocks a worker that the look-ahead has room for, and that the end is cut into."""
_SLACK = 64
"""A block is at most this small a share of each worker's part of the byte budget."""
_ENDLESS = 1 << 62


class Core:
    """See the top of this module."""

    def __init__(self, spec: CoreSpec, start: RunStart) -> None:
        self.spec = spec
        self.levels = _levels(spec, start.point)
        self.source = self.levels[0]
        self.last = self.levels[-1]
        self.kinds: list[list[Segment]] = [[] for _ in spec.workers]
        """Segments by kind of worker, the most downstream first."""
        self._build_segments()
        self.head = self.levels[0].segments[0]
        """The segment that claims units."""
        self.claimed = self.source.first
        """The next unit to claim."""
        self.source.stop = start.length
        self.available = self.source.first if start.stream else None
        """Streams: units below this one have been read."""
        self.beyond = start.beyond
        self.doomed = False
        """Whether nothing more is claimed: a failure, or enough, lies ahead."""
        self.fills: list[Task] = []
        """Groups to collate, oldest first."""
        self.running: set[Task] = set()
        self.unsettled: set[Task] = set()
        self.timers = Timers()
        self.deliveries: list[Delivery] = []
        """Made, and not yet picked up by the caller."""
        self.delivered = self.taken = 0
        """Deliveries that were made, and that the consumer took."""
        self.credited = 0
        """Outputs of level 0 that the consumer took, or of which nothing came."""
        self.charged = 0
        """Bytes in flight, and those that running tasks are expected to add."""
        self.largest = 0
        """Bytes of the largest cell so far."""
        self.stalls = 0
        """Times that one unit was let in over the bounds because all else stood still."""
        self.finished = False
        self.closing = False
        self.base_window = self._least_window()
        self._settle(0.0)

    def _build_segments(self) -> None:
        spec = self.spec
        for level in self.levels:
            parts = level.spec.segments
            for part in parts:
                threads = spec.workers[part.kind]
                segment = Segment(level, part, threads, spec.block, spec.target)
                level.segments.append(segment)
                self.kinds[part.kind].insert(0, segment)
            for segment, following in pairwise(level.segments):
                segment.following = following

    def _least_window(self) -> int:
        """Look-ahead in units, whatever the block size."""
        spec = self.spec
        rows = spec.levels[0].rows or spec.group_size
        blocking = sum(spec.workers[1:]) + sum(
            part.in_flight or 0 for level in spec.levels for part in level.segments
        )
        return max(spec.prefetch * rows, rows, _SPREAD * blocking)

    # What may run -----------------------------------------------------------------------

    def take(self, kind: int, now: float) -> Task | None:
        """The next task for a worker of this kind, or None."""
        if self.closing or self.finished:
            return None
        if self.timers and self.timers.due(now):
            self.tick(now)
        if kind == CPU and self.fills:
            task = self.fills.pop(0)
            task.since = now
            self.running.add(task)
            return task
        for segment in self.kinds[kind]:
            if segment.ready:
                return self._start(segment, segment.get(), now)
            if segment is self.head:
                count = self._claimable()
                if count:
                    self.stalls += self._quiet() and self.claimed > self.source.front
                    return self._start(segment, self._claim(count), now)
        return None

    def can(self, kind: int) -> bool:
        """Whether ``take`` would find something."""
        if self.closing or self.finished:
            return False
        if kind == CPU and self.fills:
            return True
        for segment in self.kinds[kind]:
            if segment.ready or (segment is self.head and self._claimable()):
                return True
        return False

    def spent(self) -> bool:
        """Whether no task will ever come again (so that the threads may leave)."""
        if self.closing or self.finished:
            return True
        stop = self.source.stop
        exhausted = self.doomed or (stop is not None and self.claimed >= stop)
        return exhausted and self._quiet()

    def _quiet(self) -> bool:
        """Nothing runs, waits to run, or will come back by itself."""
        if self.running or self.timers or self.unsettled or self.fills:
            return False
        return not any(segment.units for segments in self.kinds for segment in segments)

    def _start(self, segment: Segment, block: Block, now: float) -> Task:
        task = Task(segment, block, now)
        segment.running += 1
        level = segment.level
        if level.spec.rows is not None and segment.following is None:
            task.slots = _rows(level, level.spec.rows, block)
        if self.spec.memory is not None:
            task.charged = max(block.size, block.count * self.largest)
            self.charged += task.charged - block.size
        self.running.add(task)
        return task

    # Claiming ---------------------------------------------------------------------------

    def _claimable(self) -> int:
        """Units that may be claimed now."""
        if self.doomed:
            return 0
        head = self.head
        if head.spec.limit is not None and head.running >= head.spec.limit:
            return 0
        if head.spec.serial and (head.running or head.next != self.claimed):
            return 0
        left = self._left()
        if left <= 0:
            return 0
        if self.claimed < self.source.point.unit:
            return 1
        count = self._fair(left)
        window = max(self.base_window + head.size, _SPREAD * head.size * head.threads)
        undecided = self.claimed - self.source.front
        live = undecided + self.source.judged - self.credited
        room = min(window - live, 2 * window - undecided)
        if self.spec.memory is not None:
            count, room = self._within(self.spec.memory, count, room)
        if room >= count:
            return count
        return 1 if self._stuck() else 0

    def _within(self, memory: int, count: int, room: int) -> tuple[int, int]:
        """Smaller blocks, or none, under a byte budget."""
        largest = max(1, self.largest)
        count = min(count, max(1, memory // (_SLACK * sum(self.spec.workers) * largest)))
        if self.largest == 0:
            count = 1
        if self.charged + count * self.largest > memory:
            room = 0
        return count, room

    def _left(self) -> int:
        stop = self.source.stop
        if self.available is not None:
            stop = self.available if stop is None else min(stop, self.available)
        return _ENDLESS if stop is None else stop - self.claimed

    def _fair(self, left: int) -> int:
        """A block, but towards the end small enough that all workers finish together."""
        head = self.head
        if self.spec.block is None and self.source.stop is not None and self.available is None:
            left = min(left, max(1, left // (_SPREAD * head.threads)))
        return head.wanted(left)

    def _stuck(self) -> bool:
        """Nothing moves, and nothing will unless one more unit is let in."""
        return self.taken == self.delivered and self._quiet()

    def _claim(self, count: int) -> Block:
        source = self.source
        if self.beyond and source.spec.rows is not None:
            count = min(count, source.spec.rows - (self.claimed - source.first) % source.spec.rows)
        block = Block(0, 0, self.claimed, count)
        if self.claimed in source.stand_in:
            block.alone = True
            block.first = source.stand_in[self.claimed]
        self.claimed += count
        return block

    def arrived(self, units: int) -> None:
        """A stream has been read up to this unit (exclusive)."""
        self.available = units

    def end(self, units: int, now: float, error: BaseException | None = None) -> None:
        """The source ended, or failed, at this unit."""
        source = self.source
        source.stop = units if source.stop is None else min(source.stop, units)
        self.available = units
        if error is not None:
            source.stop = units + 1
            self.claimed = max(self.claimed, units)
            self.doomed = True
            block = Block(0, 0, units, 1, [], [])
            block.failure = Failure(0, units, -1, error)
            source.arrive(block, now)
        self._settle(now)

    # What was done ----------------------------------------------------------------------

    def finish(self, task: Task, now: float) -> None:
        """A worker did its task, or as much of it as it could."""
        if task.revoked:
            return
        self.running.discard(task)
        if task.closed is not None:
            self._collated(task, now)
        else:
            self._carried(task, now)
        self._settle(now)

    def _carried(self, task: Task, now: float) -> None:
        segment, block = task.segment, task.block
        assert segment is not None and block is not None
        segment.running -= 1
        if self.spec.memory is not None:
            self.charged += block.size - task.charged
            self.largest = max(self.largest, task.largest)
        if task.futures:
            segment.in_flight += task.futures
            self.unsettled.add(task)
            op = segment.level.spec.ops[block.op]
            if op.timeout is not None:
                self.timers.add(now + op.timeout, task)
        elif task.failed:
            self._failed(segment, block, task.failed, now)
        else:
            segment.observe(block.count, now - task.since)
            if task.slots:
                self._written(task, block)
            self._advance(segment, block, now)

    def _advance(self, segment: Segment, block: Block, now: float) -> None:
        """The block went through the whole segment."""
        if segment.spec.serial:
            segment.next = block.stop
        if segment.following is not None:
            segment.following.put(block)
        else:
            self._arrive(segment.level, block, now)

    def _arrive(self, level: Level, block: Block, now: float) -> None:
        """The block went through the whole level."""
        if level is self.last:
            if block.start in self.beyond:
                block.drop(range(len(block.cells or ())))
            elif not self.spec.ordered:
                level.deliver_early(block)
        level.arrive(block, now)

    def _written(self, task: Task, block: Block) -> None:
        """Rows of early batches were filled; whole batches go up."""
        cells = len(block.cells or ())
        self.charged -= block.size
        block.size = 0
        block.cells = []
        block.ids = []
        for slot, _, begin, end in task.slots:
            slot.left -= max(0, min(end, block.start + cells) - begin)
            self._rise(slot)
        if self.spec.memory is not None:
            self.charged += task.allocated

    def _rise(self, slot: Slot) -> None:
        if slot.left:
            return
        source = self.source
        rows = source.spec.rows
        assert rows is not None
        del source.slots[slot.number]
        begin = source.first + (slot.number - source.groups) * rows
        span = Span(Point(begin), Point(begin + slot.rows), slot.rows, begin)
        if slot.misfit:
            closed = Closed(0, slot.number, [slot], (), None, span, 0)
            self.fills.append(Task.collate(closed))
        else:
            self._unit_above(source, slot.number, slot, span, slot.size, self.now)

    def _unit_above(
        self, level: Level, number: int, value: object, span: Span, size: int, now: float
    ) -> None:
        """A group of ``level`` is complete: it is a unit of the level above."""
        above = self.levels[level.number + 1]
        above.spans[number] = span
        block = Block(above.number, 0, number, 1, [value])
        block.size = size
        block.alone = True
        block.first = span.first
        if above.segments:
            above.segments[0].put(block)
        else:
            self._arrive(above, block, now)

    def _collated(self, task: Task, now: float) -> None:
        closed = task.closed
        assert closed is not None
        if self.spec.memory is not None:
            self.charged += task.allocated - closed.size
        level = self.levels[closed.level]
        size = task.allocated
        if task.failed:
            above = self.levels[level.number + 1]
            above.spans[closed.number] = closed.span
            block = Block(above.number, 0, closed.number, 1, [], [])
            block.failure = Failure(
                closed.level,
                unit_of(closed.idents[0]) if closed.idents else closed.span.first,
                -1,
                task.failed[0][1],
            )
            self.doomed = True
            above.arrive(block, now)
        else:
            self._unit_above(level, closed.number, task.value, closed.span, size, now)

    def _failed(
        self,
        segment: Segment,
        block: Block,
        failed: list[tuple[int, BaseException]],
        now: float,
        undone: range = range(0),
    ) -> None:
        """Some cells of op ``block.op`` raised: the policy of the op decides on each."""
        op = segment.level.spec.ops[block.op]
        pending, wait = judge(block, op.policy, failed, undone)
        if block.failure is not None:
            self.doomed = True
        if not pending:
            segment.put(block)
            return
        parts = [block] if segment.spec.serial or block.alone else scatter(block, pending)
        if parts == [block]:
            block.pending = pending
        for part in parts:
            if part.pending and wait > 0.0:
                self.timers.add(now + wait, part)
            else:
                segment.put(part)

    # Time and futures -------------------------------------------------------------------

    def settle(self, task: Task, now: float) -> None:
        """One of the futures that the task returned is done."""
        assert task.segment is not None and task.block is not None
        task.futures -= 1
        if task.revoked:
            return
        task.segment.in_flight -= 1
        if task.futures == 0:
            self.unsettled.discard(task)
            self.timers.forget(task)
            outs = range(len(task.block.out or ()))
            task.block.pending = [Pending(index, RESOLVE, None) for index in outs]
            task.segment.put(task.block)
        self._settle(now)

    def expire(
        self, task: Task, half_done: Block, failed: list[tuple[int, BaseException]], now: float
    ) -> bool:
        """The lease of a running task ended: the last of the ``failed`` cells hangs.

        ``half_done`` is a copy of the block in which nothing is shared with the hung thread
        but the cells; results before the hung one are in its ``out``. False if the task was
        finished in the meantime.
        """
        if task.revoked or task not in self.running or task.segment is None:
            return False
        task.revoked = True
        self.running.discard(task)
        segment = task.segment
        segment.running -= 1
        if self.spec.memory is not None:
            self.charged += half_done.size - task.charged
        total = len(half_done.cells or ())
        undone = range(failed[-1][0] + 1, total)
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
        for segment in self.levels[block.level].segments:
            if block.op < segment.spec.last:
                return segment
        return self.levels[block.level].segments[-1]

    def deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        return self.timers.first()

    # The consumer -----------------------------------------------------------------------

    def credit(self, weight: int, size: int) -> None:
        """The consumer took a delivery."""
        self.taken += 1
        self.credited += weight
        if self.spec.memory is not None:
            self.charged -= size

    def close(self) -> list[Block]:
        """Hand out nothing any more; what was queued is returned, to be forgotten."""
        self.closing = True
        return [block for segments in self.kinds for s in segments for block in s.drain()]

    # Consequences -----------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Carry judged outputs up, level by level, as far as they go."""
        self.now = now
        for level in self.levels:
            if level.over and not level.ended:
                self._finish_level(level, now)
            self._collect(level, now)
        if self.last.ended and not self.finished:
            self._finish()

    def _collect(self, level: Level, now: float) -> None:
        if level.spare:
            self.credited += level.spare
            level.spare = 0
        if level.freed:
            if self.spec.memory is not None:
                self.charged -= level.freed
            level.freed = 0
        if level.closed:
            for closed in level.closed:
                self.fills.append(Task.collate(closed))
            level.closed = []
        if level.deliveries:
            self.delivered += len(level.deliveries)
            self.deliveries.extend(level.deliveries)
            level.deliveries = []
        if level.since is not None and level.spec.max_wait is not None:
            self.timers.add_once(level.since + level.spec.max_wait, level)

    def _finish_level(self, level: Level, now: float) -> None:
        level.finish()
        if level is self.source:
            self.doomed = True
        if level is self.last:
            return
        above = self.levels[level.number + 1]
        if level.spec.rows is not None:
            above.stop = self._last_slot(level, level.spec.rows)
        else:
            above.stop = level.groups
        if level.failure is not None:
            # The incomplete group in which the failure lies stands for it one level up.
            number = above.stop
            above.stop = number + 1
            block = Block(above.number, 0, number, 1, [], [])
            block.failure = level.failure
            above.arrive(block, now)

    def _last_slot(self, level: Level, rows: int) -> int:
        """The number of early batches, now that the end is known; a short one is completed."""
        end = level.front if level.failure is None else level.front - 1
        groups, rest = divmod(end - level.first, rows)
        number = level.groups + groups
        if level.failure is not None or rest == 0:
            return number
        if level.spec.drop_last:
            level.slots.clear()
            return number
        if number in level.slots and level.slots[number].rows != rest:
            slot = level.slots[number]
            slot.left -= slot.rows - rest
            slot.rows = rest
            self._rise(slot)
        return number + 1

    def abort(self, error: BaseException) -> None:
        """End the run here and now, whatever its order."""
        if not self.finished:
            self.last.failure = Failure(-1, -1, -1, error)
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        end = Delivery(self.last.number, self.last.front, ())
        end.ended = True
        end.failure = self.last.failure
        self.deliveries.append(end)


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
    return levels


def _rows(level: Level, rows: int, block: Block) -> list[tuple[Slot, int, int, int]]:
    """Which rows of which batches the units of a block are."""
    slots = []
    begin = block.start
    while begin < block.stop:
        number, row = divmod(begin - level.first, rows)
        number += level.groups
        end = min(block.stop, begin + rows - row)
        if number not in level.slots:
            whole = rows
            if level.stop is not None:
                whole = min(rows, level.stop - (begin - row))
            level.slots[number] = Slot(number, whole)
        slots.append((level.slots[number], row, begin, end))
        begin = end
    return slots

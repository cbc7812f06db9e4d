"""Looking ahead: how many units may be claimed now.

Guarantees
- Units are claimed in order.
- Live units (claimed, and neither dropped nor taken by the consumer) stay within the window;
  those without an outcome within two.
- With a byte budget, no unit is claimed that would exceed it, going by the largest sample and
  the largest batch so far: a unit is charged as the largest until the last op has made of it
  what it will be, and a batch with early rows as the largest from its first unit on. While
  nothing is known of either, no more units are claimed than there are threads, and no second
  batch is begun.
"""

from __future__ import annotations

from nogil_loader.engine.core.block import Block
from nogil_loader.engine.core.level import Level, Slot
from nogil_loader.engine.core.segment import Segment
from nogil_loader.engine.core.spec import CoreSpec

SPREAD = 4
"""Blocks a worker that the window has room for, and that the end is cut into."""
_FAR = 64
"""Windows that completion order may run ahead of the slowest unit."""
_SLACK = 64
"""A block is at most this small a share of each worker's part of the byte budget."""
_ENDLESS = 1 << 62


class Ahead:
    """See the top of this module."""

    def __init__(self, spec: CoreSpec, source: Level, head: Segment, *, stream: bool) -> None:
        self._source = source
        self._head = head
        self._threads = sum(spec.workers)
        self._even = spec.block is None and not stream
        """Whether blocks shrink towards the end, so that all workers finish together."""
        self._bound = 0
        """Early rows: units below this one are within the window, which only moves on."""
        self.memory = spec.memory
        self.claimed = source.first
        """The next unit to claim."""
        self.available = source.first if stream else None
        """Streams: units below this one have been read."""
        self.doomed = False
        """Whether nothing more is claimed: a failure, or enough, lies ahead."""
        self.credited = 0
        """Outputs of level 0 that the consumer took, or of which nothing came."""
        self.charged = 0
        """Bytes in flight, and those that running tasks are expected to add."""
        self.largest = 0
        """Bytes of the largest cell of level 0 so far."""
        self.batch: int | None = None
        """Early rows: bytes of the largest batch so far; None before the first is whole."""
        self.passed = False
        """Whether any unit has been through level 0, so that ``largest`` tells something."""
        self._rows = spec.levels[0].rows
        self._begun = 0
        """Early rows: batches of which a unit was claimed."""
        self.least = _least_window(spec)
        self._clear = 0
        """Units below this one may be claimed in blocks of ``_size`` with no further question."""
        self._size = 0

    def doom(self) -> None:
        """A failure, or enough, lies ahead: nothing more is claimed."""
        self.doomed = True
        self._clear = 0

    @property
    def exhausted(self) -> bool:
        """Whether no unit will ever be claimed again."""
        stop = self._source.stop
        return self.doomed or (stop is not None and self.claimed >= stop)

    @property
    def left(self) -> int:
        """Units that are there and not claimed, whatever the bounds."""
        stop = self._source.stop
        if self.available is not None:
            stop = self.available if stop is None else min(stop, self.available)
        return _ENDLESS if stop is None else stop - self.claimed

    def allowed(self) -> int:
        """Units that may be claimed now: a whole block, or none."""
        head = self._head
        size = head.size
        if self.claimed + size <= self._clear and size == self._size:
            return size  # nearly always
        if self.doomed:
            return 0
        stop = self._source.stop
        left = self.left if stop is None or self.available is not None else stop - self.claimed
        if left <= 0:
            return 0
        if head.special and not head.admits(self.claimed):
            return 0
        if self.claimed < self._source.point.unit:
            return 1  # a unit to run again
        if self._even and left < size * SPREAD * head.threads:
            # Towards the end, blocks so small that all workers finish together.
            left = max(1, left // (SPREAD * head.threads))
        count = size if size <= left and not head.special else head.wanted(left)
        if self._rows is None or self.memory is not None:
            return self._measured(count)
        if self.claimed + count > self._bound:
            count = self._measured(count)
        if stop is not None and self.available is None and not head.special:
            # Until then, neither the window nor the end is near.
            last = stop - size * SPREAD * head.threads if self._even else stop
            self._clear, self._size = min(self._bound, last), size
        return count

    def _measured(self, count: int) -> int:
        source, head = self._source, self._head
        window = max(self.least + head.size, SPREAD * head.size * head.threads)
        span = self.claimed - source.front
        live = span - source.overtaken + source.judged - self.credited
        room = min(window - live, 2 * window - (span - source.kept), _FAR * window - span)
        if self.memory is not None:
            count = self.affordable(self.memory, count)
        self._bound = self.claimed + room
        return count if room >= count else 0

    def affordable(self, memory: int, count: int) -> int:
        """So many units, fewer, or none, by the byte budget."""
        if not self.passed:
            if self.claimed - self._source.first >= self._threads:
                return 0
            count = 1
        most = memory // (_SLACK * self._threads * max(1, self.largest))
        count = min(count, max(1, most))
        batches = 0
        if self._rows is not None:
            left = self._begun * self._rows - (self.claimed - self._source.first)
            if left:
                count = min(count, left)
            elif self._begun and self.batch is None:
                return 0
            else:
                batches = -(-count // self._rows)
        cost = count * self.largest + batches * (self.batch or 0)
        return count if self.charged + cost <= memory else 0

    def claim(self, count: int) -> Block:
        """Take the next units."""
        source = self._source
        block = Block(0, 0, self.claimed, count)
        if source.stand_in and self.claimed in source.stand_in:
            block.alone = True
            block.first = source.stand_in[self.claimed]
        if self.memory is not None and self._rows is not None:
            while self._begun * self._rows < self.claimed + count - source.first:
                source.promised[source.groups + self._begun] = self.batch or 0
                self.charged += self.batch or 0
                self._begun += 1
        self.claimed += count
        return block

    def reserve(self, block: Block) -> int:
        """Charge a block for what it is expected to become; returns what it is charged."""
        expected = self._expected(block)
        self.charged += expected - block.size
        return expected

    def settle(self, reserved: int, block: Block, largest: int, *, final: bool) -> None:
        """A task is over: its block is charged what it is, or (not ``final``: there is more to
        be done to it) what it may yet become."""
        if block.level == 0:
            self.largest = max(self.largest, largest)
            self.passed = self.passed or final
        if not final:
            block.size = self._expected(block)
        self.charged += block.size - reserved

    def _expected(self, block: Block) -> int:
        """Bytes of the block, were all its cells as large as the largest."""
        if block.level:
            return block.size
        cells = block.count if block.cells is None else len(block.cells)
        return max(block.size, cells * self.largest)

    def grow(self, slot: Slot, size: int) -> None:
        """A batch with early rows holds more than it did."""
        slot.size += size
        covered = min(size, slot.reserved)
        slot.reserved -= covered
        self.charged += size - covered

    def whole(self, slot: Slot) -> None:
        """A batch with early rows will not grow any more."""
        self.charged -= slot.reserved
        slot.reserved = 0
        self.batch = max(self.batch or 0, slot.size)


def _least_window(spec: CoreSpec) -> int:
    """Look-ahead in units, whatever the block size."""
    rows = spec.levels[0].rows or spec.group_size
    blocking = sum(spec.workers[1:]) + sum(
        part.in_flight or 0 for level in spec.levels for part in level.segments
    )
    return max(spec.prefetch * rows, rows, SPREAD * blocking)

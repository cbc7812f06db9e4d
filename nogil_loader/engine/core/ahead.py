"""Looking ahead: how many units may be claimed now.

Guarantees
- Units are claimed in order.
- Live units (claimed, and neither dropped nor taken by the consumer) stay within the window;
  those without an outcome within two.
- With a byte budget, no unit is claimed that would exceed it, going by the largest so far.
"""

from __future__ import annotations

from nogil_loader.engine.core.block import Block
from nogil_loader.engine.core.level import Level
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
        self._early = spec.levels[0].rows is not None
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
        """Bytes of the largest cell so far."""
        self.least = _least_window(spec)

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
        if self.doomed:
            return 0
        stop = self._source.stop
        left = self.left if stop is None or self.available is not None else stop - self.claimed
        if left <= 0:
            return 0
        head = self._head
        if head.special and not head.admits(self.claimed):
            return 0
        if self.claimed < self._source.point.unit:
            return 1  # a unit to run again
        size = head.size
        if self._even and left < size * SPREAD * head.threads:
            # Towards the end, blocks so small that all workers finish together.
            left = max(1, left // (SPREAD * head.threads))
        count = size if size <= left and not head.special else head.wanted(left)
        if self._early and self.memory is None and self.claimed + count <= self._bound:
            return count
        return self._measured(count)

    def _measured(self, count: int) -> int:
        source, head = self._source, self._head
        window = max(self.least + head.size, SPREAD * head.size * head.threads)
        span = self.claimed - source.front
        live = span - source.overtaken + source.judged - self.credited
        room = min(window - live, 2 * window - (span - source.kept), _FAR * window - span)
        if self.memory is not None:
            most = self.memory // (_SLACK * self._threads * max(1, self.largest))
            count = min(count, max(1, most)) if self.largest else 1
            if self.charged + count * self.largest > self.memory:
                return 0
        self._bound = self.claimed + room
        return count if room >= count else 0

    def claim(self, count: int) -> Block:
        """Take the next units."""
        source = self._source
        block = Block(0, 0, self.claimed, count)
        if source.stand_in and self.claimed in source.stand_in:
            block.alone = True
            block.first = source.stand_in[self.claimed]
        self.claimed += count
        return block

    def reserve(self, block: Block) -> int:
        """Charge a block for what it is expected to become; returns what it is charged."""
        expected = max(block.size, block.count * self.largest)
        self.charged += expected - block.size
        return expected

    def settle(self, reserved: int, actual: int, largest: int) -> None:
        """A block is done: charge what it really became."""
        self.charged += actual - reserved
        self.largest = max(self.largest, largest)


def _least_window(spec: CoreSpec) -> int:
    """Look-ahead in units, whatever the block size."""
    rows = spec.levels[0].rows or spec.group_size
    blocking = sum(spec.workers[1:]) + sum(
        part.in_flight or 0 for level in spec.levels for part in level.segments
    )
    return max(spec.prefetch * rows, rows, SPREAD * blocking)

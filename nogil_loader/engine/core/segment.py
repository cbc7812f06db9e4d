"""A segment at run time: the blocks that wait before it, and how large they should be.

Guarantees
- Blocks are offered lowest unit first; in a serial segment, strictly in unit order.
- The block size follows the measured seconds a unit towards the target, from 1, growing at
  most fourfold at a time.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from nogil_loader.engine.core.block import Block
from nogil_loader.engine.core.spec import SegmentSpec
from nogil_loader.engine.core.tuning import Tuner

if TYPE_CHECKING:
    from nogil_loader.engine.core.level import Level

_LARGEST = 1024
_WORTH = 2e-4
"""Seconds of work that are worth another block: to hand one over may take a thread's wakening."""
_WEIGHT = 0.25
"""Of the newest measurement in the moving average."""


class Segment:
    """See the top of this module."""

    __slots__ = (
        "_queue",
        "block",
        "estimate",
        "flown",
        "following",
        "gets",
        "in_flight",
        "level",
        "next",
        "number",
        "rows",
        "running",
        "size",
        "spec",
        "special",
        "target",
        "threads",
        "tuner",
        "units",
        "waited",
    )

    def __init__(
        self, level: Level, spec: SegmentSpec, threads: int, block: int | None, target: float
    ) -> None:
        self.level = level
        self.spec = spec
        self.following: Segment | None = None
        """The next segment of the level."""
        self.next = level.first
        """Serial: the unit whose turn it is."""
        self.threads = threads
        self.rows: int | None = None
        """The batch size, where this segment ends in early rows."""
        self.special = (
            spec.limit is not None or spec.serial or spec.kind != 0 or spec.in_flight is not None
        )
        """Whether more than its size bounds a block or the workers inside."""
        self.block = block
        self.target = target
        self.size = block or 1
        """Units a block should have now."""
        self.estimate = 0.0
        """Seconds a unit, a moving average."""
        self.number = 0
        """Among all segments of the run."""
        self.units = 0
        """Units that wait."""
        self.gets = self.waited = 0
        """Times that a worker took some, and the units that waited then, added up."""
        self.running = 0
        """Workers inside."""
        self.in_flight = 0
        """Futures of the last op that have not settled."""
        self.flown = 0.0
        """Seconds that futures were in flight, added up."""
        self.tuner = (
            Tuner("+".join(op.name for op in level.spec.ops[spec.first : spec.last]), threads)
            if spec.auto
            else None
        )
        """``threads="auto"``: how many workers may be inside."""
        self._queue: list[tuple[int, Block]] = []

    def put(self, block: Block) -> None:
        """A block stands before the segment, or half-way through one of its ops."""
        heappush(self._queue, (block.start, block))
        self.units += block.count

    def admits(self, unit: int) -> bool:
        """Whether a block from this unit on could go in."""
        spec = self.spec
        if spec.limit is not None and self.running >= spec.limit:
            return False
        if spec.in_flight is not None and self.in_flight + self.running >= spec.in_flight:
            return False
        if self.tuner is not None and self.running >= self.tuner.gate:
            return False
        return not spec.serial or (self.running == 0 and self.next == unit)

    @property
    def ready(self) -> bool:
        """Whether a block could be taken now."""
        if not self._queue:
            return False
        return not self.special or self.admits(self._queue[0][0])

    def get(self) -> Block:
        """Take the lowest block, split or merged with its neighbours to the right size."""
        queue = self._queue
        self.gets += 1
        self.waited += self.units
        block = heappop(queue)[1]
        want = self.wanted(self.units)
        first = self.spec.first
        if block.out is None and block.failure is None and block.op == first:
            if block.count > want:
                heappush(queue, (block.start + want, block.split(block.start + want)))
            while block.count < want and queue and block.failure is None:
                start, other = queue[0]
                plain = (
                    other.out is None and other.op == first and other.count <= want - block.count
                )
                if start != block.stop or not plain or not mergeable(block, other):
                    break
                heappop(queue)
                block.merge(other)
        self.units -= block.count
        return block

    def wanted(self, available: int) -> int:
        """Units for the next block when so many are available."""
        size = self.size
        if self.block is None and self.spec.kind:
            # A hundred cheap samples must not become a hundred requests one after another.
            worth = int(_WORTH / self.estimate) if self.estimate > 0.0 else 0
            size = min(size, max(worth, available // self.threads))
        if self.spec.in_flight is not None:
            size = 1
        return max(1, min(size, available))

    def observe(self, units: int, seconds: float) -> None:
        """Learn from a finished block."""
        each = seconds / units
        if self.estimate:
            self.estimate += _WEIGHT * (each - self.estimate)
        else:
            self.estimate = each
        fit = int(self.target / self.estimate) if self.estimate > 0.0 else _LARGEST
        self.size = max(1, min(fit, self.size * 4, _LARGEST))

    def drain(self) -> list[Block]:
        """Forget what waits, and return it."""
        blocks = [block for _, block in self._queue]
        self._queue.clear()
        self.units = 0
        return blocks


def mergeable(block: Block, other: Block) -> bool:
    """Whether neighbours at the same op can become one block."""
    if block.alone or other.alone:
        return False
    return (block.cells is None) == (other.cells is None)

"""What a worker is given, and what it reports in the same object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from nogil_loader.engine.core.block import Block

if TYPE_CHECKING:
    from nogil_loader.engine.core.level import Closed, Slot
    from nogil_loader.engine.core.segment import Segment

Rows: TypeAlias = "tuple[Slot, int, int, int]"
"""(batch, first row, from unit, to unit)."""


class Task:
    """Carry a block through a segment, or collate a group.

    One is made for every block, so what is rarely set has its default in the class.
    """

    slots: list[Rows] | None = None
    """Early rows of the units of the block."""
    closed: Closed | None = None
    """The group to collate."""
    charged = 0
    """Bytes that are reserved for the block while it runs."""
    revoked = False
    """The lease expired: whatever the worker still does, does not count."""
    over = False
    """The task was finished."""
    # The report:
    failed: Sequence[tuple[int, BaseException]] = ()
    """Cells of ``block`` whose op raised (or, collating, one error)."""
    futures = 0
    """How many results in ``block.out`` are futures."""
    largest = 0
    """Bytes of the largest cell (with a byte budget only)."""
    allocated = 0
    """Bytes of the collated batch."""
    growth: Sequence[tuple[Slot, int]] = ()
    """Bytes by which batches with early rows grew: their arrays, and objects in their rows."""
    value: object = None
    """The collated batch."""

    def __init__(self, segment: Segment | None, block: Block | None, since: float) -> None:
        self.segment = segment
        self.block = block
        self.since = since

    @classmethod
    def collate(cls, closed: Closed) -> Task:
        """The task that makes a batch of a closed group."""
        task = cls(None, None, 0.0)
        task.closed = closed
        return task

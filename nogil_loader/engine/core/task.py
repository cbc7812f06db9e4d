"""What a worker is given, and what it reports in the same object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nogil_loader.engine.core.block import Block

if TYPE_CHECKING:
    from nogil_loader.engine.core.level import Closed, Slot
    from nogil_loader.engine.core.segment import Segment


class Task:
    """Carry a block through a segment, or collate a group."""

    __slots__ = (
        "allocated",
        "block",
        "charged",
        "closed",
        "failed",
        "futures",
        "largest",
        "revoked",
        "segment",
        "since",
        "slots",
        "value",
    )

    def __init__(self, segment: Segment | None, block: Block | None, since: float) -> None:
        self.segment = segment
        self.block = block
        self.since = since
        self.slots: Sequence[tuple[Slot, int, int, int]] = ()
        """Early rows: (batch, first row, from unit, to unit) of the units of the block."""
        self.closed: Closed | None = None
        """The group to collate."""
        self.charged = 0
        """Bytes that are reserved for the block while it runs."""
        self.revoked = False
        """The lease expired: whatever the worker still does, does not count."""
        # The report:
        self.failed: list[tuple[int, BaseException]] = []
        """Cells of ``block`` whose op raised (or, collating, one error)."""
        self.futures = 0
        """How many results in ``block.out`` are futures."""
        self.largest = 0
        """Bytes of the largest cell (with a byte budget only)."""
        self.allocated = 0
        """Bytes of batch buffers that were made."""
        self.value: object = None
        """The collated batch."""

    @classmethod
    def collate(cls, closed: Closed) -> Task:
        """The task that makes a batch of a closed group."""
        task = cls(None, None, 0.0)
        task.closed = closed
        return task

"""What waits for a time: retries, futures with a timeout, groups with a longest wait."""

from __future__ import annotations

from collections.abc import Sized
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from nogil_loader.engine.core.block import Block
    from nogil_loader.engine.core.level import Level
    from nogil_loader.engine.core.task import Task

    Entry: TypeAlias = "Block | Task | Level"


class Timers:
    """Entries by time; the time itself is always an argument."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self.entries: Sized = self._heap
        """What waits; to be asked for its truth once a block, which a method would cost."""
        self._sequence = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, when: float, entry: Entry) -> None:
        """Give the entry back at that time."""
        self._sequence += 1
        heappush(self._heap, (when, self._sequence, entry))

    def add_once(self, when: float, entry: Entry) -> None:
        """The same, unless the entry already waits."""
        for _, _, other in self._heap:  # no generator: 3.13t would never free its function
            if other is entry:
                return
        self.add(when, entry)

    def forget(self, entry: Entry) -> None:
        """The entry no longer waits."""
        kept = [item for item in self._heap if item[2] is not entry]
        if len(kept) < len(self._heap):
            self._heap[:] = sorted(kept)  # sequence numbers differ: entries are not compared

    def due(self, now: float) -> bool:
        """Whether the first entry's time has come."""
        return self._heap[0][0] <= now

    def first(self) -> float | None:
        """The earliest time, if any."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> list[Entry]:
        """All entries whose time has come."""
        due: list[Entry] = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heappop(self._heap)[2])
        return due

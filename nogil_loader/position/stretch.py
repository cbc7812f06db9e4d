"""A stretch of outputs, one by one: what ``take`` and ``skip`` are after a batch or filter.

Guarantees: outputs before ``begin`` and from ``begin + length`` on are in no group; every
other is a group of its own; ``done`` once no further group can come.
"""

from __future__ import annotations

from collections.abc import Sequence

from nogil_loader.position.grouping import Group
from nogil_loader.position.parse import JSON


class Stretch:
    """Outputs ``begin … begin + length - 1`` (to the end with ``length=None``), one a group.

    >>> [list(group.items) for group in Stretch(1, 2).push(5)]
    [[1], [2]]
    """

    needs_size = False
    largest: int | None = None

    def __init__(self, begin: int, length: int | None) -> None:
        self._next = 0
        self._begin = begin
        self._end = None if length is None else begin + length
        self._passed = 0

    @property
    def done(self) -> bool:
        """Whether no further group will come."""
        return self._end is not None and self._next + self._passed >= self._end

    def push(self, count: int, sizes: Sequence[int] | None = None) -> list[Group]:
        first = self._next
        self._next += count
        groups = []
        for ordinal in range(first, self._next):
            place = ordinal + self._passed
            if place >= self._begin and (self._end is None or place < self._end):
                memo: JSON = place + 1
                groups.append(Group(range(ordinal, ordinal + 1), None, (), memo, ordinal + 1))
        return groups

    def flush(self) -> list[Group]:
        return []

    boundary = flush

    def restore(self, memo: JSON, pending: int) -> None:
        self._passed = memo if isinstance(memo, int) else 0

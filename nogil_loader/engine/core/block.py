"""Blocks: consecutive units of one level on their way through its ops.

Guarantees
- A block covers the units ``start … start + count - 1`` of its level and stands before op
  ``op``. It is split and merged only between units, never inside one.
- ``ids is None`` means one cell per unit, in order. Otherwise ``ids`` is parallel to
  ``cells`` and strictly ascending: plain unit numbers while cells were only dropped, tuples
  ``(unit, child, …)`` once a ``flat_map`` multiplied them. A unit may have no cell at all.
- A failure truncates: no cell of the block lies behind it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Ident: TypeAlias = "int | tuple[int, ...]"
"""A cell's place in its level: the unit, or (unit, child, …)."""


class Failure(NamedTuple):
    """An error that ends the run when everything before it has been delivered."""

    level: int
    ident: Ident
    op: int
    """The op that raised; -1 for collating, or reading a stream."""
    error: BaseException


class Skip(NamedTuple):
    """A cell that was dropped because its op raised, under ``on_error="skip"``."""

    level: int
    ident: Ident
    op: int
    error: BaseException


class Pending(NamedTuple):
    """A cell of a half-done op that still needs a result, and how to get it."""

    cell: int
    """Which cell of the block."""
    how: int
    """``AGAIN``, ``SUBSTITUTE`` or ``RESOLVE``."""
    error: BaseException | None


AGAIN, SUBSTITUTE, RESOLVE = 0, 1, 2
"""Call the op once more; call the stage's substitute; take the future's result."""


def unit_of(ident: Ident) -> int:
    """The unit a cell belongs to."""
    return ident if isinstance(ident, int) else ident[0]


def as_tuple(ident: Ident) -> tuple[int, ...]:
    """An ident in the form that compares with any other of its level."""
    return (ident,) if isinstance(ident, int) else ident


class Block:
    """Consecutive units, as described at the top of this module.

    One is made for every block, so what is rarely set has its default in the class.
    """

    out: list[object] | None = None
    """Results of op ``op``, parallel to ``cells``, where some still need work."""
    pending: Sequence[Pending] = ()
    """Which of them, and how."""
    failure: Failure | None = None
    skips: list[Skip] | None = None
    size = 0
    """Bytes charged for the cells."""
    tries: dict[Ident, int] | None = None
    """Attempts so far, by cell."""
    since = 0.0
    """When the first of its units was claimed."""
    delivered = False
    """Its cells went to the consumer out of order; only its place in the order is left."""
    alone = False
    """Never merged: a unit of an upper level, or one that stands in for ``first``."""
    first = -1
    """``alone``: the level-0 unit by which randomness is keyed, or that is to be read."""

    def __init__(
        self,
        level: int,
        op: int,
        start: int,
        count: int,
        cells: list[object] | None = None,
        ids: list[Ident] | None = None,
    ) -> None:
        self.level = level
        self.op = op
        self.start = start
        self.count = count
        self.cells = cells
        """The values; None where the units have yet to be read from the source."""
        self.ids = ids

    @property
    def stop(self) -> int:
        """The unit after the last."""
        return self.start + self.count

    def __repr__(self) -> str:
        return f"Block({self.level}.{self.op}, {self.start}+{self.count}, cells={self.cells!r})"

    def ident(self, index: int) -> Ident:
        """Which cell of the level ``cells[index]`` is."""
        return self.start + index if self.ids is None else self.ids[index]

    def where(self, unit: int) -> int:
        """The index of the first cell that belongs to ``unit`` or a later one."""
        ids = self.ids
        if ids is None:
            return unit - self.start
        if not ids:
            return 0
        if type(ids[0]) is int:
            return bisect_left(ids, unit)
        return bisect_left(ids, (unit,))

    def split(self, unit: int) -> Block:
        """Keep the units before ``unit``; return a block of the others.

        Neither half-done results nor failures may be split off: the core settles those first.
        """
        index = self.where(unit)
        rest = Block(self.level, self.op, unit, self.stop - unit)
        self.count = unit - self.start
        whole = len(self.cells) if self.cells is not None else 0
        if self.cells is not None:
            rest.cells = self.cells[index:]
            del self.cells[index:]
        if self.ids is not None:
            rest.ids = self.ids[index:]
            del self.ids[index:]
        if self.out is not None:
            rest.out = self.out[index:]
            del self.out[index:]
        if self.skips:
            rest.skips = [skip for skip in self.skips if unit_of(skip.ident) >= unit]
            self.skips = [skip for skip in self.skips if unit_of(skip.ident) < unit]
        if self.failure is not None and unit_of(self.failure.ident) >= unit:
            rest.failure, self.failure = self.failure, None
        if self.tries:
            rest.tries = dict(self.tries)
        rest.since = self.since
        if self.size and whole:
            rest.size = self.size * (whole - index) // whole
            self.size -= rest.size
        return rest

    def merge(self, following: Block) -> None:
        """Take in the block that begins where this one stops, at the same op."""
        if self.cells is not None and following.cells is not None:
            if self.ids is not None or following.ids is not None:
                mine = range(self.start, self.stop) if self.ids is None else self.ids
                ids: list[Ident] = list(mine)
                if following.ids is None:
                    ids.extend(range(following.start, following.stop))
                else:
                    ids.extend(following.ids)
                self.ids = ids
            self.cells.extend(following.cells)
        self.count += following.count
        self.size += following.size
        self.failure = following.failure
        self.since = min(self.since, following.since)
        if following.skips:
            self.skips = (self.skips or []) + following.skips

    def truncate(self, index: int, failure: Failure) -> None:
        """Fail at cell ``index``: it and everything behind it is cut off."""
        self.count = unit_of(failure.ident) + 1 - self.start
        assert self.cells is not None
        if self.ids is None:
            # The failing unit stays in the count, but has no cell: ids must say so.
            self.ids = list(range(self.start, self.start + index))
        del self.cells[index:]
        del self.ids[index:]
        if self.out is not None:
            del self.out[index:]
        self.failure = failure
        if self.skips:
            end = as_tuple(failure.ident)
            self.skips = [skip for skip in self.skips if as_tuple(skip.ident) < end]

    def drop(self, indices: Sequence[int]) -> None:
        """Remove cells (ascending indices); their units stay."""
        assert self.cells is not None
        ids: list[Ident] = list(range(self.start, self.stop)) if self.ids is None else self.ids
        for index in reversed(indices):
            del self.cells[index]
            del ids[index]
            if self.out is not None:
                del self.out[index]
        self.ids = ids

"""Which outputs of one level form one unit of the next: batches, and what they share.

Guarantees
- A grouper is a pure state machine over *ordinals*: 0, 1, 2, ... in the order outputs are
  pushed. It never sees the outputs, only how many there are and, where it asks, their sizes.
- The groups do not depend on how pushes are cut: ``push(5)`` is five times ``push(1)``.
- Cut law: stop after any group, give its ``memo`` to ``restore`` of a fresh grouper, push
  its ``pending`` outputs again in that order and go on: the same groups follow, with
  ordinals counted anew. Only an output that spans several groups (``concat``) completes
  one when it is pushed again.

A grouper belongs to one thread at a time; the engine calls it under its own lock. Groupers
build no function per push (so no lambda and no generator expression): free-threaded
CPython 3.13 never frees one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nogil_loader.position.parse import JSON


@dataclass(frozen=True, slots=True)
class Group:
    """One unit of the next level."""

    items: Sequence[int]
    """Ordinals of the outputs in it, in row order; a ``range`` for plain batches."""
    layout: object
    """None for a plain batch; a bucket's boundary; the ``Segment``s of packs."""
    pending: tuple[int, ...]
    """Ordinals pushed but not, or not wholly, in a group when this one closed; in order."""
    memo: JSON
    """What ``restore`` needs beside those outputs pushed again."""
    upto: int
    """How many outputs had been pushed when it closed."""


class Grouper(Protocol):
    """Forms groups of outputs as they come."""

    @property
    def needs_size(self) -> bool:
        """Whether ``push`` needs one size for each output: its length, in whatever unit."""
        ...

    @property
    def largest(self) -> int | None:
        """The largest size that some group can hold; None where there is no limit.

        Whoever knows the outputs checks it (``0 <= size <= largest``) before pushing, so
        that the error names the sample; ``push`` checks again.
        """
        ...

    @property
    def done(self) -> bool:
        """Whether no further group can come, whatever is pushed."""
        ...

    def push(self, count: int, sizes: Sequence[int] | None = None) -> list[Group]:
        """Tell of ``count`` more outputs; the groups they complete, in order.

        Raises ``ValueError`` for a size that no group can hold, naming the cure.
        """
        ...

    def flush(self) -> list[Group]:
        """The end of the data: the last, short groups; none of them with ``drop_last``."""
        ...

    def boundary(self) -> list[Group]:
        """The end of an epoch inside a stream: as ``flush``, and pushing may go on."""
        ...

    def restore(self, memo: JSON, pending: int) -> None:
        """Before any push: the next ``pending`` outputs pushed are a group's pending ones."""
        ...


def check_size(size: int, ordinal: int, largest: int | None, cure: str) -> None:
    """Refuse a size that no group can hold."""
    if size < 0:
        raise ValueError(f"output {ordinal} has the negative size {size}")
    if largest is not None and size > largest:
        raise ValueError(f"output {ordinal} has size {size}, above the limit of {largest}: {cure}")


class Batches:
    """Every ``size`` consecutive outputs; takes time per batch, not per output.

    >>> from nogil_loader.position.grouping import Batches
    >>> [list(group.items) for group in Batches(2).push(5)]
    [[0, 1], [2, 3]]
    """

    needs_size = False
    done = False
    largest: int | None = None

    def __init__(self, size: int, *, drop_last: bool = False) -> None:
        if size < 1:
            raise ValueError(f"batch({size}): a batch holds at least one sample")
        self._size = size
        self._drop_last = drop_last
        self._start = 0
        self._pushed = 0

    def push(self, count: int, sizes: Sequence[int] | None = None) -> list[Group]:
        self._pushed += count
        size = self._size
        groups = []
        start = self._start
        while start + size <= self._pushed:
            groups.append(Group(range(start, start + size), None, (), None, start + size))
            start += size
        self._start = start
        return groups

    def flush(self) -> list[Group]:
        start, self._start = self._start, self._pushed
        if self._drop_last or start == self._pushed:
            return []
        return [Group(range(start, self._pushed), None, (), None, self._pushed)]

    boundary = flush

    def restore(self, memo: JSON, pending: int) -> None:
        """Nothing to restore: no output is pending where a batch closes."""

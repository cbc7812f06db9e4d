"""Packs: token sequences of many lengths laid into rows of one fixed length.

Guarantees (besides those of ``grouping``)
- A group is ``rows`` packs of ``length`` tokens, the shape of a batch; only the last
  groups of the data have fewer rows.
- ``"first_fit"`` and ``"best_fit"`` never cut a sequence, and hold at most ``open_packs``
  packs open. ``"concat"`` lays the tokens end to end and cuts wherever a pack ends: no
  padding but in the last group, and no memory beyond one sequence.
- No token is lost or shown twice.

Source: the online bin-packing heuristics of Johnson, *Near-Optimal Bin Packing
Algorithms*, 1973, with a bound on open bins that closes the fullest one (Csirik and
Johnson, *Bounded Space On-Line Bin Packing: Best is Better than First*, SODA 1991).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from nogil_loader.position.grouping import Group, Grouper, check_size
from nogil_loader.position.parse import JSON, StateMismatch

Algorithm: TypeAlias = Literal["first_fit", "best_fit", "concat"]


class Segment(NamedTuple):
    """A run of tokens of one output within a group of packs."""

    item: int
    """Which of the group's ``items``."""
    row: int
    """Which pack of the group."""
    offset: int
    """Where in the pack the run begins."""
    start: int
    """Where in the output it begins: above 0 only when ``concat`` cut the output."""
    length: int
    """How many tokens."""


def packs(
    length: int,
    rows: int,
    algorithm: Algorithm = "best_fit",
    *,
    open_packs: int | None = None,
    drop_last: bool = False,
) -> Grouper:
    """The grouper for ``pack``: groups of ``rows`` packs of ``length`` tokens each.

    ``open_packs`` bounds how many packs wait for more (default: 64, at least ``rows``):
    more of them leave less padding and make a larger resume state. ``layout`` of a group
    is a tuple of ``Segment``, row by row.

    >>> from nogil_loader.position.packing import packs
    >>> grouper = packs(10, rows=1, algorithm="best_fit")
    >>> [group.items for group in grouper.push(4, [6, 7, 3, 4])]
    [(1, 2), (0, 3)]

    Raises ``ValueError`` for arguments below 1 and for an unknown algorithm.
    """
    if length < 1 or rows < 1:
        raise ValueError(f"pack(length={length}, rows={rows}): both are at least 1")
    if algorithm == "concat":
        return Concatenated(length, rows, drop_last=drop_last)
    if algorithm not in get_args(Algorithm):
        choices = ", ".join(repr(choice) for choice in get_args(Algorithm))
        raise ValueError(f"pack(algorithm={algorithm!r}): choose one of {choices}")
    bound = max(64, rows) if open_packs is None else open_packs
    if bound < 1:
        raise ValueError(f"pack(open_packs={open_packs}): at least one pack is open")
    return Fitted(length, rows, bound, best=algorithm == "best_fit", drop_last=drop_last)


_SERIAL_BITS = 40
_SERIAL = (1 << _SERIAL_BITS) - 1


class Fitted:
    """Packs of whole outputs, by first fit or best fit over a bounded number of open packs."""

    needs_size = True
    done = False

    def __init__(
        self, length: int, rows: int, open_packs: int, *, best: bool, drop_last: bool
    ) -> None:
        self.largest: int | None = length
        self._length = length
        self._rows = rows
        self._bound = open_packs
        self._best = best
        self._drop_last = drop_last
        # An open pack is one number, room << 40 | serial: sorted, the fullest come first
        # and the oldest of equals; bisecting for a size finds the best fit.
        self._open: list[int] = []
        self._contents: dict[int, list[tuple[int, int]]] = {}  # serial: (ordinal, size)s
        self._where: dict[int, int] = {}  # ordinal: serial, for all that is in no group yet
        self._ready: list[list[tuple[int, int]]] = []
        self._serial = 0
        self._pushed = 0
        self._restoring: list[int] = []  # packs of the pending outputs, the next one last

    def push(self, count: int, sizes: Sequence[int] | None = None) -> list[Group]:
        if sizes is None or len(sizes) != count:
            raise ValueError("a pack needs one size for each output")
        groups = []
        for size in sizes:
            check_size(
                size,
                self._pushed,
                self._length,
                "cut it before pack, pack to a larger length, or use algorithm='concat'",
            )
            if self._restoring:
                self._put_back(size)
                continue
            closed = self._place(size)
            if closed is not None:
                self._ready.append(self._contents.pop(closed))
                if len(self._ready) == self._rows:
                    groups.append(self._group())
        return groups

    def flush(self) -> list[Group]:
        groups = []
        waiting = sorted(self._contents, reverse=True)
        while self._ready or waiting:
            while waiting and len(self._ready) < self._rows:
                self._ready.append(self._contents.pop(waiting.pop()))
            if self._drop_last and len(self._ready) < self._rows:
                self._ready = []
            else:
                groups.append(self._group())
        self._open = []
        self._where = {}
        return groups

    boundary = flush

    def restore(self, memo: JSON, pending: int) -> None:
        if not isinstance(memo, list) or len(memo) != pending:
            raise StateMismatch(f"the state of pack lists no pack for each of {pending} outputs")
        self._restoring = [number for number in reversed(memo) if isinstance(number, int)]
        self._serial = max(self._restoring, default=-1) + 1

    def _place(self, size: int) -> int | None:
        """Lay the next output into a pack; the serial of the pack that closes, if one does.

        One output closes at most one pack, so no closed pack waits behind a group.
        """
        ordinal = self._pushed
        self._pushed = ordinal + 1
        packs = self._open
        fitting = bisect_left(packs, size << _SERIAL_BITS)
        if fitting < len(packs):
            if not self._best:
                serials = [pack & _SERIAL for pack in packs[fitting:]]
                fitting += serials.index(min(serials))
            pack = packs.pop(fitting)
            serial = self._where[ordinal] = pack & _SERIAL
            self._contents[serial].append((ordinal, size))
            if pack >> _SERIAL_BITS == size:
                return serial
            insort(packs, pack - (size << _SERIAL_BITS))
            return None
        serial = self._where[ordinal] = self._serial
        self._serial = serial + 1
        self._contents[serial] = [(ordinal, size)]
        if size == self._length:
            return serial
        fullest = packs.pop(0) & _SERIAL if len(packs) == self._bound else None
        insort(packs, (self._length - size) << _SERIAL_BITS | serial)
        return fullest

    def _put_back(self, size: int) -> None:
        """Lay a pending output where it was."""
        serial = self._restoring.pop()
        self._contents.setdefault(serial, []).append((self._pushed, size))
        self._where[self._pushed] = serial
        self._pushed += 1
        if not self._restoring:
            self._open = sorted(
                [
                    (self._length - sum([size for _, size in content])) << _SERIAL_BITS | serial
                    for serial, content in self._contents.items()
                ]
            )
            if self._open and self._open[0] < 0:
                raise StateMismatch("the outputs that waited in open packs no longer fit in them")

    def _group(self) -> Group:
        items: list[int] = []
        layout: list[Segment] = []
        for row, content in enumerate(self._ready):
            offset = 0
            for ordinal, size in content:
                layout.append(Segment(len(items), row, offset, 0, size))
                items.append(ordinal)
                offset += size
                del self._where[ordinal]
        self._ready = []
        memo: list[JSON] = list(self._where.values())
        return Group(tuple(items), tuple(layout), tuple(self._where), memo, self._pushed)


class Concatenated:
    """Packs of tokens laid end to end; an output may run on into the next pack or group."""

    needs_size = True
    done = False
    largest: int | None = None

    def __init__(self, length: int, rows: int, *, drop_last: bool) -> None:
        self._length = length
        self._tokens = length * rows
        self._drop_last = drop_last
        self._items: list[int] = []
        self._layout: list[Segment] = []
        self._filled = 0
        self._pushed = 0
        self._used = 0  # tokens of the next output that earlier groups have taken

    def push(self, count: int, sizes: Sequence[int] | None = None) -> list[Group]:
        if sizes is None or len(sizes) != count:
            raise ValueError("a pack needs one size for each output")
        groups = []
        for size in sizes:
            ordinal = self._pushed
            check_size(size, ordinal, None, "")
            self._pushed = ordinal + 1
            start, self._used = self._used, 0
            if start > size:
                raise StateMismatch(f"the output cut at token {start} has only {size} of them now")
            self._items.append(ordinal)
            while True:
                row, offset = divmod(self._filled, self._length)
                run = min(size - start, self._length - offset)
                self._layout.append(Segment(len(self._items) - 1, row, offset, start, run))
                start += run
                self._filled += run
                if self._filled == self._tokens:
                    groups.append(self._close((ordinal,) if start < size else (), start))
                    if start < size:
                        self._items.append(ordinal)
                if start == size:
                    break
        return groups

    def flush(self) -> list[Group]:
        group = self._close((), 0)
        return [] if self._drop_last or not group.items else [group]

    boundary = flush

    def restore(self, memo: JSON, pending: int) -> None:
        if not isinstance(memo, int) or pending not in (0, 1):
            raise StateMismatch("the state of pack(algorithm='concat') names no token")
        self._used = memo

    def _close(self, pending: tuple[int, ...], used: int) -> Group:
        memo = used if pending else 0
        group = Group(tuple(self._items), tuple(self._layout), pending, memo, self._pushed)
        self._items, self._layout, self._filled = [], [], 0
        return group

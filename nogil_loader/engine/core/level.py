"""A level: its frontier, and the groups that its outputs form.

Guarantees
- ``front`` only grows; every unit before it has an outcome, and outcomes are judged in unit
  order, whatever order they arrive in. So skips, failures, groups and points do not depend
  on time.
- Nothing behind a failure is ever judged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nogil_loader.engine.core.block import Block, Failure, Ident, Skip, as_tuple, unit_of
from nogil_loader.engine.core.spec import LevelSpec
from nogil_loader.position.grouping import Group, Grouper

if TYPE_CHECKING:
    from nogil_loader.engine.core.segment import Segment
    from nogil_loader.position.rest import Wanted

_SHARE_FROM = 100
"""A share of skips is judged once this many units were seen."""


class Point(NamedTuple):
    """Where a delivered value ends: all that a resume needs, level by level."""

    unit: int
    """Every unit before this one is accounted for, but the pending ones."""
    after: Ident | None = None
    """Of ``unit`` itself, the cells up to and including this one are too."""
    pending: tuple[Ident, ...] = ()
    """Cells before the point that wait in open groups."""
    memo: object = None
    """What the grouper needs to assign the pending cells as before."""
    dropped: tuple[int, ...] = ()
    """Skips so far, by op of the level (empty: none)."""
    below: Point | None = None
    """The same for the level below, at the end (or beginning) of the unit."""
    apart: Point | None = None
    """Inside a batch that is taken apart row by row: what a merge reads instead of ``below``,
    where each row is accounted for by itself."""

    @property
    def begin(self) -> int:
        """The first unit that has to be run again, or for the first time."""
        return min(self.unit, *map(unit_of, self.pending)) if self.pending else self.unit


class Span(NamedTuple):
    """What a unit of an upper level is made of."""

    begin: Point | int
    """Where it begins below; a number stands for the point before that unit."""
    end: Point | int
    weight: int
    """Outputs of level 0 in it."""
    first: int
    """The level-0 unit its first cell came from: batch-level randomness keys by it."""
    rows: Sequence[Ident] = ()
    """The cells in it, in their order."""


class Buffer(Protocol):
    """A batch in the making, which workers give to a slot; the core only keeps it."""

    misfit: bool

    def write(self, row: int, values: Sequence[object]) -> int: ...

    def kept(self, values: Sequence[object]) -> int: ...

    def spoil(self, row: int, error: BaseException) -> None: ...

    def result(self, rows: int) -> object: ...

    def explain(self, rows: int, name: Callable[[int], str]) -> BaseException: ...


class Slot:
    """A batch with early rows, while its rows are being written."""

    __slots__ = ("buffer", "left", "misfit", "number", "reserved", "rows", "since", "size")

    def __init__(self, number: int, rows: int, since: float) -> None:
        self.number = number
        self.rows = rows
        self.left = rows
        self.since = since
        """When the block was claimed that wrote the first of its rows."""
        self.buffer: Buffer | None = None
        self.size = 0
        """Bytes that it holds, as far as workers have told."""
        self.reserved = 0
        """Bytes that are charged for what it will hold beyond these."""
        self.misfit = False
        """Set by the workers' side: some row does not fit, so collating will explain it."""


class Closed(NamedTuple):
    """A group whose members are known: to be collated, then a unit of the next level."""

    level: int
    number: int
    cells: list[object]
    idents: Sequence[Ident]
    layout: object
    span: Span
    size: int
    since: float
    """When the first of the members was claimed."""


class Delivery:
    """Values for the consumer, in order, or the end or failure of the run."""

    ids: list[Ident] | None = None
    spans: list[Span] | None = None
    end: int | None = None
    """An early batch: the unit after its last row, which is all there is to its point."""
    dropped: tuple[int, ...] = ()
    upcoming: Ident | None = None
    """What was judged next, if that is known without looking: a skipped cell."""
    weight = 0
    """Outputs of level 0 that the consumer gives credit for by taking it."""
    size = 0
    """Bytes that are no longer in flight then."""
    since = 0.0
    """When the first of what is in it was claimed."""
    apart = False
    """Whether units are batches that are taken apart row by row."""
    ended = False
    """The run is over; with ``failure`` set, by that."""
    failure: Failure | None = None

    def __init__(self, level: int, start: int, values: list[object]) -> None:
        self.level = level
        self.start = start
        self.values = values

    def ident(self, index: int) -> Ident:
        """The place of ``values[index]`` in its level."""
        return self.start + index if self.ids is None else self.ids[index]

    def point(self, index: int) -> Point:
        """Where to go on after ``values[index]``."""
        if self.end is not None:
            return Point(self.start + 1, None, (), None, (), Point(self.end))
        ident = self.ident(index)
        unit = unit_of(ident)
        more = index + 1 < len(self.values)
        following = self.ident(index + 1) if more else self.upcoming
        last = following is None or unit_of(following) != unit
        span = None if self.spans is None else self.spans[unit - self.start]
        if last:
            below = None if span is None else as_point(span.end)
            return Point(unit + 1, None, (), None, self.dropped, below)
        below = None if span is None else as_point(span.begin)
        apart = None if span is None or not self.apart else behind_row(span, ident)
        return Point(unit, ident, (), None, self.dropped, below, apart)


def as_point(point: Point | int) -> Point:
    """The point that a number stands for."""
    return Point(point) if isinstance(point, int) else point


def behind_row(span: Span, ident: Ident) -> Point | None:
    """The level below when a batch was delivered up to this row: all that the batch took is
    accounted for, but its later rows. None where the row itself became many."""
    if isinstance(ident, int) or len(ident) != 2:
        return None
    end = as_point(span.end)
    return Point(end.unit, end.after, (*end.pending, *span.rows[ident[1] + 1 :]), None, end.dropped)


class Level:
    """See the top of this module."""

    def __init__(self, number: int, spec: LevelSpec, point: Point | None) -> None:
        self.number = number
        self.spec = spec
        self.segments: list[Segment] = []
        self.grouper: Grouper | None = spec.grouper() if spec.grouper is not None else None
        self.point = point if point is not None else Point(0)
        """Where the last closed group ended."""
        self.after: Ident | None = self.point.after
        self.partial: Mapping[int, Wanted] = {}
        """Units of which only some children are still to be shown."""
        self.dropped = self.point.dropped
        self.replay: dict[int, frozenset[Ident]] = {}
        """Stand-in unit -> the cells of a unit before the point that are pending."""
        self.stand_in: dict[int, int] = {}
        """Stand-in unit -> the unit it stands for."""
        if self.point.pending:
            self._plan_replay(self.point.pending)
        begun = self.point.pending or self.point.memo is not None
        if self.grouper is not None and begun:
            self.grouper.restore(self.point.memo, len(self.point.pending))  # type: ignore[arg-type]
        self.first = self.front = self.point.unit - len(self.replay)
        self.stop: int | None = None
        """The unit after the last: of the data, or the failing one."""
        self.failure: Failure | None = None
        self.ended = False
        self.waiting: dict[int, Block] = {}
        self.kept = 0
        """Units in them: their outcome is known, and it is not their turn."""
        self.overtaken = 0
        """Units of level 0 beyond the frontier that were delivered out of order."""
        self.spans: dict[int, Span] = {}
        self.slots: dict[int, Slot] = {}
        self.promised: dict[int, int] = {}
        """With a byte budget: what is charged for batches whose rows will be early, by number."""
        self.groups = 0
        """Number of the next group: a unit of the level above."""
        self.skipped: list[Skip] = []
        self.errors: dict[int, list[BaseException]] = {}
        self.upcoming: Ident | None = None
        """The skipped cell behind the cells that are being judged."""
        self.judged = 0
        """Outputs of level 0 that were judged and kept."""
        self.owed = 0
        """Level-0 outputs behind judged units that no group has taken over yet."""
        self.spare = 0
        """Level-0 outputs behind units of which nothing came: to be credited."""
        self.freed = 0
        """Bytes of blocks of which nothing came: to be given back."""
        self.since: float | None = None
        """When the first member of the open group was judged."""
        self.news = False
        """Whether anything is in the lists and counts that the core collects."""
        self.closed: list[Closed] = []
        self.deliveries: list[Delivery] = []
        # Outputs that wait for their group: one run of neighbours, or loose by ordinal.
        self.pushed = 0
        self.pooled = 0
        """Ordinal of the first output in the pool."""
        self.pool: list[object] = []
        self.pool_ids: list[Ident] = []
        self.pool_sizes: list[int] = []
        self.claims: deque[tuple[int, float]] = deque()
        """Ordinal of the first output of each block in the pool, and when it was claimed."""
        self.loose: dict[int, tuple[object, Ident, int, float]] = {}

    def _plan_replay(self, pending: tuple[Ident, ...]) -> None:
        """Number the units to run again just below the point, so that order stays order."""
        units = sorted({unit_of(ident) for ident in pending})
        for number, unit in enumerate(units, self.point.unit - len(units)):
            self.stand_in[number] = unit
            self.replay[number] = frozenset(i for i in pending if unit_of(i) == unit)

    def arrive(self, block: Block, now: float) -> None:
        """A block has been through every op; judge whatever the frontier reaches."""
        waiting = self.waiting
        every = self.spec.boundary
        if block.start == self.front and every is None and self.failure is None:
            self.front += block.count  # the common case: it is its turn
            self._judge(block, now)
            if not waiting:
                return
        else:
            waiting[block.start] = block
            self.kept += block.count
        while self.front in waiting and self.failure is None:
            front = self.front
            block = waiting[front]
            del waiting[front]
            self.kept -= block.count
            if every is not None and front // every != (block.stop - 1) // every:
                rest = block.split((front // every + 1) * every)
                waiting[rest.start] = rest
                self.kept += rest.count
            self.front = block.stop
            self._judge(block, now)
            if every is None or self.front % every or self.grouper is None:
                continue
            if self.failure is None:  # what a failure cuts short is no group
                self._close(self.grouper.boundary())

    def deliver_early(self, block: Block) -> None:
        """Completion order: deliver now; the frontier only keeps count."""
        if block.skips or block.failure is not None or self.after is not None or not block.cells:
            return
        if self.number == 0:
            self.judged += len(block.cells)
            self.owed += len(block.cells)
            self.overtaken += block.count
            block.delivered = True
        else:
            self._take_over(block)
        self.deliveries.append(self._delivery(block, block.cells))
        self.news = True
        block.cells, block.ids, block.size = [], [], 0

    def deliver_again(self, block: Block) -> None:
        """An earlier run delivered it: only where it ends is told."""
        if self.number > 0:
            self._take_over(block)
        block.cells, block.ids = [], None
        self.deliveries.append(self._delivery(block, []))
        self.news = True
        block.ids, block.size = [], 0

    def pass_through(
        self, number: int, value: object, weight: int, size: int, since: float
    ) -> Delivery | None:
        """The last level, with nothing to do: deliver a unit at once if it is its turn."""
        if number != self.front or self.waiting or self.failure is not None:
            return None
        self.front = number + 1
        delivery = Delivery(self.number, number, [value])
        delivery.weight = weight
        delivery.size = size
        delivery.since = since
        self.deliveries.append(delivery)
        self.news = True
        return delivery

    def close_open(self) -> None:
        """The first member of the open group has waited long enough."""
        if self.grouper is not None:
            self._close(self.grouper.boundary())
        self.since = None

    def finish(self) -> None:
        """Every unit that there will be was judged: close what is open."""
        self.ended = True
        if self.failure is None and self.grouper is not None:
            self._close(self.grouper.flush())

    @property
    def over(self) -> bool:
        """Whether nothing is left to judge."""
        if self.failure is not None or (self.grouper is not None and self.grouper.done):
            return True
        return self.stop is not None and self.front >= self.stop

    def _judge(self, block: Block, now: float) -> None:
        if block.delivered:
            self.overtaken -= block.count
        if block.skips:
            self._judge_between_skips(block, now)
        else:
            self._accept(block, now)
        if block.failure is not None and self.failure is None:
            self.failure = block.failure

    def _judge_between_skips(self, block: Block, now: float) -> None:
        """Count each skip at its own place, so that points and limits fall where they must."""
        skips = sorted(block.skips or (), key=lambda skip: as_tuple(skip.ident))
        block.skips = None
        for skip in skips:
            if self._accounted(skip.ident):
                continue
            head, block = _divide(block, skip.ident)
            self.upcoming = skip.ident
            self._accept(head, now)
            self.upcoming = None
            self._count(skip)
            if self.failure is not None:
                return
        self._accept(block, now)

    def _count(self, skip: Skip) -> None:
        dropped = self.dropped or (0,) * len(self.spec.ops)
        op = skip.op
        count = dropped[op] + 1
        self.dropped = (*dropped[:op], count, *dropped[op + 1 :])
        self.skipped.append(skip)
        if self.spec.complete and self.stop is not None:
            self._complete(self.stop, sum(self.dropped), skip)
        limit = self.spec.ops[op].policy.max_skips
        if limit is None:
            return
        errors = self.errors.setdefault(op, [])
        errors.append(skip.error)
        seen = unit_of(skip.ident) + 1
        if isinstance(limit, float):
            exceeded = seen >= _SHARE_FROM and count > limit * seen
        else:
            exceeded = count > limit
        if exceeded:
            name = self.spec.ops[op].name
            what = f"{count} of {seen} samples were skipped in stage {name!r} (max_skips={limit})"
            cause = [error for error in errors if isinstance(error, Exception)]
            self.failure = Failure(self.number, skip.ident, op, ExceptionGroup(what, cause))

    def _complete(self, stop: int, skipped: int, skip: Skip) -> None:
        """One more unit for the one that was skipped, while there are good ones."""
        if skipped == unit_of(skip.ident) + 1 == stop - skipped + 1:
            only = RuntimeError("all samples of this rank were skipped: nothing completes it")
            only.__cause__ = skip.error
            self.failure = Failure(self.number, skip.ident, skip.op, only)
        self.stop = stop + 1

    def _accounted(self, ident: Ident) -> bool:
        """Whether an earlier run has delivered (or dropped) this cell."""
        if self.after is not None and as_tuple(ident) <= as_tuple(self.after):
            return True
        unit, *child = as_tuple(ident)
        return unit in self.partial and tuple(child) not in self.partial[unit]

    def _accept(self, block: Block, now: float) -> None:
        if block.start in self.replay:
            self._keep_pending(block, self.replay[block.start])
        elif self.after is not None or self.partial:
            self._pass_over(block)
        if self.number > 0:
            self._take_over(block)
        if self.spec.rows is not None:
            self.judged += block.count
            return
        cells = block.cells
        if not cells:
            self.freed += block.size
            self.news = True
            return
        if self.number == 0:
            self.judged += len(cells)
            self.owed += len(cells)
        if self.grouper is None:
            self.deliveries.append(self._delivery(block, cells))
            self.news = True
        else:
            if self.since is None:
                self.since = now
            self._push(self.grouper, block)
            if self.since is None and (self.pool or self.loose):
                self.since = now  # a group closed, and the next one has begun

    def _keep_pending(self, block: Block, pending: frozenset[Ident]) -> None:
        """A unit run again for the cells of it that waited in open groups at the cut."""
        assert block.cells is not None
        block.drop([i for i in range(len(block.cells)) if block.ident(i) not in pending])

    def _pass_over(self, block: Block) -> None:
        """Of a unit that was cut, forget the cells delivered before the cut."""
        assert block.cells is not None
        passed = [i for i in range(len(block.cells)) if self._accounted(block.ident(i))]
        if passed:
            block.drop(passed)
        if self.after is not None and block.stop > unit_of(self.after):
            self.after = None

    def _take_over(self, block: Block) -> None:
        """Units of an upper level carry outputs of level 0, which are given back when
        nothing came of the unit and otherwise belong to the next group or delivery."""
        alive = None if block.ids is None else {unit_of(ident) for ident in block.ids}
        for unit in range(block.start, block.stop):
            if unit in self.spans:
                weight = self.spans[unit].weight
                if alive is None or unit in alive:
                    self.owed += weight
                else:
                    self.spare += weight
                    self.news = True

    def _delivery(self, block: Block, cells: list[object]) -> Delivery:
        delivery = Delivery(self.number, block.start, cells)
        delivery.ids = block.ids
        delivery.dropped = self.dropped
        delivery.upcoming = self.upcoming
        delivery.weight, self.owed = self.owed, 0
        delivery.size = block.size
        delivery.since = block.since
        delivery.apart = self.spec.apart
        if self.number > 0:
            delivery.spans = [self.spans[unit] for unit in range(block.start, block.stop)]
            for unit in range(block.start, block.stop):
                del self.spans[unit]
        return delivery

    def _forget_spans(self, unit: int) -> None:
        for old in [number for number in self.spans if number < unit]:
            del self.spans[old]

    # Grouping ---------------------------------------------------------------------------

    def _push(self, grouper: Grouper, block: Block) -> None:
        cells = block.cells
        assert cells is not None
        sizes: list[int] | None = None
        if grouper.needs_size:
            sizes = [cell[0] for cell in cells]  # type: ignore[index]
            cells = [cell[1] for cell in cells]  # type: ignore[index]
        ids: Sequence[Ident] = range(block.start, block.stop) if block.ids is None else block.ids
        each, rest = divmod(block.size, len(cells))
        charges = [each + rest, *[each] * (len(cells) - 1)]
        begin = self.pushed
        self.pushed += len(cells)
        if self.spec.neighbours:
            self.pool.extend(cells)
            self.pool_ids.extend(ids)
            self.pool_sizes.extend(charges)
            self.claims.append((begin, block.since))
        else:
            ordinals = range(begin, self.pushed)
            for ordinal, cell, ident, size in zip(ordinals, cells, ids, charges, strict=True):
                self.loose[ordinal] = (cell, ident, size, block.since)
        self._close(grouper.push(len(cells), sizes), ids, begin)

    def _close(self, groups: Sequence[Group], ids: Sequence[Ident] = (), begin: int = 0) -> None:
        for group in groups:
            if self.spec.neighbours:
                self._close_neighbours(group)
            else:
                self._close_loose(group, ids, begin)
        if groups:
            self.since = None

    def _close_neighbours(self, group: Group) -> None:
        """The members are the oldest outputs that wait, so what follows is known, too."""
        passed = group.items[0] - self.pooled
        if passed:  # an epoch's remainder that drop_last leaves out
            del self.pool[:passed], self.pool_ids[:passed], self.pool_sizes[:passed]
            self.spare += passed
            self.news = True
            self.owed -= passed
        count = len(group.items)
        self.pooled += passed + count
        cells, idents = self.pool[:count], self.pool_ids[:count]
        size = sum(self.pool_sizes[:count])
        claims, first = self.claims, self.pooled - count
        while len(claims) > 1 and claims[1][0] <= first:
            claims.popleft()
        following = self.pool_ids[count] if count < len(self.pool_ids) else None
        del self.pool[:count], self.pool_ids[:count], self.pool_sizes[:count]
        end = self._end(idents[-1], following)._replace(memo=group.memo)
        since = claims[0][1]
        self._emit(group, cells, idents, end, weight=count, size=size, since=since)

    def _close_loose(self, group: Group, ids: Sequence[Ident], begin: int) -> None:
        """The members came at any time; what was pushed when it closed is the point."""
        members = [self.loose[ordinal] for ordinal in group.items]
        here = group.upto - begin
        if ids:
            end = self._end(ids[here - 1], ids[here] if here < len(ids) else None)
        else:
            end = Point(self.front, None, (), None, self.dropped)
        pending = tuple(self.loose[ordinal][1] for ordinal in group.pending)
        end = end._replace(pending=pending, memo=group.memo)
        done = set(group.items).difference(group.pending)
        for ordinal in done:
            del self.loose[ordinal]
        size = sum(member[2] for member in members)
        cells, idents = [member[0] for member in members], [member[1] for member in members]
        since = min(member[3] for member in members)
        self._emit(group, cells, idents, end, weight=len(done), size=size, since=since)

    def _emit(
        self,
        group: Group,
        cells: list[object],
        idents: list[Ident],
        end: Point,
        weight: int,
        size: int,
        since: float,
    ) -> None:
        first = unit_of(idents[0])
        if self.number > 0:
            inside = end.after is not None
            below = self.spans[end.unit].begin if inside else self.spans[end.unit - 1].end
            end = end._replace(below=as_point(below))
            if end.after is not None and self.spec.apart:
                end = end._replace(apart=behind_row(self.spans[end.unit], end.after))
            first = self.spans[first].first
            weight = self.owed
            self._forget_spans(end.unit)
        self.owed -= weight
        span = Span(self.point, end, weight, first, idents)
        self.closed.append(
            Closed(self.number, self.groups, cells, idents, group.layout, span, size, since)
        )
        self.groups += 1
        self.point = end
        self.news = True

    def _end(self, last: Ident, following: Ident | None) -> Point:
        unit = unit_of(last)
        following = self.upcoming if following is None else following
        if following is not None and unit_of(following) == unit:
            return Point(unit, last, (), None, self.dropped)
        return Point(unit + 1, None, (), None, self.dropped)


def _divide(block: Block, ident: Ident) -> tuple[Block, Block]:
    """The cells before ``ident`` and those behind it, as two blocks for judging only."""
    assert block.cells is not None
    ids: list[Ident] = list(range(block.start, block.stop)) if block.ids is None else block.ids
    unit = unit_of(ident)
    if ids and type(ids[0]) is tuple:
        index = bisect_left(ids, as_tuple(ident))
    else:
        index = bisect_left(ids, unit)
    total = len(block.cells) or 1
    head = Block(block.level, block.op, block.start, unit - block.start, block.cells[:index])
    head.ids = ids[:index]
    head.size = block.size * index // total
    head.since = block.since
    rest = Block(block.level, block.op, unit, block.stop - unit, block.cells[index:])
    rest.ids = ids[index:]
    rest.size = block.size - head.size
    rest.since = block.since
    rest.failure = block.failure
    return head, rest

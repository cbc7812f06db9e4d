"""Carrying a block through ops: the loops that run the user's functions.

Guarantees
- One op after the other over the whole block; an op that raises is noted with its index and
  the loop goes on behind it. What that means is for the core to decide.
- No shared callable: every worker binds its own copy of each op once.
- Nothing is created per sample but what the op itself makes (and the dict that holds it).
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import compress
from time import monotonic, perf_counter
from typing import Protocol, TypeAlias

from nogil_loader.engine.cached import Trace
from nogil_loader.engine.core import Block, Ident, Task
from nogil_loader.engine.core.block import AGAIN, RESOLVE, SUBSTITUTE, Pending, as_tuple
from nogil_loader.engine.errors import FieldMissing, StageTimeout, UndeclaredFuture
from nogil_loader.engine.meters import OpMeter
from nogil_loader.fallback.remote import RemoteTimeout
from nogil_loader.position.keys import Keyed

Failed: TypeAlias = "list[tuple[int, BaseException]]"
Fn: TypeAlias = "Callable[..., object]"

READ, MAP, FILTER, FLAT_MAP = "read", "map", "filter", "flat_map"
MEASURE, KEEP, SEND = "measure", "keep", "send"
_PROMISE = "promise"
"""A map whose results may be futures: those stay bare until they are settled."""


@dataclass(frozen=True)
class Op:
    """What a worker does with each cell; frozen and shared, bound before use."""

    kind: str
    fn: Fn
    name: str
    key: object = None
    to: object = None
    rng: bool = False
    timed: bool = False
    future: bool = False
    substitute: Fn | None = None
    remote: bool = False
    """``fn`` runs in worker processes, a block at a time."""
    cached: bool = False
    """There is a cache further down, whose hits this op passes by."""


class Slot:
    """Where a worker says what it is doing, for those who watch over timeouts and meters.

    One writer, its worker; readers take what they see. ``work`` is replaced as a whole.
    """

    __slots__ = ("ident", "kind", "stuck", "work")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.ident = threading.get_ident()
        self.work: Work | None = None
        self.stuck = False
        """The worker was given up: it has been replaced."""


class Work:
    """A timed op over a block, as far as it has come.

    ``at`` is replaced as a whole: (which cell, or which of ``pending`` where only some cells
    still need a result; when it was begun). ``done`` counts those that came to an end.
    """

    __slots__ = ("at", "cells", "done", "failed", "ids", "op", "out", "pending", "task")

    def __init__(
        self,
        task: Task,
        op: int,
        cells: Sequence[object],
        ids: Sequence[Ident] | None,
        failed: Failed,
        out: list[object],
        pending: Sequence[Pending] | None = None,
    ) -> None:
        self.task = task
        self.op = op
        self.cells = cells
        self.ids = ids
        self.failed = failed
        self.out = out
        self.pending = pending
        self.at = (0, monotonic())
        self.done = 0

    def halt(self, error: BaseException) -> tuple[Block, Failed, list[Pending]]:
        """For the keeper: the block as far as it has come, with nothing in it that the hung
        thread could still change but the cells; the failures, the hung cell last; and what
        remains to be done."""
        block = self.task.block
        assert block is not None
        half = Block(block.level, self.op, block.start, block.count, list(self.cells))
        half.ids = None if self.ids is None else list(self.ids)
        half.alone, half.first, half.tries = block.alone, block.first, block.tries
        half.skips, half.failure, half.size = block.skips, block.failure, block.size
        number, total = self.at[0], len(self.cells)
        if self.pending is None:
            hung = number
            half.out = self.out[:number] + [None] * (total - number)
            rest = [Pending(index, AGAIN, None) for index in range(number + 1, total)]
        else:
            hung = self.pending[number].cell
            half.out = list(self.out)
            rest = list(self.pending[number + 1 :])
        failed = [entry for entry in self.failed if entry[0] < hung]
        return half, [*failed, (hung, error)], rest


class Place(Protocol):
    """Where the units of a level are: what randomness is keyed by."""

    def position(self, unit: int) -> int:
        """The global position of a level-0 unit."""
        ...

    def reference(self, block: Block, index: int) -> object:
        """What names a cell to people."""
        ...


class Driver(Protocol):
    """A worker process, as far as the engine knows one."""

    def run(
        self,
        cells: Sequence[object],
        keys: Sequence[tuple[int, ...]] | None = None,
        randomness: tuple[int, int, str] | None = None,
    ) -> list[tuple[bool, object]]:
        """(whether it went well, value or exception) of each cell."""
        ...


class Step:
    """An op bound for one worker."""

    __slots__ = (
        "fn",
        "future",
        "key",
        "keyed",
        "kind",
        "name",
        "op",
        "randomness",
        "remote",
        "substitute",
        "timed",
        "to",
    )

    def __init__(self, op: Op, fn: Fn, keyed: Keyed | None, *, whole: bool = False) -> None:
        """``whole``: ``fn`` takes whole cells, whatever field the op is meant for."""
        self.op = op
        self.kind = _PROMISE if op.future else op.kind
        self.name = op.name
        self.fn = fn
        self.key = None if whole else op.key
        self.to = op.key if op.to is None else op.to
        self.keyed = keyed
        self.timed = op.timed
        self.future = op.future
        self.remote: Driver | None = None
        """Drives the worker process that runs the op, if one does."""
        self.randomness: tuple[int, int, str] | None = None
        """What generators in that process are made from."""
        self.substitute = op.substitute


def bind(fn: Fn) -> Fn:
    """A copy of the callable that no other thread touches, where one can be made.

    Objects with ``bind()`` say themselves; partials and bound methods are copied; a plain
    function is used as it is, for module-level functions are free to share.
    """
    own = getattr(fn, "bind", None)
    if own is not None and not isinstance(fn, type):
        bound: Fn = own()
        return bound
    if isinstance(fn, functools.partial):
        return copy.copy(fn)
    method = getattr(fn, "__func__", None)
    if method is not None:
        rebound: Fn = method.__get__(fn.__self__)  # type: ignore[attr-defined]
        return rebound
    return fn


class Course:
    """The ops of a segment that nothing needs to watch: called one after the other.

    Taken for short blocks, of which most go by untimed; the next timed one makes up for them
    in the meters, so that a report is right and a block of one sample costs no clock.
    """

    __slots__ = ("cells", "first", "fns", "last", "passed")

    def __init__(self, first: int, fns: Sequence[Fn]) -> None:
        self.first = first
        self.last = first + len(fns)
        self.fns = fns
        self.cells = 0
        """Cells that went by untimed since the last timed block."""
        self.passed = 0
        """Blocks that did."""

    def make_up(self, meters: Sequence[OpMeter]) -> None:
        """Count what went by untimed as being like what was timed."""
        for number in range(self.first, self.last):
            meters[number].extend(self.cells)
        self.cells = self.passed = 0


def course(first: int, steps: Sequence[Step]) -> Course | None:
    """The steps as a plain course, if that is what they are."""
    for step in steps:
        special = step.timed or step.future or step.keyed is not None or step.key is not None
        special = special or step.remote is not None
        if special or step.kind in (FILTER, FLAT_MAP):
            return None
    return Course(first, [step.fn for step in steps])


def hurry(task: Task, block: Block, plain: Course) -> None:
    """``carry`` along a plain course, without a look at the clock."""
    cells = block.cells
    plain.passed += 1
    if block.count == 1 and (cells is None or len(cells) == 1):
        _hurry_one(task, block, plain, block.start if cells is None else cells[0])
        return
    if cells is None:
        cells = list(range(block.start, block.stop))
    plain.cells += len(cells)
    for fn in plain.fns:
        out: list[object] = []
        failed: Failed = []
        _call(fn, cells, out, failed)
        if failed:
            block.cells, block.out, task.failed = cells, out, failed
            return
        block.op += 1
        cells = out
    block.cells = cells


def _hurry_one(task: Task, block: Block, plain: Course, value: object) -> None:
    """The same for a block of a single cell, where a list and a loop for each op would be
    most of the cost."""
    plain.cells += 1
    op = block.op
    try:
        for fn in plain.fns:
            value = fn(value)
            op += 1
    except BaseException as error:
        out: list[object] = []
        failed: Failed = []
        _note(out, failed, error)
        block.out, task.failed = out, failed
    block.op = op
    block.cells = [value]


def carry(
    task: Task,
    block: Block,
    last: int,
    steps: Sequence[Step],
    place: Place,
    slot: Slot,
    meters: Sequence[OpMeter],
) -> None:
    """Take the block through the ops up to ``last``, or to the first op with a failure.

    Leaves ``block.op`` at the next op to run. With failures (or futures), ``block.out``
    holds the results of that op and ``task.failed`` (or ``task.futures``) says what is missing.
    """
    begun = perf_counter()
    while block.op < last:
        step = steps[block.op]
        failed: Failed = []
        if block.out is None:
            cells = _inputs(block, step)
            ran = _run(task, block, step, cells, failed, place, slot)
            if ran is None:
                return
            out = ran
            calls = len(out)
        else:
            done = _complete(task, block, step, block.out, failed, place, slot)
            if done is None:
                return
            out = done
            calls = len([entry for entry in block.pending if entry.how != RESOLVE])
        if out and not step.future:
            _refuse_future(step, out, failed)
        ended = perf_counter()
        meters[block.op].add(calls, ended - begun, len(failed))
        begun = ended
        if failed:
            block.out = out
            block.pending = ()
            task.failed = failed
            return
        if step.future:
            futures = [value for value in out if isinstance(value, Future)]
            if futures:
                block.out = out
                task.futures = len(futures)
                return
        block.out = None
        block.pending = ()
        _take_shape(block, step.kind, out)
        block.tries = None
        block.op += 1


def _refuse_future(step: Step, out: list[object], failed: Failed) -> None:
    """An op that returns futures without saying so; looking at one result a block will tell."""
    value = out[0]
    if step.key is not None and type(value) is dict and step.kind == MAP:
        value = value[step.to]
    if isinstance(value, Future) and not failed:
        failed.append((0, Final(UndeclaredFuture(
            "the op returned a concurrent.futures.Future: declare it with map(fn, in_flight=n), "
            "n being how many may be unsettled at once"
        ))))  # fmt: skip


def _inputs(block: Block, step: Step) -> Sequence[object]:
    """The cells to work on; units to read become cells here."""
    if block.cells is None:
        if block.alone:
            block.cells, block.ids = [block.first], [block.first]
        else:
            block.cells = list(range(block.start, block.stop))
    return block.cells


def _run(
    task: Task,
    block: Block,
    step: Step,
    cells: Sequence[object],
    failed: Failed,
    place: Place,
    slot: Slot,
) -> list[object] | None:
    """The results of a whole block, or None when the lease was revoked in between."""
    if step.timed:
        return _run_timed(task, block, step, cells, failed, place, slot)
    out: list[object] = []
    if step.remote is not None:
        keys = list(_keys(block, place)) if step.randomness is not None else None
        _call_remote(step, step.remote, cells, keys, out, failed)
    elif step.keyed is not None:
        _call_keyed(step, cells, _keys(block, place), out, failed)
    elif step.key is not None:
        _call_field(step.fn, step.key, step.to, step.kind, cells, out, failed)
    elif step.kind == FLAT_MAP:
        _call_many(step.fn, cells, out, failed)
    else:
        _call(step.fn, cells, out, failed)
    return out


def _call(fn: Fn, cells: Sequence[object], out: list[object], failed: Failed) -> None:
    """``fn`` of every cell. What was appended before an error stays, and ``rest`` goes on
    behind it; a StopIteration looks like the end, so the count is what tells."""
    rest = iter(cells)
    whole = len(out) + len(cells)
    while len(out) < whole:
        try:
            out.extend(map(fn, rest))
            if len(out) < whole:
                raise StopIteration
        except BaseException as error:
            _note(out, failed, error)


def _call_many(fn: Fn, cells: Iterable[object], out: list[object], failed: Failed) -> None:
    append = out.append
    rest = iter(cells)
    while True:
        try:
            for cell in rest:
                append(list(fn(cell)))  # type: ignore[call-overload]
            return
        except BaseException as error:
            _note(out, failed, error)


def _call_field(
    fn: Fn,
    key: object,
    to: object,
    kind: str,
    cells: Iterable[object],
    out: list[object],
    failed: Failed,
) -> None:
    """Ops of one field of a dict: the sample is copied, the field replaced."""
    append = out.append
    rest = iter(cells)
    cell: object = None
    while True:
        try:
            if kind == MAP and key == to:
                for cell in rest:
                    value = fn(cell[key])  # type: ignore[index]
                    sample = cell.copy()  # type: ignore[attr-defined]
                    sample[key] = value
                    append(sample)
            else:
                for cell in rest:
                    append(_field(fn, key, to, kind, cell))
            return
        except BaseException as error:
            _note(out, failed, _explain(error, key, cell))


def on_field(fn: Fn, op: Op) -> Fn:
    """``fn`` as a function of whole samples, where the op is meant for one field."""
    if op.key is None:
        return fn
    return _OnField(fn, op.key, op.key if op.to is None else op.to)


class _OnField:
    def __init__(self, fn: Fn, key: object, to: object) -> None:
        self._fn = fn
        self._key = key
        self._to = to

    def __call__(self, sample: object, *rng: object) -> object:
        key = self._key
        try:
            value = self._fn(sample[key], *rng)  # type: ignore[index]
        except BaseException as error:
            raised = _explain(error, key, sample)
            if raised is error:
                raise
            raise raised from error
        return _replaced(sample, key, self._to, value)


def _field(fn: Fn, key: object, to: object, kind: str, cell: object) -> object:
    value = fn(cell[key])  # type: ignore[index]
    if kind == FILTER or (kind == _PROMISE and isinstance(value, Future)):
        return value
    if kind == FLAT_MAP:
        return [_replaced(cell, key, to, child) for child in value]  # type: ignore[attr-defined]
    return _replaced(cell, key, to, value)


def _replaced(cell: object, key: object, to: object, value: object) -> object:
    sample: dict[object, object] = dict(cell)  # type: ignore[call-overload]
    if key != to:
        del sample[key]
    sample[to] = value
    return sample


def _explain(error: BaseException, key: object, cell: object) -> BaseException:
    """A missing field is told from an op's own KeyError."""
    if isinstance(error, KeyError) and isinstance(cell, dict) and key not in cell:
        fields = ", ".join(map(repr, cell)) or "none"
        missing = FieldMissing(f"no field {key!r} in the sample; its fields are {fields}")
        missing.__cause__ = error
        return missing
    trace = error.__traceback__
    raised_here = trace is not None and trace.tb_next is None
    if isinstance(error, TypeError) and not isinstance(cell, dict) and raised_here:
        return TypeError(f"key={key!r} needs samples that are dicts, not {type(cell).__name__}")
    return error


def _call_keyed(
    step: Step,
    cells: Sequence[object],
    keys: Iterator[tuple[int, ...]],
    out: list[object],
    failed: Failed,
) -> None:
    """Ops with a generator of their own, keyed by the place of the sample."""
    append = out.append
    fn, key, to, kind, keyed = step.fn, step.key, step.to, step.kind, step.keyed
    assert keyed is not None
    rest = iter(cells)
    cell: object = None
    while True:
        try:
            for cell in rest:
                rng = keyed(*next(keys))
                if key is None:
                    value = fn(cell, rng)
                    append(list(value) if kind == FLAT_MAP else value)  # type: ignore[call-overload]
                else:
                    value = fn(cell[key], rng)  # type: ignore[index]
                    append(_keyed_field(step, to, kind, cell, value))
            return
        except BaseException as error:
            _note(out, failed, error if key is None else _explain(error, key, cell))


def _call_remote(
    step: Step,
    driver: Driver,
    cells: Sequence[object],
    keys: Sequence[tuple[int, ...]] | None,
    out: list[object],
    failed: Failed,
) -> None:
    """Ops in another process: a block goes there and back at once."""
    values: list[object] = []
    missing: dict[int, BaseException] = {}
    for number, cell in enumerate(cells):
        try:
            values.append(cell if step.key is None else cell[step.key])  # type: ignore[index]
        except (KeyError, TypeError) as error:
            missing[number] = _explain(error, step.key, cell)
            values.append(None)
    try:
        results = driver.run(values, keys, step.randomness)
    except BaseException as error:  # no process could be started, or nothing sent
        results = [(False, error)] * len(values)
    for number, (cell, (fine, value)) in enumerate(zip(cells, results, strict=True)):
        if number in missing:
            _note(out, failed, missing[number])
        elif not fine:
            assert isinstance(value, BaseException)
            hung = isinstance(value, RemoteTimeout)
            _note(out, failed, StageTimeout(str(value)) if hung else value)
        elif step.key is not None:
            out.append(_keyed_field(step, step.to, step.kind, cell, value))
        else:
            out.append(list(value) if step.kind == FLAT_MAP else value)  # type: ignore[call-overload]


def _keyed_field(step: Step, to: object, kind: str, cell: object, value: object) -> object:
    if kind == FILTER or (kind == _PROMISE and isinstance(value, Future)):
        return value
    if kind == FLAT_MAP:
        return [_replaced(cell, step.key, to, child) for child in value]  # type: ignore[attr-defined]
    return _replaced(cell, step.key, to, value)


def _run_timed(
    task: Task,
    block: Block,
    step: Step,
    cells: Sequence[object],
    failed: Failed,
    place: Place,
    slot: Slot,
) -> list[object] | None:
    """An op with a time limit: publish before each cell, and stop when given up."""
    out: list[object] = []
    work = Work(task, block.op, cells, block.ids, failed, out)
    keys = _keys(block, place)
    slot.work = work
    for number, cell in enumerate(cells):
        key = next(keys)
        work.at = (number, monotonic())
        _one(step, cell, key, out, failed)
        work.done = number + 1
        if task.revoked:
            return None
    slot.work = None
    return out


def _one(step: Step, cell: object, key: tuple[int, ...], out: list[object], failed: Failed) -> None:
    """A single cell through the op."""
    if step.remote is not None:
        keys = [key] if step.randomness is not None else None
        _call_remote(step, step.remote, (cell,), keys, out, failed)
    elif step.keyed is not None:
        _call_keyed(step, (cell,), iter((key,)), out, failed)
    elif step.key is not None:
        _call_field(step.fn, step.key, step.to, step.kind, (cell,), out, failed)
    elif step.kind == FLAT_MAP:
        _call_many(step.fn, (cell,), out, failed)
    else:
        result: list[object] = []
        wrong: Failed = []
        _call(step.fn, (cell,), result, wrong)
        if wrong:
            failed.append((len(out), wrong[0][1]))
        out.append(result[0])


def _complete(
    task: Task,
    block: Block,
    step: Step,
    out: list[object],
    failed: Failed,
    place: Place,
    slot: Slot,
) -> list[object] | None:
    """Fill in the results that a half-done op still lacks; None when the lease was revoked.

    Each of these attempts has its own clock, too.
    """
    if not block.pending:
        return out
    keys = list(_keys(block, place))
    assert block.cells is not None
    work: Work | None = None
    if step.timed:
        out = list(out)
        work = slot.work = Work(task, block.op, block.cells, block.ids, failed, out, block.pending)
    for number, entry in enumerate(block.pending):
        if work is not None:
            work.at = (number, monotonic())
        index = entry.cell
        cell = block.cells[index]
        result: list[object] = []
        wrong: Failed = []
        if entry.how == RESOLVE:
            _resolve(step, cell, out[index], result, wrong)
        elif entry.how == SUBSTITUTE:
            assert step.substitute is not None and entry.error is not None
            _substitute(step, block, index, entry.error, place, result, wrong)
        else:
            _one(step, cell, keys[index], result, wrong)
        out[index] = result[0]
        if wrong:
            failed.append((index, wrong[0][1]))
        if work is not None:
            work.done = number + 1
            if task.revoked:
                return None
    slot.work = None
    return out


def _resolve(step: Step, cell: object, future: object, out: list[object], failed: Failed) -> None:
    if not isinstance(future, Future):
        out.append(future)
        return
    try:
        value = future.result(timeout=0)
        if step.key is not None:
            value = _replaced(cell, step.key, step.to, value)
        out.append(value)
    except BaseException as error:
        _note(out, failed, error)


def _substitute(
    step: Step,
    block: Block,
    index: int,
    error: BaseException,
    place: Place,
    out: list[object],
    failed: Failed,
) -> None:
    """Ask the stage's ``on_error`` function for a value; what it raises ends the run."""
    assert step.substitute is not None and block.cells is not None
    try:
        value = step.substitute(place.reference(block, index), error)
        if step.op.key is not None and step.kind in (MAP, _PROMISE):
            cell = block.cells[index]
            whole = cell.value if isinstance(cell, Trace) else cell
            value = _replaced(whole, step.op.key, step.to, value)
        out.append(list(value) if step.kind == FLAT_MAP else value)  # type: ignore[call-overload]
    except BaseException as raised:
        _note(out, failed, Final(raised))


class Final(BaseException):
    """Wraps what a substitute raised: no policy applies to it any more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def _note(out: list[object], failed: Failed, error: BaseException) -> None:
    """Keep the place of a failed cell. A StopIteration must not end anybody's loop."""
    if isinstance(error, StopIteration):
        stop = RuntimeError("an op raised StopIteration")
        stop.__cause__ = error
        error = stop
    failed.append((len(out), error))
    out.append(None)


def _keys(block: Block, place: Place) -> Iterator[tuple[int, ...]]:
    """(position, child, …) of each cell: what its randomness is keyed by."""
    if block.ids is None:
        if block.alone:
            yield (place.position(block.first),)
            return
        for unit in range(block.start, block.stop):
            yield (place.position(unit),)
        return
    for ident in block.ids:
        unit, *children = as_tuple(ident)
        yield (place.position(block.first if block.alone else unit), *children)


def _take_shape(block: Block, kind: str, out: list[object]) -> None:
    """What the results of an op make of the cells of the block."""
    if kind == FILTER:
        assert block.cells is not None
        ids = range(block.start, block.stop) if block.ids is None else block.ids
        block.ids = list(compress(ids, out))
        block.cells = list(compress(block.cells, out))
    elif kind == FLAT_MAP:
        ids = range(block.start, block.stop) if block.ids is None else block.ids
        children: list[Ident] = []
        cells: list[object] = []
        for ident, values in zip(ids, out, strict=True):
            parent = as_tuple(ident)
            cells.extend(values)  # type: ignore[arg-type]
            children.extend((*parent, k) for k in range(len(values)))  # type: ignore[arg-type]
        block.cells, block.ids = cells, children
    else:
        block.cells = out

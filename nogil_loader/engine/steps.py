"""Carrying a block through ops.

Guarantees
- One op after the other over the whole block, up to the end of the segment or the first op
  with a failure or a future.
- A timed op publishes what it is at before each cell, and stops when its lease is revoked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import compress
from time import monotonic, perf_counter, thread_time
from typing import Protocol

from nogil_loader.engine.batches import weigh
from nogil_loader.engine.cached import Trace
from nogil_loader.engine.calls import (
    call,
    call_field,
    call_keyed,
    call_many,
    call_one,
    call_remote,
    note,
    replaced,
)
from nogil_loader.engine.core import Block, Ident, Task
from nogil_loader.engine.core.block import AGAIN, RESOLVE, SUBSTITUTE, Pending, as_tuple
from nogil_loader.engine.errors import UndeclaredFuture
from nogil_loader.engine.ops import FILTER, FLAT_MAP, MAP, PROMISE, SEND, Failed, Final, Fn, Step
from nogil_loader.observe.meters import OpMeter


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
        half.since = block.since
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
        call(fn, cells, out, failed)
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
        note(out, failed, error)
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
    begun, on_core = perf_counter(), thread_time()
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
        ended, now_on_core = perf_counter(), thread_time()
        cpu = now_on_core - on_core if step.remote is None else step.remote.spent
        meters[block.op].add(calls, ended - begun, len(failed), cpu)
        begun, on_core = ended, now_on_core
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
        if block.cells and step.kind != SEND:
            meters[block.op].weigh(len(block.cells), weigh(block.cells))
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
        call_remote(step, step.remote, cells, keys, out, failed)
    elif step.keyed is not None:
        call_keyed(step, cells, _keys(block, place), out, failed)
    elif step.key is not None:
        call_field(step.fn, step.key, step.to, step.kind, cells, out, failed)
    elif step.kind == FLAT_MAP:
        call_many(step.fn, cells, out, failed)
    else:
        call(step.fn, cells, out, failed)
    return out


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
        call_one(step, cell, key, out, failed)
        work.done = number + 1
        if task.revoked:
            return None
    slot.work = None
    return out


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
            call_one(step, cell, keys[index], result, wrong)
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
            value = replaced(cell, step.key, step.to, value)
        out.append(value)
    except BaseException as error:
        note(out, failed, error)


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
        if step.op.key is not None and step.kind in (MAP, PROMISE):
            cell = block.cells[index]
            whole = cell.value if isinstance(cell, Trace) else cell
            value = replaced(whole, step.op.key, step.to, value)
        out.append(list(value) if step.kind == FLAT_MAP else value)  # type: ignore[call-overload]
    except BaseException as raised:
        note(out, failed, Final(raised))


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
            children += [(*parent, k) for k in range(len(values))]  # type: ignore[arg-type]
        block.cells, block.ids = cells, children
    else:
        block.cells = out

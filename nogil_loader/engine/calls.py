"""The loops that call the user's functions.

Guarantees
- Every cell is called once, in order; one that raises is noted with its index, and the loop
  goes on behind it. What that means is for the core to decide.
- Nothing is created per sample but what the op itself makes, and the dict that holds it.
- A StopIteration of an op ends nobody's loop.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType

from nogil_loader.engine.errors import FieldMissing, StageTimeout
from nogil_loader.engine.ops import (
    FILTER,
    FLAT_MAP,
    MAP,
    PROMISE,
    Driver,
    Failed,
    Final,
    Fn,
    Op,
    Step,
)
from nogil_loader.fallback.remote import RemoteTimeout

_OURS = os.path.join(os.path.dirname(__file__), "")
"""Where the code of the engine lies."""


def call(fn: Fn, cells: Sequence[object], out: list[object], failed: Failed) -> None:
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
            note(out, failed, error)


def call_many(fn: Fn, cells: Iterable[object], out: list[object], failed: Failed) -> None:
    append = out.append
    rest = iter(cells)
    while True:
        try:
            for cell in rest:
                append(list(fn(cell)))  # type: ignore[call-overload]
            return
        except BaseException as error:
            note(out, failed, error)


def call_field(
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
            note(out, failed, explain(error, key, cell))


def _field(fn: Fn, key: object, to: object, kind: str, cell: object) -> object:
    value = fn(cell[key])  # type: ignore[index]
    if kind == FILTER or (kind == PROMISE and isinstance(value, Future)):
        return value
    if kind == FLAT_MAP:
        return [replaced(cell, key, to, child) for child in value]  # type: ignore[attr-defined]
    return replaced(cell, key, to, value)


def call_keyed(
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
                    append(keyed_field(step, to, kind, cell, value))
            return
        except BaseException as error:
            note(out, failed, error if key is None else explain(error, key, cell))


def keyed_field(step: Step, to: object, kind: str, cell: object, value: object) -> object:
    if kind == FILTER or (kind == PROMISE and isinstance(value, Future)):
        return value
    if kind == FLAT_MAP:
        return [replaced(cell, step.key, to, child) for child in value]  # type: ignore[attr-defined]
    return replaced(cell, step.key, to, value)


def call_remote(
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
            missing[number] = explain(error, step.key, cell)
            values.append(None)
    try:
        results = driver.run(values, keys, step.randomness)
    except BaseException as error:  # no process could be started: that is no sample's fault
        results = [(False, Final(error))] * len(values)
    for number, (cell, (fine, value)) in enumerate(zip(cells, results, strict=True)):
        if number in missing:
            note(out, failed, missing[number])
        elif not fine:
            assert isinstance(value, BaseException)
            hung = isinstance(value, RemoteTimeout)
            note(out, failed, StageTimeout(str(value)) if hung else value)
        elif step.key is not None:
            out.append(keyed_field(step, step.to, step.kind, cell, value))
        else:
            out.append(list(value) if step.kind == FLAT_MAP else value)  # type: ignore[call-overload]


def call_one(
    step: Step, cell: object, key: tuple[int, ...], out: list[object], failed: Failed
) -> None:
    """A single cell through the op."""
    if step.remote is not None:
        keys = [key] if step.randomness is not None else None
        call_remote(step, step.remote, (cell,), keys, out, failed)
    elif step.keyed is not None:
        call_keyed(step, (cell,), iter((key,)), out, failed)
    elif step.key is not None:
        call_field(step.fn, step.key, step.to, step.kind, (cell,), out, failed)
    elif step.kind == FLAT_MAP:
        call_many(step.fn, (cell,), out, failed)
    else:
        result: list[object] = []
        wrong: Failed = []
        call(step.fn, (cell,), result, wrong)
        if wrong:
            failed.append((len(out), wrong[0][1]))
        out.append(result[0])


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
            raised = explain(error, key, sample)
            if raised is error:
                raise
            raise raised from error
        return replaced(sample, key, self._to, value)


def replaced(cell: object, key: object, to: object, value: object) -> object:
    sample: dict[object, object] = dict(cell)  # type: ignore[call-overload]
    if key != to:
        del sample[key]
    sample[to] = value
    return sample


def explain(error: BaseException, key: object, cell: object) -> BaseException:
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


def note(out: list[object], failed: Failed, error: BaseException) -> None:
    """Keep the place of a failed cell. A StopIteration must not end anybody's loop.

    The traceback begins with the user's function.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    error.__traceback__ = trace
    if isinstance(error, StopIteration):
        stop = RuntimeError("an op raised StopIteration")
        stop.__cause__ = error
        error = stop
    failed.append((len(out), error))
    out.append(None)


def let_go(failed: Sequence[tuple[int, BaseException]]) -> None:
    """Errors that are kept for a report only: the traceback becomes a note.

    A traceback holds its frames, these hold the frames that called them, ours among them, and
    so the samples of a whole block.
    """
    for _, error in failed:
        if isinstance(error, Exception) and error.__traceback__ is not None:
            error.add_note(_told(error.__traceback__))
            link: BaseException | None = error
            while link is not None:
                link.__traceback__ = None
                link = link.__cause__ or link.__context__


def _told(trace: TracebackType | None) -> str:
    """A traceback in text: what ``traceback`` needs 100 us for, without its marks."""
    lines = []
    while trace is not None:
        code, number = trace.tb_frame.f_code, trace.tb_lineno
        lines.append(f'  File "{code.co_filename}", line {number}, in {code.co_name}')
        if source := linecache.getline(code.co_filename, number, trace.tb_frame.f_globals).strip():
            lines.append(f"    {source}")
        trace = trace.tb_next
    return "\n".join(lines)

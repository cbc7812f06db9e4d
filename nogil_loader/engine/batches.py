"""Batch buffers: rows that many workers write, in the structure that the samples have.

Guarantees
- Any thread may write any rows, each row once; disjoint rows need no lock.
- The sample at the lowest row sets the structure, shapes and dtypes. A sample that differs is
  never cast, cut or broadcast: the batch ends in a ``CollateError`` that names both.
- No function is made per batch, and so no generator expression: free-threaded CPython 3.13
  never frees one.
- Arrays and numbers become arrays with a first axis of rows; strings, bytes, None and other
  objects become lists; dicts and tuples keep their structure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nogil_loader.engine.errors import CollateError, UndeclaredFuture

Allocate: TypeAlias = "Callable[[tuple[int, ...], np.dtype[np.generic]], NDArray[np.generic]]"
"""(shape, dtype) -> an uninitialised array; a device gives pinned memory here."""

_FEW = 8
"""Items of a long list that are weighed."""
_NUMBERS: dict[type, np.dtype[np.generic]] = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}


class _MisfitError(Exception):
    """A value does not have the structure of the buffer."""


class _Node(Protocol):
    size: int

    def write(self, row: int, values: Sequence[object]) -> None: ...

    def kept(self, values: Sequence[object]) -> int: ...

    def result(self, rows: int) -> object: ...


class _Arrays:
    """Equal-shaped arrays, stacked."""

    def __init__(self, value: NDArray[np.generic], rows: int, allocate: Allocate) -> None:
        self.shape = value.shape
        self.dtype = value.dtype
        self.array = allocate((rows, *value.shape), value.dtype)
        self.size = self.array.nbytes

    def write(self, row: int, values: Sequence[object]) -> None:
        array, shape, dtype = self.array, self.shape, self.dtype
        for value in values:
            if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
                raise _MisfitError
            array[row] = value
            row += 1

    def kept(self, values: Sequence[object]) -> int:
        return 0  # they were copied

    def result(self, rows: int) -> object:
        return self.array if rows == len(self.array) else self.array[:rows]


class _Numbers:
    """Numbers of one dtype, as a one-dimensional array: ``int`` and ``np.int64`` are one."""

    def __init__(self, value: object, rows: int, allocate: Allocate) -> None:
        self.type = type(value)
        dtype = value.dtype if isinstance(value, np.generic) else _NUMBERS[self.type]
        self.array = allocate((rows,), dtype)
        self.size = self.array.nbytes

    def write(self, row: int, values: Sequence[object]) -> None:
        if len(values) == 1 and type(values[0]) is self.type:
            try:
                self.array[row] = values[0]  # type: ignore[assignment]
            except OverflowError:
                raise _MisfitError from None
            return
        kinds = set(map(type, values))
        if kinds != {self.type}:
            for kind in kinds:
                dtype = _dtype_of(kind)
                if dtype is None or dtype != self.array.dtype:  # None would equal float64
                    raise _MisfitError
        try:
            self.array[row : row + len(values)] = values  # type: ignore[assignment]
        except OverflowError:
            raise _MisfitError from None

    def kept(self, values: Sequence[object]) -> int:
        return 0

    def result(self, rows: int) -> object:
        return self.array if rows == len(self.array) else self.array[:rows]


class _Objects:
    """Whatever is no array or number, in a list."""

    def __init__(self, value: object, rows: int, allocate: Allocate) -> None:
        self.values: list[object] = [None] * rows
        self.size = 0

    def write(self, row: int, values: Sequence[object]) -> None:
        for kind in set(map(type, values)):
            if _is_arrayable(kind) or issubclass(kind, (dict, tuple)):
                raise _MisfitError
            if issubclass(kind, Future):
                raise UndeclaredFuture(
                    "an op returned a concurrent.futures.Future: declare it with "
                    "map(fn, in_flight=n), n being how many may be unsettled at once"
                )
        self.values[row : row + len(values)] = values

    def kept(self, values: Sequence[object]) -> int:
        return sum(map(sizeof, values))

    def result(self, rows: int) -> object:
        return self.values if rows == len(self.values) else self.values[:rows]


class _Fields:
    """Dicts with the same keys, column by column."""

    def __init__(self, value: dict[object, object], rows: int, allocate: Allocate) -> None:
        self.keys: Sequence[object] = list(value)
        """In the order of the first row."""
        self.columns = [(key, _node(field, rows, allocate)) for key, field in value.items()]
        self.size = sum([node.size for _, node in self.columns])

    def write(self, row: int, values: Sequence[object]) -> None:
        width = len(self.columns)
        for value in values:
            if not isinstance(value, dict) or len(value) != width:
                raise _MisfitError
        for key, node in self.columns:
            try:
                column = [value[key] for value in values]  # type: ignore[index]
            except KeyError:
                raise _MisfitError from None
            node.write(row, column)
        if row == 0:
            self.keys = list(values[0])  # type: ignore[call-overload]

    def kept(self, values: Sequence[object]) -> int:
        columns = self.columns
        sizes = [node.kept([v[k] for v in values]) for k, node in columns]  # type: ignore[index]
        return sum(sizes)

    def result(self, rows: int) -> object:
        columns = {key: node.result(rows) for key, node in self.columns}
        return {key: columns[key] for key in self.keys}


class _Items:
    """Tuples (and named tuples) of the same length, item by item."""

    def __init__(self, value: tuple[object, ...], rows: int, allocate: Allocate) -> None:
        self.type = type(value)
        self.columns = [_node(item, rows, allocate) for item in value]
        self.size = sum([node.size for node in self.columns])

    def write(self, row: int, values: Sequence[object]) -> None:
        width = len(self.columns)
        for value in values:
            if type(value) is not self.type or len(value) != width:
                raise _MisfitError
        for number, node in enumerate(self.columns):
            node.write(row, [value[number] for value in values])  # type: ignore[index]

    def kept(self, values: Sequence[object]) -> int:
        columns = enumerate(self.columns)
        sizes = [node.kept([v[n] for v in values]) for n, node in columns]  # type: ignore[index]
        return sum(sizes)

    def result(self, rows: int) -> object:
        items = [node.result(rows) for node in self.columns]
        make: Callable[[list[object]], object] = getattr(self.type, "_make", self.type)
        return make(items)


def _dtype_of(kind: type) -> np.dtype[np.generic] | None:
    """Of a number's type; None for anything else."""
    if issubclass(kind, (np.number, np.bool_)):
        return np.dtype(kind)
    return _NUMBERS[kind] if kind in _NUMBERS else None


def _is_arrayable(kind: type) -> bool:
    if kind in _NUMBERS or issubclass(kind, (np.number, np.bool_)):
        return True
    return issubclass(kind, np.ndarray) and not issubclass(kind, np.ma.MaskedArray)


def _node(value: object, rows: int, allocate: Allocate) -> _Node:
    if isinstance(value, dict):
        return _Fields(value, rows, allocate)
    if isinstance(value, tuple):
        return _Items(value, rows, allocate)
    if _is_arrayable(type(value)):
        if isinstance(value, np.ndarray):
            return _Arrays(value, rows, allocate)
        return _Numbers(value, rows, allocate)
    return _Objects(value, rows, allocate)


class BatchBuffer:
    """One batch while its rows are written, and then the batch itself.

    ``lock`` is held while the arrays are made: by the first worker that has a sample.
    """

    __slots__ = ("_allocate", "_lock", "_misfits", "_node", "_rows", "_spoilt", "misfit")

    def __init__(self, rows: int, allocate: Allocate, lock: Lock) -> None:
        self._rows = rows
        self._allocate = allocate
        self._lock = lock
        self._node: _Node | None = None
        self._misfits: dict[int, object] | None = None
        self._spoilt: list[tuple[int, BaseException]] | None = None
        self.misfit = False
        """Whether there is no batch but an error to ``explain``."""

    def write(self, row: int, values: Sequence[object]) -> int:
        """Put samples into consecutive rows; returns the bytes that this call allocated."""
        node, allocated = self._node, 0
        if node is None:
            with self._lock:
                if self._node is None:
                    self._node = _node(values[0], self._rows, self._allocate)
                    allocated = self._node.size
                node = self._node
        try:
            node.write(row, values)
        except _MisfitError:
            self._write_each(node, row, values)
        return allocated

    def kept(self, values: Sequence[object]) -> int:
        """Bytes of values that were written as they are, and not copied into arrays."""
        if self._node is None or self.misfit:
            return 0
        return self._node.kept(values)

    def _write_each(self, node: _Node, row: int, values: Sequence[object]) -> None:
        for value in values:
            try:
                node.write(row, (value,))
            except _MisfitError:
                with self._lock:
                    self._misfits = {**(self._misfits or {}), row: value}
                    self.misfit = True
            row += 1

    def spoil(self, row: int, error: BaseException) -> None:
        """A row could not be written at all."""
        with self._lock:
            self._spoilt = [*(self._spoilt or ()), (row, error)]
            self.misfit = True

    def result(self, rows: int) -> object:
        """The batch of so many rows, once every one was written and none is a misfit."""
        assert self._node is not None and not self.misfit
        return self._node.result(rows)

    def explain(self, rows: int, name: Callable[[int], str]) -> BaseException:
        """Why there is no batch: the lowest row, and the first that differs from it, whoever
        was first to write. ``name(row)`` says which sample a row is."""
        if self._spoilt:
            return min(self._spoilt, key=lambda item: item[0])[1]
        node, misfits = self._node, self._misfits
        assert node is not None and misfits
        if 0 not in misfits:
            row = min(misfits)
            return self._difference(_row_of(node.result(rows), 0), row, misfits[row], name)
        lowest = misfits[0]
        model = _node(lowest, 1, np.empty)
        for row in range(1, rows):
            value = misfits[row] if row in misfits else _row_of(node.result(rows), row)
            try:
                model.write(0, (value,))
            except _MisfitError:
                return self._difference(lowest, row, value, name)
        return CollateError(f"{name(0)} is {_describe(lowest)}, which no array can hold")

    @staticmethod
    def _difference(
        lowest: object, row: int, value: object, name: Callable[[int], str]
    ) -> CollateError:
        where, first, second = _first_difference("", lowest, value)
        place = f"field {where}" if where else "the sample"
        cure = "cast it in a map"
        if "array" in first and "array" in second and first.split()[-1] == second.split()[-1]:
            cure = "pad(...), bucket(...) or a map that makes the shapes equal"
        return CollateError(
            f"{place} is {first} in {name(0)}, the first of the batch, but {second} in "
            f"{name(row)}; nothing is cast or cut silently: use {cure}, "
            f"or batch(..., collate=fn)"
        )


def stack(
    cells: Sequence[object], name: Callable[[int], str], allocate: Allocate, lock: Lock
) -> object:
    """A batch of samples that are all there."""
    buffer = BatchBuffer(len(cells), allocate, lock)
    buffer.write(0, cells)
    if buffer.misfit:
        raise buffer.explain(len(cells), name)
    return buffer.result(len(cells))


def stack_plain(cells: Sequence[object]) -> object:
    """A batch of samples in ordinary memory; rows are called by their numbers in errors."""
    return stack(cells, _row_name, np.empty, Lock())


def _row_name(row: int) -> str:
    return f"sample {row} of the batch"


def weigh(value: object) -> int:
    """Bytes as ``sizeof`` has them; of a long list a few items stand for all."""
    if isinstance(value, dict):
        return sum(map(weigh, value.values()))
    if isinstance(value, (tuple, list)) and len(value) > _FEW:
        some = value[:: len(value) // _FEW]
        return sum(map(weigh, some)) * len(value) // len(some)
    return sizeof(value)


def sizeof(value: object) -> int:
    """Bytes of a sample: arrays, bytes, strings and what containers hold of them."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(sizeof, value.values()))
    if isinstance(value, (tuple, list)):
        return sum(map(sizeof, value))
    if hasattr(type(value), "nbytes"):  # memoryviews, tensors
        return int(value.nbytes)  # type: ignore[attr-defined]
    return sys.getsizeof(value)


def _row_of(batch: object, row: int) -> object:
    """The sample that was written to a row."""
    if isinstance(batch, dict):
        return {key: _row_of(value, row) for key, value in batch.items()}
    if isinstance(batch, tuple):
        make = getattr(type(batch), "_make", tuple)
        return make(_row_of(value, row) for value in batch)
    item: object = batch[row]  # type: ignore[index]
    return item


def _first_difference(where: str, one: object, other: object) -> tuple[str, str, str]:
    """The path of the first part in which two samples differ, and what each has there."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return (
                where,
                f"a dict of {sorted(map(str, one))}",
                f"a dict of {sorted(map(str, other))}",
            )
        for key in one:
            path = f"{where}[{key!r}]"
            found = _first_difference(path, one[key], other[key])
            if found[1] != found[2]:
                return found
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            found = _first_difference(f"{where}[{number}]", left, right)
            if found[1] != found[2]:
                return found
    return where, _describe(one), _describe(other)


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, (dict, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
        return "an int beyond 64 bits"
    if isinstance(value, np.generic) or type(value) in _NUMBERS:
        return f"a number of type {type(value).__name__}".replace("64", "")
    return f"a {type(value).__name__}"

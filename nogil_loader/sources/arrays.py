"""Samples from arrays: in memory, or in npy and npz files that are mapped, not read.

Guarantees
- Sample ``i`` is row ``i`` of every array, or a window of rows: always views, never copies;
  a mapped file is read only as far as its rows are used.
- Rows of mapped files are read-only, so that no op can write into the data set.
- Arrays of Python objects are refused: loading them would run code from the file.
- Any thread reads any row at the same time.

The npy format is NumPy's own (``numpy.lib.format``), and NumPy's functions read its headers.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from tokenize import TokenError
from typing import BinaryIO, Literal, TypeAlias

import numpy as np
from numpy.lib import format as npy_format

from nogil_loader.sources.base import Sample
from nogil_loader.sources.blobs import LocalBlobs
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError, UnsupportedMemberError
from nogil_loader.sources.zip_format import (
    Entry,
    Read,
    content,
    content_start,
    find_directory,
    parse_entry,
)

log = logging.getLogger("nogil_loader.sources")

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype]"
Column: TypeAlias = "Array | str | os.PathLike[str]"

ALONE = "array"
"""What a single array that has no name is called in errors and references."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """Row ``i`` of every array, or the ``i``-th window of rows.

    ``data``: a dict of arrays and paths of npy files, by field; the path of one npz file
    (its names are the fields); or one array or npy path.

    Samples are dicts with one entry a field; of one array without a name, its rows
    themselves. Without ``window``: the row, of shape
    ``array.shape[1:]`` and the array's dtype (a NumPy scalar for an array of one dimension).
    With ``window=w``: rows ``i * stride`` up to ``i * stride + w``, of shape
    ``(w, *array.shape[1:])``; ``stride`` is ``w`` unless given. Rows at the end that fill no
    window are left out, as ``len`` says.

    ``open`` raises ``FileNotFoundError``; ``ValueError`` when the arrays have different
    lengths; ``EmptySourceError`` when there is no row or no window; ``BrokenFileError`` for a
    damaged file; ``UnsupportedMemberError`` for arrays of Python objects.

    >>> import numpy as np
    >>> reader = Arrays({"x": np.arange(10), "y": np.arange(20).reshape(10, 2)}, window=4).open()
    >>> len(reader), reader.bind()(1)["x"], reader.bind()(1)["y"].shape
    (2, array([4, 5, 6, 7]), (4, 2))
    """

    data: Mapping[str, Column] | Column
    window: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window has at least one row, not {self.window}")
        if self.stride is not None and self.stride < 1:
            raise ValueError(f"a stride is at least one row, not {self.stride}")
        if self.stride is not None and self.window is None:
            raise ValueError("stride says how far apart windows start: give window as well")

    def open(self) -> ArraysReader:
        """Map the files and compare the lengths."""
        return ArraysReader(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arrays):
            return False
        if (self.window, self.stride) != (other.window, other.stride):
            return False
        mine, others = self._columns(), other._columns()
        return list(mine) == list(others) and all(_same(mine[name], others[name]) for name in mine)

    def __hash__(self) -> int:
        return hash((tuple(self._columns()), self.window, self.stride))

    def _columns(self) -> dict[str, Column]:
        if isinstance(self.data, Mapping):
            return dict(self.data)
        return {ALONE: self.data}


class ArraysReader:
    """Opened ``Arrays``."""

    threads: int | None = None

    def __init__(self, source: Arrays) -> None:
        self._window, self._stride = source.window, source.stride or source.window or 1
        self._columns, self._origin = _opened(source)
        self._alone = list(self._columns) == [ALONE] and not isinstance(source.data, Mapping)
        lengths = {name: len(array) for name, array in self._columns.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ValueError(f"from_arrays needs as many rows in every array: {told}")
        rows = next(iter(lengths.values()))
        if self._window is None:
            self._length = rows
        else:
            self._length = max(0, (rows - self._window) // self._stride + 1)
        if not self._length:
            wanted = "row" if self._window is None else f"window of {self._window} rows"
            raise EmptySourceError(f"from_arrays has no {wanted}: {rows} rows in {self._origin}")

    def __len__(self) -> int:
        return self._length

    def bind(self) -> Callable[[int], Sample]:
        """``index -> {field: rows}`` (or ``rows``), over views of this thread's own."""
        # A view is this thread's own object: its reference count is not shared.
        columns = [(name, array.view()) for name, array in self._columns.items()]
        window, stride, length = self._window or 1, self._stride, self._length
        only = columns[0][1]

        def one_row(index: int) -> object:
            if not 0 <= index < length:
                raise IndexError(f"row {index} of {length}")
            return only[index]

        def one_window(index: int) -> object:
            if not 0 <= index < length:
                raise IndexError(f"window {index} of {length}")
            return only[index * stride : index * stride + window]

        def row(index: int) -> dict[str, object]:
            if not 0 <= index < length:
                raise IndexError(f"row {index} of {length}")
            return {name: array[index] for name, array in columns}

        def rows(index: int) -> dict[str, object]:
            if not 0 <= index < length:
                raise IndexError(f"window {index} of {length}")
            start = index * stride
            return {name: array[start : start + window] for name, array in columns}

        if self._alone:
            return one_row if self._window is None else one_window
        return row if self._window is None else rows

    def ref(self, index: int) -> object:
        if self._window is None:
            return f"{self._origin}[{index}]"
        start = index * self._stride
        return f"{self._origin}[{start}:{start + self._window}]"

    def fingerprint(self) -> str:
        """Of fields, shapes, dtypes and windows, the files' sizes and times, and up to 64 rows
        spread over arrays in memory."""
        digest = hashlib.blake2b(
            f"arrays {self._length} {self._window} {self._stride}".encode(), digest_size=16
        )
        for name, array in self._columns.items():
            digest.update(f"{name} {array.shape} {array.dtype.descr}".encode())
            for row in range(0, len(array), max(1, len(array) // 64)):
                digest.update(array[row : row + 1].tobytes()[:1024])
        return digest.hexdigest()

    def close(self) -> None:
        """Drop the maps: a file is unmapped when the last row of it that is in use goes."""
        self._columns = {}


def _opened(source: Arrays) -> tuple[dict[str, Array], str]:
    """The arrays by field, and what to call them together."""
    columns = source._columns()
    if not columns:
        raise EmptySourceError("from_arrays was given no array")
    if not isinstance(source.data, Mapping) and not isinstance(source.data, np.ndarray):
        path = os.fspath(source.data)
        if zipfile.is_zipfile(path):
            return map_npz(path), path
        return {ALONE: map_npy(path)}, path
    made: dict[str, Array] = {}
    for name, column in columns.items():
        array = column if isinstance(column, np.ndarray) else map_npy(os.fspath(column))
        _check(array, f"the array {name!r}")
        made[name] = array
    return made, "arrays" if len(made) > 1 else next(iter(made))


def map_npy(path: str) -> Array:
    """The array in an npy file, mapped read-only; an empty one is made anew.

    Raises ``BrokenFileError`` for a file that is cut short or no npy file.
    """
    with open(path, "rb") as file:
        return _mapped(file, 0, os.fstat(file.fileno()).st_size, path, path)


def map_npz(path: str) -> dict[str, Array]:
    """The arrays in an npz file, by name: mapped read-only where stored (``numpy.savez``),
    unpacked into memory where compressed (``savez_compressed``), which is logged."""
    made: dict[str, Array] = {}
    blobs = LocalBlobs([path])
    try:
        read = partial(blobs.bind(), 0)
        directory = find_directory(read, blobs.sizes[0], path)
        entries = read(directory.offset, directory.size)
        place = 0
        for _ in range(directory.entries):
            entry = parse_entry(entries, place, path)
            place += entry.length
            name = entry.text.removesuffix(".npy")
            made[name] = _from_archive(read, entry, directory.before, path, f"{path}:{name}")
    finally:
        blobs.close()
    if not made:
        raise EmptySourceError(f"there is no array in {path}")
    return made


def _from_archive(read: Read, entry: Entry, before: int, path: str, told: str) -> Array:
    if entry.method == 0 and not entry.encrypted:
        start = content_start(read, entry, before, path)
        with open(path, "rb") as file:
            return _mapped(file, start, start + entry.size, path, told)
    unpacked = content(read, entry, before, path)
    log.info("%s is compressed: its %d bytes are in memory", told, len(unpacked))
    return _loaded(io.BytesIO(unpacked), told)


def _mapped(file: BinaryIO, start: int, end: int, path: str, told: str) -> Array:
    file.seek(start)
    shape, fortran, dtype = _header(file, told)
    offset = file.tell()
    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    if offset + size > end:
        raise BrokenFileError(f"{told} is cut short: {size} bytes of data, {end - offset} there")
    order: Literal["F", "C"] = "F" if fortran else "C"
    if size == 0:
        made: Array = np.zeros(shape, dtype, order)
    else:
        made = np.memmap(path, dtype, "r", offset, shape, order)
    # As a plain array: a memmap's own indexing runs Python code for every row.
    plain = made.view(np.ndarray)
    _check(plain, told)
    return plain


def _header(file: BinaryIO, told: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = npy_format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = npy_format.read_array_header_2_0(file)
        elif version == (3, 0):
            shape, fortran, dtype = _header_3_0(file)
        else:
            raise BrokenFileError(f"{told} is npy version {version}, which is not known")
    except BrokenFileError:
        raise
    except (ValueError, EOFError, TypeError, SyntaxError, TokenError, struct.error) as error:
        raise BrokenFileError(f"{told} has no valid npy header: {error}") from error
    if dtype.hasobject:
        raise UnsupportedMemberError(
            f"{told} holds Python objects, and loading them would run code from the file: "
            f"save numbers or fixed-length strings"
        )
    if any(side < 0 or side >= 1 << 62 for side in shape):
        raise BrokenFileError(f"{told} has no valid npy header: shape {shape}")
    return shape, fortran, dtype


def _header_3_0(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Version 3 is version 2 in UTF-8: for field names that Latin-1 lacks."""
    size = file.read(4)
    text = file.read(struct.unpack("<I", size)[0])
    # Escaped, the same text is valid version 2.
    escaped = text.decode("utf-8").encode("latin-1", "backslashreplace")
    as_version_2 = io.BytesIO(struct.pack("<I", len(escaped)) + escaped)
    return npy_format.read_array_header_2_0(as_version_2)  # type: ignore[no-any-return,unused-ignore]


def _loaded(file: BinaryIO, told: str) -> Array:
    shape, fortran, dtype = _header(file, told)
    data = file.read()
    count = int(np.prod(shape, dtype=object))
    if len(data) < count * dtype.itemsize:
        raise BrokenFileError(f"{told} is cut short: {len(data)} bytes of data")
    flat = np.frombuffer(data, dtype, count) if count and dtype.itemsize else np.zeros(count, dtype)
    made = flat.reshape(shape, order="F" if fortran else "C")
    _check(made, told)
    return made


def _check(array: Array, told: str) -> None:
    if array.ndim == 0:
        raise ValueError(f"{told} has 0 dimensions, hence no rows")
    if array.dtype.hasobject:
        raise UnsupportedMemberError(f"{told} holds Python objects: use from_sequence")


def _same(one: Column, other: Column) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one is other or (one.dtype == other.dtype and np.array_equal(one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    return os.fspath(one) == os.fspath(other)

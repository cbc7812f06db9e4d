"""Samples from the rows of Parquet files, through **pyarrow** (the extra ``parquet``).

Guarantees
- A row group is read and decoded whole, as the format has it, by one thread for all, and kept
  while it is among the last few used; several groups are decoded at the same time.
- Rows of a decoded group are read by any thread with no lock.
- Only the chosen columns are read.

Row groups decide what is fast. Rows in order, shards of them, and ``shuffle(window=w)`` touch
few groups at a time. A whole-data-set ``shuffle`` of many large groups decodes one for nearly
every row: write smaller groups (1,000 rows), more of which are kept, or shuffle in windows.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from nogil_loader.sources.base import Sample
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError, ObjectChangedError
from nogil_loader.sources.locations import Location, frozen, listed, named

if TYPE_CHECKING:
    import pyarrow

Value: TypeAlias = "Callable[[int], object]"
"""Row within a group -> its value in one column."""

IN_USE_BY_A_THREAD = 2
"""How many groups a thread holds its own views of."""


@dataclass(frozen=True)
class Parquet:
    """Every row of the files, in order.

    Samples are dicts with one entry a column: a NumPy scalar of the column's type for numbers,
    booleans, dates and times; ``str``; ``bytes``; a NumPy array for a list of numbers without
    nulls; what ``pyarrow``'s ``as_py`` gives for others (lists, dicts for structs,
    ``Decimal``); ``None`` for a null.

    ``files``: a path, a glob pattern (its matches sorted), or several of them. ``columns``: the
    names to read, in this order; all unless given. ``keep_groups``: how many decoded row groups
    are kept for all threads, at the memory of that many (and of two a thread). ``threads``:
    None where reading is a copy from the page cache, a number of threads where it waits.

    ``open`` raises ``ImportError`` naming the extra; ``FileNotFoundError``;
    ``EmptySourceError`` when there is no row; ``BrokenFileError`` for a damaged file;
    ``ValueError`` when a column is missing in a file or has another type in another file.

    >>> import tempfile
    >>> import pyarrow, pyarrow.parquet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pyarrow.table({"text": ["a", "b"], "ids": [[1, 2], [3]]})
    ...     pyarrow.parquet.write_table(table, f"{folder}/a.parquet")
    ...     reader = Parquet(f"{folder}/a.parquet").open()
    ...     print(len(reader), reader.bind()(1))
    ...     reader.close()
    2 {'text': 'b', 'ids': array([3])}
    """

    files: Location | Sequence[Location]
    columns: Sequence[str] | None = None
    keep_groups: int = 8
    threads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", frozen(self.files))
        object.__setattr__(self, "columns", named(self.columns, "columns"))
        if self.keep_groups < 1:
            raise ValueError(f"keep_groups is at least 1, not {self.keep_groups}")

    def open(self) -> ParquetReader:
        """Read every file's footer: its columns and row groups."""
        return ParquetReader(self)


class Footer(NamedTuple):
    """What is kept of a file."""

    rows: tuple[int, ...]
    """Of each row group."""
    types: dict[str, str]
    version: str


class Entry:
    """A row group that someone decodes for all."""

    __slots__ = ("columns", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.columns: dict[str, pyarrow.Array] | None = None


class ParquetReader:
    """Opened ``Parquet``: where each row group begins, and the groups in use."""

    def __init__(self, source: Parquet) -> None:
        self.threads = source.threads
        self._arrow = _pyarrow()
        self._files = listed(source.files, "parquet file")
        # Footers are small reads, and there may be thousands of files.
        with ThreadPoolExecutor(thread_name_prefix="nogil_loader-footers") as pool:
            self._footers = list(pool.map(self._footer, self._files))
        self._columns = self._checked_columns(source.columns)
        groups = [
            (file, group, rows)
            for file, footer in enumerate(self._footers)
            for group, rows in enumerate(footer.rows)
        ]
        self._groups = np.array(groups, np.int64).reshape(-1, 3)
        self._ends = np.cumsum(self._groups[:, 2])
        if not len(self._ends) or not self._ends[-1]:
            raise EmptySourceError(f"there is no row in {', '.join(self._files)}")
        self._keep = source.keep_groups
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Entry] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def bind(self) -> Callable[[int], Sample]:
        """``index -> {column: value}``, over views of this thread's own."""
        ends, rows, length = self._ends.data, self._groups[:, 2].copy().data, len(self)
        mine: OrderedDict[int, list[tuple[str, Value]]] = OrderedDict()

        def sample(index: int) -> dict[str, object]:
            if not 0 <= index < length:
                raise IndexError(f"row {index} of {length}")
            group = bisect_right(ends, index)
            if group not in mine:
                mine[group] = self._views(group)
                if len(mine) > IN_USE_BY_A_THREAD:
                    mine.popitem(last=False)
            row = index - ends[group] + rows[group]
            return {name: value(row) for name, value in mine[group]}

        return sample

    def ref(self, index: int) -> object:
        """``file.parquet[row]``, counted within the file."""
        group = bisect_right(self._ends.data, index)
        file = int(self._groups[group, 0])
        before = int(self._groups[self._groups[:, 0] < file, 2].sum())
        return f"{self._files[file]}[{index - before}]"

    def fingerprint(self) -> str:
        """Of the files' names without their folder, sizes and times, and of the columns."""
        digest = hashlib.blake2b(f"parquet {len(self)} {self._columns}".encode(), digest_size=16)
        for name, footer in zip(self._files, self._footers, strict=True):
            told = f"{os.path.basename(name)}\0{footer.version}\0"
            digest.update(told.encode(errors="surrogateescape"))
        return digest.hexdigest()

    def close(self) -> None:
        """Drop the decoded groups: no file stays open."""
        with self._lock:
            self._kept.clear()

    def _views(self, group: int) -> list[tuple[str, Value]]:
        """How to read each column of a group, over objects of the calling thread's own."""
        return [(name, _reading(column)) for name, column in self._decoded(group).items()]

    def _decoded(self, group: int) -> dict[str, pyarrow.Array]:
        with self._lock:
            entry = self._kept.get(group)
            if entry is None:
                entry = self._kept[group] = Entry()
                if len(self._kept) > self._keep:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(group)
        # Who comes second waits for the first instead of doing the same work.
        with entry.lock:
            if entry.columns is None:
                entry.columns = self._decode(group)
            return entry.columns

    def _decode(self, group: int) -> dict[str, pyarrow.Array]:
        file, number, _ = self._groups[group].tolist()
        path = self._files[file]
        if _version(path) != self._footers[file].version:
            raise ObjectChangedError(f"{path} changed after it was opened: start a new run")
        try:
            with self._arrow.parquet.ParquetFile(path) as opened:
                table = opened.read_row_group(number, columns=list(self._columns))
        except (self._arrow.lib.ArrowException, OSError) as error:
            raise BrokenFileError(f"{path}: row group {number} is damaged: {error}") from error
        return {name: _one_array(self._arrow, table.column(name)) for name in self._columns}

    def _footer(self, path: str) -> Footer:
        version = _version(path)
        try:
            with self._arrow.parquet.ParquetFile(path) as opened:
                meta, schema = opened.metadata, opened.schema_arrow
                rows = tuple(meta.row_group(n).num_rows for n in range(meta.num_row_groups))
                types = {field.name: str(field.type) for field in schema}
        except (self._arrow.lib.ArrowException, OSError) as error:
            if isinstance(error, (FileNotFoundError, IsADirectoryError, PermissionError)):
                raise
            raise BrokenFileError(f"{path} is no whole Parquet file: {error}") from error
        return Footer(rows, types, version)

    def _checked_columns(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        first = self._footers[0].types
        columns = tuple(first) if wanted is None else tuple(wanted)
        for path, footer in zip(self._files, self._footers, strict=True):
            for name in columns:
                if name not in footer.types:
                    raise ValueError(
                        f"{path} has no column {name!r}; it has {', '.join(footer.types)}"
                    )
                if footer.types[name] != first[name]:
                    raise ValueError(
                        f"the column {name!r} is {first[name]} in {self._files[0]} and "
                        f"{footer.types[name]} in {path}"
                    )
        return columns


def _pyarrow() -> ModuleType:
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError(
            'sources.parquet needs pyarrow: pip install "nogil_loader[parquet]"'
        ) from error


def _version(path: str) -> str:
    status = os.stat(path)
    if os.path.isdir(path):
        raise IsADirectoryError(21, "a file was expected, this is a folder", path)
    return f"{status.st_size}-{status.st_mtime_ns}"


def _one_array(arrow: ModuleType, column: pyarrow.ChunkedArray) -> pyarrow.Array:
    """A column of a row group as one array without dictionary encoding."""
    made = column.combine_chunks()
    if isinstance(made, arrow.ChunkedArray):  # of zero chunks, or of more than one array holds
        made = arrow.concat_arrays(made.chunks) if made.num_chunks else arrow.array([], made.type)
    if arrow.types.is_dictionary(made.type):
        made = made.dictionary_decode()
    return made


def _reading(column: pyarrow.Array) -> Value:
    """The fastest way to one value, over an object of the caller's own."""
    arrow = _pyarrow()
    kinds = arrow.types
    mine = column.slice(0)
    if _is_plain(kinds, mine.type):
        if mine.null_count == 0:
            return mine.to_numpy(zero_copy_only=False).view().__getitem__  # type: ignore[no-any-return]
        return _Nullable(mine)
    is_list = kinds.is_list(mine.type) or kinds.is_large_list(mine.type)
    if is_list and _is_plain(kinds, mine.type.value_type) and mine.values.null_count == 0:
        return _Lists(mine)
    return _Others(mine).read


def _is_plain(kinds: ModuleType, kind: pyarrow.DataType) -> bool:
    """Whether NumPy has the type."""
    return bool(
        kinds.is_integer(kind)
        or kinds.is_floating(kind)
        or kinds.is_boolean(kind)
        or kinds.is_timestamp(kind)
        or kinds.is_date(kind)
        or kinds.is_duration(kind)
    )


class _Nullable:
    """Numbers, some of which are null."""

    def __init__(self, column: pyarrow.Array) -> None:
        self._valid = column.is_valid().to_numpy(zero_copy_only=False)
        filled = column.fill_null(column.drop_null()[0]) if len(column.drop_null()) else column
        self._values = filled.to_numpy(zero_copy_only=False)

    def __call__(self, row: int) -> object:
        return self._values[row] if self._valid[row] else None


class _Lists:
    """Lists of numbers, as slices of one array."""

    def __init__(self, column: pyarrow.Array) -> None:
        self._offsets = column.offsets.to_numpy()
        self._values = column.values.to_numpy(zero_copy_only=False)
        self._valid = column.is_valid().to_numpy(zero_copy_only=False)

    def __call__(self, row: int) -> object:
        if not self._valid[row]:
            return None
        return self._values[self._offsets[row] : self._offsets[row + 1]]


class _Others:
    """Whatever pyarrow makes of a value."""

    def __init__(self, column: pyarrow.Array) -> None:
        self._column = column

    def read(self, row: int) -> object:
        value: object = self._column[row].as_py()
        return value

"""Samples from anything with ``len`` and ``[]``: a list, a range, a NumPy array, a data set.

Guarantees
- Nothing is copied: sample ``i`` is ``data[i]``, for an array its row as a view.
- The sequence must not change while it is read, and ``data[i]`` must be safe to call from
  many threads (it is for lists, tuples, ranges, arrays, and objects without shared state).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from nogil_loader.sources.base import Sample

T_co = TypeVar("T_co", covariant=True)

SHORT = 16
"""Sequences up to this length are printed in full."""


class Indexable(Protocol[T_co]):
    """What a sequence needs to be read: a length and items 0 … length - 1."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


Data: TypeAlias = "Sequence[object] | Indexable[object] | np.ndarray[tuple[int, ...], np.dtype]"


@dataclass(frozen=True, eq=False, repr=False)
class Sequence_:
    """Sample ``i`` is ``data[i]``, whatever that is.

    ``data``: a list, tuple, range, string, NumPy array (its rows, as views) or any object
    with ``__len__`` and ``__getitem__``, read by many threads at once.

    Raises ``TypeError`` when made of something without a length or items.

    >>> reader = Sequence_(["a", "b", "c"]).open()
    >>> len(reader), reader.bind()(1), reader.ref(1)
    (3, 'b', 'sequence[1]')
    """

    data: Data

    def __post_init__(self) -> None:
        if not (hasattr(self.data, "__len__") and hasattr(self.data, "__getitem__")):
            raise TypeError(
                f"from_sequence needs something with a length and items, "
                f"not {type(self.data).__name__}: give an iterable to from_iterable"
            )
        if isinstance(self.data, (dict, set, frozenset)):
            raise TypeError(
                f"from_sequence needs items numbered from 0, not a {type(self.data).__name__}: "
                f"give list(…) of it"
            )
        if isinstance(self.data, np.ndarray) and self.data.ndim == 0:
            raise TypeError("from_sequence needs an array with rows, not one of 0 dimensions")

    def open(self) -> SequenceReader:
        """Nothing to list: the reader is ready at once."""
        return SequenceReader(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence_) and _same(self.data, other.data)

    def __hash__(self) -> int:
        return hash((type(self.data), len(self.data)))

    def __repr__(self) -> str:
        data = self.data
        if len(data) <= SHORT or isinstance(data, range):
            return f"Sequence_({data!r})"
        return f"Sequence_(<{type(data).__name__} of {len(data)}>)"


class SequenceReader:
    """An opened ``Sequence_``."""

    threads: int | None = None

    def __init__(self, data: Data) -> None:
        self._data = data
        self._length = len(data)

    def __len__(self) -> int:
        return self._length

    def bind(self) -> Callable[[int], Sample]:
        """The sequence's own ``__getitem__``, bound once for this thread."""
        # A view or a new bound method is the thread's own: its reference count is not shared.
        data = self._data
        if isinstance(data, np.ndarray):
            return data.view().__getitem__
        return data.__getitem__

    def ref(self, index: int) -> object:
        return f"sequence[{index}]"

    def fingerprint(self) -> str:
        """Of the length, the type and, for built-in sequences and arrays, up to 64 items
        spread over them.

        Only items whose ``repr`` is their value count (numbers, strings, bytes, arrays);
        others count by their type. The items of other objects may be costly to make.
        """
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"sequence {type(self._data).__name__} {self._length}".encode())
        if isinstance(self._data, np.ndarray):
            digest.update(f"{self._data.dtype} {self._data.shape}".encode())
        if not isinstance(self._data, (list, tuple, range, str, bytes, np.ndarray)):
            return digest.hexdigest()
        for index in range(0, self._length, max(1, self._length // 64)):
            digest.update(_stamp(self._data[index]))
        return digest.hexdigest()

    def close(self) -> None:
        """Nothing is held."""


def _same(one: object, other: object) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def _stamp(item: object) -> bytes:
    if isinstance(item, np.ndarray):
        return f"{item.dtype}{item.shape}".encode() + item[..., :64].tobytes()[:4096]
    if isinstance(item, (bool, int, float, complex, str, bytes, np.generic)):
        return repr(item).encode("utf-8", "surrogateescape")
    return type(item).__qualname__.encode()

"""Ops above and below a cache: a hit travels past the ops that would make it again.

Guarantees
- A hit runs no op between the source and the cache, not even reading.
- What is stored is what the ops made; failures are never stored.

The reading op looks each unit up and hands on a ``Trace``: the index, the value, and whether
it is a hit. Ops before the cache pass hits by, and the cache op unpacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from nogil_loader.position.keys import Keyed


class Store(Protocol):
    """Where samples are kept, by the index of their source."""

    def get(self, index: int) -> tuple[bool, object]:
        """Whether the sample is there, and the sample."""
        ...

    def put(self, index: int, sample: object) -> None:
        """Keep the sample, if there is room. Never raises for want of room."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


class Trace(NamedTuple):
    """A sample on its way from the source to a cache."""

    number: int
    value: object
    hit: bool


class Lookup:
    """Reading through a cache: ``unit -> Trace``. One for each worker."""

    def __init__(
        self, store: Store, read: Callable[[int], object], index: Callable[[int], int]
    ) -> None:
        self._store = store
        self._read = read
        self._index = index

    def __call__(self, unit: int) -> Trace:
        index = self._index(unit)
        hit, value = self._store.get(index)
        if hit:
            return Trace(index, value, True)
        return Trace(index, self._read(unit), False)


class PassBy:
    """An op before a cache: hits are passed by."""

    def __init__(self, fn: Callable[..., object], keyed: Keyed | None) -> None:
        self._fn = fn
        self._keyed = keyed
        """Frozen randomness: keyed by the index, so that it is the same whenever it is made."""

    def __call__(self, trace: object) -> object:
        if not isinstance(trace, Trace):
            return self._fn(trace)  # a substitute for a sample that failed further up
        if trace.hit:
            return trace
        if self._keyed is not None:
            value = self._fn(trace.value, self._keyed(trace.number))
        else:
            value = self._fn(trace.value)
        return Trace(trace.number, value, False)


class Keep:
    """The cache itself: store what is new, and unpack."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, trace: object) -> object:
        if not isinstance(trace, Trace):
            return trace  # a substitute, which is never stored
        if not trace.hit:
            self._store.put(trace.number, trace.value)
        return trace.value

"""Objects that every worker thread has for itself.

Guarantees
- Objects that are lent (worker processes) are one for each borrower at a time, and kept.
- One object for each ``per_worker`` and thread, made on first use, kept over ``epochs``.
- When the run (or the last epoch) is over, each that has ``close()`` is closed once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast, runtime_checkable

T = TypeVar("T")


@dataclass(frozen=True)
class PerWorker:
    """An op that is an object of the worker's own: ``factory()`` makes it."""

    factory: Callable[[], Callable[..., object]]

    def __call__(self, *args: object) -> object:
        """Outside a run: a fresh object for a single call."""
        return self.factory()(*args)

    def __repr__(self) -> str:
        return f"nl.per_worker({getattr(self.factory, '__qualname__', self.factory)})"


def per_worker(factory: Callable[[], Callable[..., object]]) -> PerWorker:
    """Give every worker thread an object of its own, for what threads must not share.

    ``factory`` is called without arguments, once in each thread that runs the stage; what it
    returns is called with each value. It stays warm over ``epochs()``; at the end its
    ``close()`` is called, if it has one.

    >>> import nogil_loader as nl
    >>> class Adder:
    ...     def __init__(self):
    ...         self.one = 1
    ...     def __call__(self, value):
    ...         return value + self.one
    >>> list(nl.from_sequence([1, 2]).map(nl.per_worker(Adder)))
    [2, 3]
    """
    return PerWorker(factory)


@runtime_checkable
class Dismissed(Protocol):
    """What can be told to end before it is closed."""

    def dismiss(self) -> None:
        """Do not wait for it."""
        ...


class Warm:
    """The objects of a run, or of several epochs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = threading.local()
        self._all: list[object] = []
        self._free: dict[object, list[object]] = {}

    def of(self, key: object, factory: Callable[[], T]) -> T:
        """The calling thread's object for ``key``, made by ``factory`` the first time."""
        own: dict[object, T] = self._own.__dict__.setdefault("made", {})
        try:
            return own[key]
        except KeyError:
            made = own[key] = factory()
        with self._lock:
            self._all.append(made)
        return made

    def lend(self, key: object, factory: Callable[[], T]) -> T:
        """One of the objects for ``key`` that nobody has, or a new one; give it back after."""
        with self._lock:
            free = self._free.setdefault(key, [])
            if free:
                return cast("T", free.pop())
        made = factory()
        with self._lock:
            self._all.append(made)
        return made

    def give_back(self, key: object, thing: object) -> None:
        """The object may be lent to others."""
        with self._lock:
            self._free[key].append(thing)

    def close(self) -> None:
        """Close every object that can be closed. Idempotent."""
        with self._lock:
            made, self._all = self._all, []
        for thing in made:  # processes end beside each other
            if isinstance(thing, Dismissed):
                thing.dismiss()
        for thing in made:
            close = getattr(thing, "close", None)
            if callable(close):
                close()

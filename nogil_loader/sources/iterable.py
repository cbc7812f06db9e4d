"""Samples from anything that can only be read in order: a generator, a data set, a feed.

Guarantees
- A re-iterable (a list, a data set with ``__iter__``) or a factory (a function that returns
  a fresh iterable) gives every run its own pass from the start.
- A bare iterator or generator can be read once. A second run is a ``StreamUsedError``, never
  silently empty and never the rest of an abandoned pass.
- The iterator is entered by one thread at a time and is closed, if it can be, at the end.

A stream resumes exactly and without reading anything again when it can say where it is:
either the iterable or, failing that, its iterator has ``state_dict()`` and
``load_state_dict(state)``, or ``snapshot()`` and ``restore(state)``. Others are resumed by
reading from the start and passing over what was delivered.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from nogil_loader.sources.base import JSON, Sample
from nogil_loader.sources.errors import StreamUsedError

Items: TypeAlias = "Iterable[object] | Callable[[], Iterable[object]]"

PROTOCOLS = (("state_dict", "load_state_dict"), ("snapshot", "restore"))
"""How a stream says where it is and is put back there."""


class _Once:
    """Lets exactly one caller through, from whichever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> bool:
        return self._lock.acquire(blocking=False)

    def __reduce__(self) -> tuple[type[_Once], tuple[()]]:
        return _Once, ()


@dataclass(frozen=True)
class Iterable_:
    """The samples are what iterating over ``items`` gives, in that order.

    ``items``: an iterable, or a function without arguments that returns one (called anew for
    each run). ``name``: what references call it: sample 17 is ``name[17]``.

    Raises ``TypeError`` when made of something that is neither; ``open`` raises
    ``StreamUsedError`` for the second run over a bare iterator.

    >>> stream = Iterable_(lambda: (n * n for n in range(3)))
    >>> list(stream.open()), list(stream.open())
    ([0, 1, 4], [0, 1, 4])
    >>> once = Iterable_(n * n for n in range(3))
    >>> list(once.open())
    [0, 1, 4]
    >>> once.open()
    Traceback (most recent call last):
        ...
    nogil_loader.sources.errors.StreamUsedError: this generator has been read by an earlier \
run: give a function that makes a new one, as in from_iterable(lambda: …)
    """

    items: Items
    name: str = "iterable"
    stream: bool = field(default=True, init=False, repr=False)
    _once: _Once = field(default_factory=_Once, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.items, Iterable) or callable(self.items)):
            raise TypeError(
                f"from_iterable needs an iterable or a function that returns one, "
                f"not {type(self.items).__name__}"
            )

    def open(self, resume: JSON = None) -> IterableReader:
        """Begin a pass, or continue one from a snapshot that the stream itself took."""
        items = self.items
        if isinstance(items, Iterator) and not self._once.take():
            raise StreamUsedError(
                f"this {type(items).__name__} has been read by an earlier run: give a function "
                f"that makes a new one, as in from_iterable(lambda: …)"
            )
        made = items if isinstance(items, Iterable) else items()
        return IterableReader(made, self.name, resume)


class IterableReader:
    """One pass over an ``Iterable_``."""

    def __init__(self, items: Iterable[object], name: str, resume: JSON) -> None:
        self._name = name
        own = _protocol(items) is not None
        if own and resume is not None:
            _restore(items, resume)
        self._iterator: Iterator[object] = iter(items)
        if not own and resume is not None:
            _restore(self._iterator, resume)
        self._holder: object = items if own else self._iterator

    def __iter__(self) -> Iterator[Sample]:
        return self._iterator

    def snapshot(self) -> JSON:
        names = _protocol(self._holder)
        if names is None:
            return None
        state: JSON = getattr(self._holder, names[0])()
        return state

    def ref(self, number: int) -> object:
        return f"{self._name}[{number}]"

    def fingerprint(self) -> str:
        """Of the name alone: a stream cannot be asked what it will give."""
        return hashlib.blake2b(f"iterable {self._name}".encode(), digest_size=16).hexdigest()

    def interrupt(self) -> None:
        """An iterator that blocks in its own ``next`` cannot be woken from outside."""

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if callable(close):
            close()


def _protocol(holder: object) -> tuple[str, str] | None:
    for names in PROTOCOLS:
        if all(callable(getattr(holder, name, None)) for name in names):
            return names
    return None


def _restore(holder: object, state: JSON) -> None:
    names = _protocol(holder)
    if names is None:
        raise TypeError(
            f"a saved place was given to a {type(holder).__name__} that cannot go back to one: "
            f"it needs state_dict() and load_state_dict(state)"
        )
    getattr(holder, names[1])(state)

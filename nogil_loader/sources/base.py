"""What a source is: a description that opens into a reader.

Guarantees
- A ``Source`` is an immutable value: comparing, printing, copying and pickling it
  touches no file. Everything with a handle lives in what ``open()`` returns.
- A ``Reader`` may be called by any number of threads at once, in any order; a ``Stream``
  is only ever entered by one thread at a time, in order.
- ``ref`` names a sample for people (a path, ``shard.tar:member``, ``rows.parquet[17]``)
  and never raises for an index that is in range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

Sample: TypeAlias = object
"""Any object; a dict of arrays, bytes, numbers and strings by preference."""

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


@runtime_checkable
class Reader(Protocol):
    """Random access to the samples of an opened source."""

    @property
    def threads(self) -> int | None:
        """None: reading is CPU work (or a page-cache read), done by the shared workers.

        A number: reading blocks, and gets that many threads of its own.
        """
        ...

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def bind(self) -> Callable[[int], Sample]:
        """A function ``index -> sample`` for the calling thread alone.

        Called once per worker thread. What the function returns must depend on the index
        only. On free-threaded builds a closure or bound method that many threads share
        costs 5-10 times a private one, hence a fresh one for each.
        """
        ...

    def ref(self, index: int) -> object:
        """What names the sample in errors and reports."""
        ...

    def fingerprint(self) -> str:
        """Changes when the data does (names, sizes, times, parameters); cheap, no decoding."""
        ...

    def close(self) -> None:
        """Give back every handle. Idempotent. What a thread that is still inside a bound
        function reads after that is lost: its result must be thrown away."""
        ...


@runtime_checkable
class Source(Protocol):
    """The description of data with random access: ``open`` it to read."""

    def open(self) -> Reader:
        """List or index the data. Raises the error a user should see when there is none."""
        ...


@runtime_checkable
class StreamReader(Protocol):
    """Samples in the one order they come, from an opened stream."""

    def __iter__(self) -> Iterator[Sample]:
        """The samples; entered by one thread at a time."""
        ...

    def snapshot(self) -> JSON:
        """Where the *next* sample comes from, or None where the stream cannot say.

        ``open(resume=snapshot)`` continues there. A stream that answers None is resumed by
        reading again from its start and passing over what was accounted for.
        """
        ...

    def ref(self, number: int) -> object:
        """What names the sample with this number (0 for the first one read)."""
        ...

    def fingerprint(self) -> str:
        """Changes when the stream is another one; as far as a stream can tell."""
        ...

    def interrupt(self) -> None:
        """Make a blocked read return soon, where that is possible. From any thread."""
        ...

    def close(self) -> None:
        """Give back every handle. Called once nobody is inside the iterator."""
        ...


@runtime_checkable
class StreamSource(Protocol):
    """The description of data that only comes in order (a generator, a pipe, a queue)."""

    @property
    def stream(self) -> bool:
        """True. What tells a stream from a source with random access."""
        ...

    def open(self, resume: JSON = None) -> StreamReader:
        """Begin, or continue from a snapshot."""
        ...

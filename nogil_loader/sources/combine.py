"""Several sources read as one: side by side (``zip_sources``) or by number (``mix``).

Guarantees
- Children open in order; when one fails, those opened before it are closed.
- A child that reads blocking makes the whole blocking, with the largest number of threads
  that any asks for.
- Errors and references name the child's own sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nogil_loader.sources.base import Reader, Sample, Source
from nogil_loader.sources.errors import EmptySourceError


@dataclass(frozen=True)
class Zipped:
    """Sample ``i`` is made of sample ``i`` of every source.

    When all are dicts they are merged into one; a field that two of them have is a
    ``ValueError`` that names it. Otherwise the sample is the tuple of them, in order.

    ``open`` raises ``ValueError`` when the lengths differ.

    >>> from nogil_loader.sources.sequence import Sequence_
    >>> reader = Zipped((Sequence_([{"x": 1}, {"x": 2}]), Sequence_([{"y": 3}, {"y": 4}]))).open()
    >>> reader.bind()(1)
    {'x': 2, 'y': 4}
    """

    sources: tuple[Source, ...]

    def open(self) -> ZippedReader:
        """Open every source and compare their lengths."""
        if not self.sources:
            raise EmptySourceError("zip_sources was given no source")
        readers = open_all(self.sources)
        lengths = [len(reader) for reader in readers]
        if len(set(lengths)) > 1:
            close_all(readers)
            told = ", ".join(
                f"{type(source).__name__} has {length}"
                for source, length in zip(self.sources, lengths, strict=True)
            )
            raise ValueError(f"zip_sources needs sources of one length: {told}")
        return ZippedReader(readers)


class ZippedReader:
    """Opened ``Zipped``."""

    def __init__(self, readers: tuple[Reader, ...]) -> None:
        self.readers = readers
        self.threads = most_threads(readers)

    def __len__(self) -> int:
        return len(self.readers[0])

    def bind(self) -> Callable[[int], Sample]:
        """``index -> merged dict, or tuple``, over functions of this thread's own."""
        reads = tuple(reader.bind() for reader in self.readers)

        def sample(index: int) -> Sample:
            return merged(tuple([read(index) for read in reads]))

        return sample

    def ref(self, index: int) -> object:
        return " + ".join(str(reader.ref(index)) for reader in self.readers)

    def fingerprint(self) -> str:
        """Of the children's fingerprints."""
        return fingerprint_of("zip", self.readers)

    def close(self) -> None:
        close_all(self.readers)


class MixedReader:
    """Several readers under one roof; which one to ask is the caller's to say.

    ``bind()`` gives ``(number of the reader, index) -> sample`` for the calling thread. Order
    and proportions are positions' business, not this class's.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers = tuple(readers)
        self.threads = most_threads(self.readers)

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many samples each reader has."""
        return tuple(len(reader) for reader in self.readers)

    def bind(self) -> Callable[[int, int], Sample]:
        """A function for the calling thread alone."""
        reads = tuple(reader.bind() for reader in self.readers)

        def sample(number: int, index: int) -> Sample:
            return reads[number](index)

        return sample

    def ref(self, number: int, index: int) -> object:
        """What the reader calls its sample."""
        return self.readers[number].ref(index)

    def fingerprint(self) -> str:
        """Of the children's fingerprints, in order."""
        return fingerprint_of("mix", self.readers)

    def close(self) -> None:
        """Close every reader. Idempotent."""
        close_all(self.readers)


def open_all(sources: Sequence[Source]) -> tuple[Reader, ...]:
    """Open every source; when one fails, close those that were opened and raise."""
    readers: list[Reader] = []
    try:
        for source in sources:
            readers.append(source.open())
    except BaseException:
        close_all(readers)
        raise
    return tuple(readers)


def close_all(readers: Sequence[Reader]) -> None:
    """Close every reader; the first error is raised when all have been tried."""
    errors: list[Exception] = []
    for reader in readers:
        try:
            reader.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


def most_threads(readers: Sequence[Reader]) -> int | None:
    """The largest number of threads any reader asks for, or None when none does."""
    return max((reader.threads for reader in readers if reader.threads), default=None)


def fingerprint_of(what: str, readers: Sequence[Reader]) -> str:
    """One fingerprint of many."""
    told = "\0".join([what, *(reader.fingerprint() for reader in readers)])
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def merged(samples: tuple[Sample, ...]) -> Sample:
    """One dict of dicts with different keys; a tuple where one is no dict."""
    made: dict[object, object] = {}
    size = 0
    for sample in samples:
        if not isinstance(sample, dict):
            return samples
        made |= sample
        size += len(sample)
        if len(made) < size:
            twice = next(
                key for key in sample if sum(isinstance(s, dict) and key in s for s in samples) > 1
            )
            raise ValueError(
                f"two sources of zip_sources have the field {twice!r}: rename it in one of them"
            )
    return made

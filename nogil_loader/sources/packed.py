"""Millions of names in a few bytes each.

Guarantees
- Names are bytes without a NUL (no path has one) and come back exactly, by number.
- A name costs its length beyond what it and its 15 neighbours begin and end with, plus about
  two bytes. Sorted names share much: millions of ``n01440764_10026.JPEG`` take 6 bytes each;
  names that are hashes share nothing and cost their length.
- Read-only after it is made; safe from any number of threads.

Names lie in blocks of 16: what all begin with, what all end with, then what is left of each,
with NULs between. Finding one is a slice and a ``split``, both in C.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

import numpy as np

BLOCK = 16


class PackedNames:
    """A read-only sequence of byte strings.

    >>> names = PackedNames(b"img_%03d.jpg" % n for n in range(100))
    >>> len(names), names[17], names.nbytes < 100 * 9
    (100, b'img_017.jpg', True)
    """

    __slots__ = ("_blob", "_length", "_starts")

    def __init__(self, names: Iterable[bytes]) -> None:
        packer = Packer()
        for name in names:
            packer.append(name)
        self._blob, starts, self._length = packer.finish()
        self._starts = np.frombuffer(starts, np.int64)

    @classmethod
    def of(cls, packer: Packer) -> PackedNames:
        """The names a packer was given."""
        made = cls(())
        made._blob, starts, made._length = packer.finish()
        made._starts = np.frombuffer(starts, np.int64)
        return made

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> bytes:
        return self.bind()(number)

    @property
    def nbytes(self) -> int:
        return len(self._blob) + self._starts.nbytes

    def bind(self) -> Callable[[int], bytes]:
        """``number -> name`` for one thread: shares no reference count with other threads."""
        blob, starts, length = memoryview(self._blob), self._starts.data, self._length

        def name(number: int) -> bytes:
            if not 0 <= number < length:
                raise IndexError(f"name {number} of {length}")
            block, place = divmod(number, BLOCK)
            parts = bytes(blob[starts[block] : starts[block + 1]]).split(b"\0")
            return parts[0] + parts[place + 2] + parts[1]

        return name

    def blob(self) -> bytes:
        """All names, as packed: equal for equal names, for fingerprints."""
        return self._blob


class Packer:
    """Takes names one at a time and holds no more than 16 of them unpacked."""

    __slots__ = ("_blob", "_length", "_pending", "_starts")

    def __init__(self) -> None:
        self._blob = bytearray()
        self._starts = array("q", [0])
        self._pending: list[bytes] = []
        self._length = 0

    def append(self, name: bytes) -> None:
        self._pending.append(name)
        if len(self._pending) == BLOCK:
            self._flush()

    def finish(self) -> tuple[bytes, array[int], int]:
        """The blob, where its blocks start (and the last ends), and the number of names."""
        if self._pending:
            self._flush()
        return bytes(self._blob), self._starts, self._length

    def _flush(self) -> None:
        pending = self._pending
        # Of all strings the smallest and the largest share the least.
        first = min(pending)
        size = _shared(first, max(pending))
        rests = [name[size:] for name in pending]
        turned = [rest[::-1] for rest in rests]
        end = _shared(min(turned), max(turned))
        middles = [rest[: len(rest) - end] for rest in rests]
        self._blob += b"\0".join([first[:size], turned[0][:end][::-1], *middles])
        self._starts.append(len(self._blob))
        self._length += len(pending)
        pending.clear()


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes the beginnings of two names have in common."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))

"""Shared memory without a name, so that there is nothing that could be left behind.

Guarantees
- A segment is an anonymous file that two processes have mapped. When both are gone, however
  they went, the kernel has taken it back: no name, no tracker, nothing to clean up. It does
  not count against the size of ``/dev/shm``.
- What is shown of a segment are arrays, not copies. The side that wrote it writes it again
  only after the last of them is gone.

Source: memfd_create(2); descriptors travel as SCM_RIGHTS, unix(7).
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections import deque
from collections.abc import Iterable
from time import monotonic

import numpy as np
from numpy.typing import NDArray

ALIGN = 64
_SMALLEST = 1 << 16
_KEPT = 4
"""Free segments that a writer keeps at most."""
_AT = struct.Struct("=qd")


class Segment:
    """A piece of memory that this process has mapped."""

    __slots__ = ("_mapped", "address", "bytes", "size")

    def __init__(self, descriptor: int, size: int) -> None:
        if sys.version_info >= (3, 13):
            self._mapped = mmap.mmap(descriptor, size, trackfd=False)
        else:
            self._mapped = mmap.mmap(descriptor, size)  # holds a descriptor of its own
        self.size = size
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._mapped, np.uint8)
        """All of it."""
        self.address: int = self.bytes.__array_interface__["data"][0]

    @classmethod
    def make(cls, size: int) -> tuple[Segment, int]:
        """A new segment of zeros, and the descriptor that another process can map it by."""
        # What it is called is for those who look into /proc; it leads to nothing.
        descriptor = os.memfd_create(f"nogil-loader-{os.getpid()}", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size)
        return cls(descriptor, size), descriptor


def room_for(size: int) -> int:
    """The size of a segment that holds so many bytes: a quarter more at most.

    >>> [room_for(size) for size in (1, 65_536, 65_537, 5_000_000)]
    [65536, 65536, 81920, 5242880]
    """
    step = max(_SMALLEST, 1 << max(0, (size - 1).bit_length() - 1)) // 4
    return max(_SMALLEST, -(-size // step) * step)


class Writer:
    """The side that makes segments and fills them."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._free: list[int] = []
        self._made = 0
        self._dropped: list[int] = []

    def take(self, size: int) -> tuple[int, Segment, int | None]:
        """(number, segment, descriptor if it is new) of memory that nobody is shown."""
        for number in self._free:
            if self._segments[number].size >= size:
                self._free.remove(number)
                return number, self._segments[number], None
        self._drop(len(self._free))  # they are too small
        segment, descriptor = Segment.make(room_for(size))
        self._made += 1
        self._segments[self._made] = segment
        return self._made, segment, descriptor

    def free(self, numbers: Iterable[int]) -> None:
        """The other side shows these no longer."""
        self._free.extend(numbers)
        self._drop(len(self._free) - _KEPT)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            number = self._free.pop(0)
            del self._segments[number]
            self._dropped.append(number)

    def dropped(self) -> list[int]:
        """Segments that are never written again, each told once."""
        told, self._dropped = self._dropped, []
        return told


class Reader:
    """The side that is shown segments."""

    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._freed: deque[int] = deque()

    def map(self, number: int, descriptor: int, size: int) -> None:
        """A segment that the writer has made; the descriptor is closed."""
        try:
            self._segments[number] = Segment(descriptor, size)
        finally:
            os.close(descriptor)

    def drop(self, numbers: Iterable[int]) -> None:
        """The writer has done with these."""
        for number in numbers:
            del self._segments[number]

    def show(self, number: int) -> NDArray[np.uint8]:
        """All bytes of a segment, which is free again when no array over them is left."""
        return np.asarray(_Shown(number, self._segments[number], self._freed))

    def freed(self) -> list[int]:
        """Segments that nothing shows any more, each told once."""
        told = []
        while self._freed:
            told.append(self._freed.popleft())
        return told


class _Shown:
    """The owner of what a segment shows: the base of every array over it."""

    __slots__ = ("__array_interface__", "_freed", "_number", "_segment")

    def __init__(self, number: int, segment: Segment, freed: deque[int]) -> None:
        self._number = number
        self._segment = segment
        self._freed = freed
        self.__array_interface__ = {
            "version": 3,
            "data": (segment.address, False),
            "shape": (segment.size,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        # In any thread, in the middle of anything: a deque's append is all that is safe.
        self._freed.append(self._number)


class Progress:
    """Where a worker process is: which cell, and since when. One writes, another reads."""

    def __init__(self, segment: Segment) -> None:
        self._room = segment.bytes.data

    def close(self) -> None:
        """Let go of the memory, whoever may still hold this object in a traceback."""
        self._room.release()

    def at(self, cell: int) -> None:
        """From here on it is at this cell; -1 is before the first one."""
        _AT.pack_into(self._room, 0, cell, monotonic())

    def read(self) -> tuple[int, float]:
        """(cell, when it was begun), as one: both sides have the same clock."""
        while True:
            one: tuple[int, float] = _AT.unpack_from(self._room)
            if one == _AT.unpack_from(self._room):
                return one


PROGRESS_SIZE = mmap.PAGESIZE

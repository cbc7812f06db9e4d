"""Objects to another process and back: a pickled head, and large buffers in shared memory.

Guarantees
- Buffers of arrays and bytes-like objects are copied once into shared memory and once out of
  it; they are never pickled.
- What arrives belongs to the receiver: nothing in it points into the shared memory.
- A segment is unlinked when it is replaced or closed, by the process that made it, and by the
  resource tracker if that process is killed.

Source: pickle protocol 5 with out-of-band buffers, PEP 574.
"""

from __future__ import annotations

import pickle
import struct
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import shared_memory

_ALIGN = 64
_NUMBER = struct.Struct("=q")
_SMALLEST = 1 << 20


class Arena:
    """A shared-memory segment that one process makes and another attaches to.

    It grows by being replaced: the name travels with every message.
    """

    def __init__(self, prefix: str | None = None) -> None:
        """``prefix``: what the names of segments begin with, for whoever must clean up."""
        self._memory: shared_memory.SharedMemory | None = None
        self._own = False
        self._prefix = prefix
        self._made = 0

    @property
    def name(self) -> str:
        """What the other side attaches to; empty while there is none."""
        return "" if self._memory is None else self._memory.name

    def reserve(self, size: int) -> memoryview:
        """At least ``size`` bytes to write to."""
        if self._memory is None or self._memory.size < size or not self._own:
            self.close()
            room = max(_SMALLEST, 1 << (size - 1).bit_length())
            self._made += 1
            name = None if self._prefix is None else f"{self._prefix}-{self._made}"
            self._memory = shared_memory.SharedMemory(name, create=True, size=room)
            self._own = True
        assert self._memory.buf is not None
        return self._memory.buf

    def attach(self, name: str) -> memoryview:
        """The segment that the other side wrote to."""
        if self._memory is None or self._memory.name != name:
            self.close()
            self._memory = shared_memory.SharedMemory(name)
            self._own = False
        assert self._memory.buf is not None
        return self._memory.buf

    def close(self, *, orphaned: bool = False) -> None:
        """Let the segment go; the side that made it also removes its name.

        ``orphaned``: the other side, which made it, was killed.
        """
        memory, self._memory = self._memory, None
        if memory is None:
            return
        memory.close()
        if self._own:
            memory.unlink()
        elif orphaned:
            with suppress(FileNotFoundError):
                memory.unlink()


class Progress:
    """A number that one process writes and another reads, whole."""

    def __init__(self, name: str | None = None) -> None:
        self._arena = Arena()
        if name is None:
            self._room = self._arena.reserve(8)
        else:
            self._room = self._arena.attach(name)

    @property
    def name(self) -> str:
        """What the other side attaches to."""
        return self._arena.name

    @property
    def value(self) -> int:
        """What was written last."""
        number: int = _NUMBER.unpack_from(self._room)[0]
        return number

    @value.setter
    def value(self, number: int) -> None:
        _NUMBER.pack_into(self._room, 0, number)

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._room = memoryview(bytes(8))
        self._arena.close()


def pack(value: object, arena: Arena) -> tuple[bytes, str, list[tuple[int, int]]]:
    """``value`` as a message: (head, name of the segment, (offset, size) of each buffer)."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    places, end = [], 0
    for view in views:
        places.append((end, view.nbytes))
        end += -(-view.nbytes // _ALIGN) * _ALIGN
    if end:
        room = arena.reserve(end)
        for (offset, size), view in zip(places, views, strict=True):
            room[offset : offset + size] = view
    for buffer in buffers:
        buffer.release()
    return head, arena.name if end else "", places


def unpack(head: bytes, name: str, places: Sequence[tuple[int, int]], arena: Arena) -> object:
    """The value of a message, with buffers of its own."""
    buffers: list[bytearray] = []
    if any(size for _, size in places):
        room = arena.attach(name)
        buffers = [bytearray(room[offset : offset + size]) for offset, size in places]
    else:
        buffers = [bytearray() for _ in places]
    value: object = pickle.loads(head, buffers=buffers)
    return value


class RemoteError(RuntimeError):
    """An exception in another process that cannot be pickled: its words."""


def shippable_error(error: BaseException, where: str) -> BaseException:
    """The exception, with its traceback as a note; or its words where it cannot travel."""
    told = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"in {where}:\n{told}")
    error.__traceback__ = None
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return RemoteError(told)
    return error if type(again) is type(error) else RemoteError(told)

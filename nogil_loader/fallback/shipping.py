"""Objects to another process and back: a pickled head, and large buffers in shared memory.

Guarantees
- Arrays are copied once, into shared memory, and never pickled. What arrives shows that
  memory, may be written to, and keeps it for as long as any of it is held.
- A large head (bytes, strings) travels through shared memory, too, not through the pipe.
- A message that cannot be packed is not sent at all, and one that cannot be unpacked is
  received whole: the channel stays usable.

Source: pickle protocol 5 with out-of-band buffers, PEP 574.
"""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from os import close

import numpy as np

from nogil_loader.fallback.memory import ALIGN, Reader, Writer

_INLINE = 1 << 15
"""Bytes of pickle that go through the pipe itself."""


class Channel:
    """One end of a duplex pipe, with memory of its own for what it sends.

    Any thread may send; one thread at a time may receive. ``freed`` of one end, brought to the
    other in whatever way, is what that end may ``reuse``.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._sending = threading.Lock()
        self._writer, self._reader = Writer(), Reader()

    def send(self, value: object) -> None:
        """Raises what pickling raises, and ``ConnectionError`` where the other end is gone."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        views = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        apart = len(head) > _INLINE
        if apart:
            views.append(np.frombuffer(head, np.uint8))
        places, end = [], 0
        for view in views:
            places.append((end, view.nbytes))
            end += -(-view.nbytes // ALIGN) * ALIGN
        with self._sending:
            number = size = 0
            descriptor: int | None = None
            if end:
                number, segment, descriptor = self._writer.take(end)
                size = segment.size if descriptor is not None else 0
                for (begin, length), view in zip(places, views, strict=True):
                    segment.bytes[begin : begin + length] = view
            dropped = self._writer.dropped()
            try:
                self.connection.send_bytes(
                    pickle.dumps((number, size, dropped, places, b"" if apart else head))
                )
                if descriptor is not None:
                    send_handle(self.connection, descriptor, 0)
            finally:
                if descriptor is not None:
                    close(descriptor)

    def receive(self) -> object:
        """The next value. ``EOFError`` where the other end is gone, perhaps in the middle of a
        message; else what unpickling raises."""
        try:
            number, size, dropped, places, head = pickle.loads(self.connection.recv_bytes())
            if size:
                self._reader.map(number, recv_handle(self.connection), size)
        except OSError as error:
            raise EOFError from error
        self._reader.drop(dropped)
        if number:
            room = self._reader.show(number)
            buffers = [room[begin : begin + length] for begin, length in places]
        else:
            buffers = [np.empty(0, np.uint8) for _ in places]
        if not head:
            head = buffers.pop()
        value: object = pickle.loads(head, buffers=buffers)
        return value

    def freed(self) -> list[int]:
        """Memory of the other end that nothing here shows any more, each piece told once."""
        return self._reader.freed()

    def reuse(self, freed: Iterable[int]) -> None:
        """What the other end has told as freed."""
        with self._sending:
            self._writer.free(freed)

    def close(self) -> None:
        """The other end receives ``EOFError``, and only what arrays still show stays mapped.
        Idempotent."""
        # Collected as garbage, a connection may have been finalized first, and not know it.
        with suppress(OSError):
            self.connection.close()
        self._writer, self._reader = Writer(), Reader()


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

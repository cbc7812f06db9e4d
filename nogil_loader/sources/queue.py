"""Samples from a queue that other threads fill: live data.

Guarantees
- Each sample is taken from the queue when the pipeline has room for it, not before.
- The stream ends at the sentinel, or when the queue is shut down (``Queue.shutdown`` of
  Python 3.13).
- Closing a run wakes a reader that waits on an empty queue. It does so by putting a token
  in; a token that a later run finds is passed over, never delivered.

A queue has no start to go back to, so a run over one cannot be resumed.
"""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from nogil_loader.sources.base import JSON, Sample


class Gettable(Protocol):
    """What a queue needs: ``queue.Queue``, ``SimpleQueue`` and their like have it."""

    def get(self) -> object: ...

    def put_nowait(self, item: object, /) -> None: ...


class Wake:
    """The token that wakes a waiting reader; never a sample."""


@dataclass(frozen=True)
class Queue_:
    """The samples are the items of ``queue``, as they come, up to ``sentinel``.

    ``queue``: a ``queue.Queue``, ``LifoQueue`` or ``SimpleQueue`` (not a ``PriorityQueue``:
    the token that ends a wait cannot be compared). ``sentinel``: the item that ends the
    stream, told by identity; ``None`` unless given. ``task_done`` is called, where there is
    one, as soon as an item has been taken.

    >>> import queue
    >>> frames = queue.SimpleQueue()
    >>> for frame in ("a", "b", None, "after the end"):
    ...     frames.put(frame)
    >>> list(Queue_(frames).open())
    ['a', 'b']
    """

    queue: Gettable
    sentinel: object = None
    name: str = "queue"
    stream: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.queue, queue.PriorityQueue):
            raise TypeError("from_queue cannot read a PriorityQueue: sort, then use a SimpleQueue")
        if not (hasattr(self.queue, "get") and hasattr(self.queue, "put_nowait")):
            raise TypeError(
                f"from_queue needs a queue with get and put_nowait, not {type(self.queue).__name__}"
            )

    def open(self, resume: JSON = None) -> QueueReader:
        """Begin where the queue is now. Raises ``ValueError`` when asked to resume."""
        if resume is not None:
            raise ValueError("a queue cannot be resumed: what it gave is gone")
        return QueueReader(self.queue, self.sentinel, self.name)


class QueueReader:
    """One pass over a ``Queue_``."""

    def __init__(self, source: Gettable, sentinel: object, name: str) -> None:
        self._queue = source
        self._sentinel = sentinel
        self._name = name
        self._waiting = False
        self._interrupted = False
        self._ended: tuple[type[BaseException], ...] = ()
        """How a queue says that it was shut down, on Pythons that know of it."""
        if hasattr(queue, "ShutDown"):
            self._ended = (queue.ShutDown,)

    def __iter__(self) -> Iterator[Sample]:
        source, sentinel = self._queue, self._sentinel
        task_done = getattr(source, "task_done", None)
        ended = self._ended
        while True:
            # Order matters: whoever interrupts sets its flag before it looks at ours.
            self._waiting = True
            if self._interrupted:
                return
            try:
                item = source.get()
            except ended:
                return
            self._waiting = False
            if task_done is not None:
                task_done()
            if item is sentinel:
                return
            if not isinstance(item, Wake):
                yield item

    def snapshot(self) -> JSON:
        return None

    def ref(self, number: int) -> object:
        return f"{self._name}[{number}]"

    def fingerprint(self) -> str:
        """Of the name alone: what a queue will give is not known."""
        return hashlib.blake2b(f"queue {self._name}".encode(), digest_size=16).hexdigest()

    def interrupt(self) -> None:
        self._interrupted = True
        if self._waiting:
            # A full queue needs no token, whoever waits on it is about to get an item; nor does
            # one that was shut down, which wakes its readers itself.
            with suppress(queue.Full, *self._ended):
                self._queue.put_nowait(Wake())

    def close(self) -> None:
        """The queue is the user's and stays as it is."""

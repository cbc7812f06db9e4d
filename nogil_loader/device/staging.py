"""Batch buffers in pinned memory, written by the workers and reused once nobody sees them.

Guarantees
- ``allocate`` never hands out memory that a NumPy array still shows, or that an unfinished
  copy still reads. When there is none to reuse it makes more; it never waits.
- A buffer comes back by itself: when the last array over it is dropped *and* the events
  attached to it are done. A batch that is abandoned half written needs no call.
- ``close`` lets go of everything; memory that arrays still show lives as long as they do.

Sizes: a buffer is as large as its class, the next of eight steps per octave, so at most an
eighth is unused; and it may serve a request of half its size. So batches of many shapes (a
short last batch, buckets by length) share buffers: however many shapes there are, one octave
of sizes keeps at most eight times what it ever had in use at once, and commonly twice.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from math import prod
from queue import Empty, SimpleQueue
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nogil_loader.device.protocol import Block, Device, Event

T = TypeVar("T")

SMALLEST = 512
"""Bytes of the smallest buffer; also the alignment that every class keeps."""

POISON = 0xA5
"""What a poisoned buffer is filled with: an unlikely pixel, and a float32 near -2.9e-16."""


def size_class(nbytes: int) -> int:
    """The size of buffer that serves a request: the next of eight steps per octave.

    >>> [size_class(n) for n in (0, 512, 513, 4097, 1_000_000)]
    [512, 512, 1024, 4608, 1048576]
    """
    if nbytes <= SMALLEST:
        return SMALLEST
    step = max(SMALLEST, 1 << max(0, (nbytes - 1).bit_length() - 4))
    return -(-nbytes // step) * step


class Pool:
    """Free blocks by size. Not thread-safe: its owner guards it."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._free: dict[int, list[Block]] = {}

    def take(self, nbytes: int) -> Block | None:
        """The smallest free block that fits and is at most twice the class; else None."""
        wanted = size_class(nbytes)
        at = bisect_left(self._sizes, wanted)
        if at == len(self._sizes) or self._sizes[at] > 2 * wanted:
            return None
        size = self._sizes[at]
        blocks = self._free[size]
        block = blocks.pop()
        if not blocks:
            del self._sizes[at], self._free[size]
        return block

    def put(self, block: Block) -> None:
        """A block that nothing uses any more."""
        if block.nbytes not in self._free:
            insort(self._sizes, block.nbytes)
            self._free[block.nbytes] = []
        self._free[block.nbytes].append(block)


class Returns(Generic[T]):
    """What finalizers leave behind, for the owner to collect at a time of its choosing.

    A finalizer may run in any thread and in the middle of anything, so it only appends to
    a ``SimpleQueue``, whose ``put`` is reentrant. After ``close``, when the owner comes no
    more, ``settle`` is called as well: it collects, and must not wait for a lock.
    """

    def __init__(self, settle: Callable[[], None] | None = None) -> None:
        self._left: SimpleQueue[T] = SimpleQueue()
        self._settle = self._drop if settle is None else settle
        self._closed = False

    def leave(self, item: T) -> None:
        """From a finalizer."""
        self._left.put(item)
        if self._closed:
            self._settle()

    def collect(self) -> Iterator[T]:
        """Everything left so far."""
        try:
            while True:
                yield self._left.get_nowait()
        except Empty:
            return

    def empty(self) -> bool:
        """Is nothing left?"""
        return self._left.empty()

    def close(self) -> None:
        """From now on nobody comes to collect."""
        self._closed = True
        self._settle()

    def _drop(self) -> None:
        for _ in self.collect():
            pass


Left: TypeAlias = tuple[Block, list[Event]]
"""A buffer that no array shows any more, and the copies that may still read it."""


class Hold:
    """The owner of one buffer's memory while NumPy arrays show it: the base of them all."""

    __slots__ = ("__array_interface__", "_returns", "block", "reads")

    def __init__(self, block: Block, returns: Returns[Left]) -> None:
        self.block = block
        self.reads: list[Event] = []
        """Done when a copy from this buffer is."""
        self._returns = returns
        self.__array_interface__ = {
            "version": 3,
            "data": (block.address, False),
            "shape": (block.nbytes,),
            "typestr": "|u1",
        }

    def __del__(self) -> None:
        self._returns.leave((self.block, self.reads))


def hold_of(array: npt.NDArray[np.generic]) -> Hold | None:
    """The buffer that an array shows a part of, or None for other memory."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Hold) else None


class Staging:
    """The host half of the ring. ``allocate`` may be called by any number of threads."""

    def __init__(self, device: Device, *, poison: bool = False) -> None:
        self._device = device
        self._poison = poison
        self._lock = threading.Lock()
        self._pool = Pool()
        self._returns: Returns[Left] = Returns()
        self._reading: deque[Left] = deque()
        self._closed = False
        self.nbytes = 0
        """Pinned bytes that were made."""

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        """An uninitialised C-ordered array in pinned memory, the caller's to write.

        Raises ``ValueError`` for a dtype that holds Python objects, ``RuntimeError`` after
        ``close``, and what the device raises when it has no more pinned memory.
        """
        element = np.dtype(dtype)
        if element.hasobject:
            raise ValueError(f"{element} holds Python objects, which no device can read")
        nbytes = prod(shape) * element.itemsize
        with self._lock:
            if self._closed:
                raise RuntimeError("the device ring is closed: no buffer after close()")
            self._collect()
            block = self._pool.take(nbytes)
        if block is None:
            block = self._device.pinned(size_class(nbytes))
            with self._lock:
                self.nbytes += block.nbytes
        flat = np.asarray(Hold(block, self._returns))
        return np.ndarray(shape, element, buffer=flat)

    def close(self) -> None:
        """Let go of all buffers. The caller has made sure that no copy is under way."""
        with self._lock:
            self._closed = True
            self._returns.close()
            self._reading.clear()
            self._pool = Pool()

    def _collect(self) -> None:
        """Buffers that were dropped and whose copies are done become free again."""
        for block, reads in self._returns.collect():
            if reads:
                self._reading.append((block, reads))
            else:
                self._recycle(block)
        while self._reading and all(map(self._device.done, self._reading[0][1])):
            self._recycle(self._reading.popleft()[0])

    def _recycle(self, block: Block) -> None:
        if self._poison:
            ctypes.memset(block.address, POISON, block.nbytes)
        self._pool.put(block)

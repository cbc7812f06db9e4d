"""The ring: batches on their way from the workers' hands to the consumer's stream.

Guarantees
- The host never waits. Where something must wait, a stream does.
- A pinned buffer is refilled only when its copy is done and nobody sees it (``staging``).
- Device memory is written again only after an event recorded on *every* stream that was
  given the batch, and recorded after the batch and every view and export of it were dead.
- A consumer who holds more batches than the ring has slots gets more memory, and the
  report says so. Nothing is ever overwritten, and nothing blocks.
- What goes wrong in a copy or a transform is raised by ``__call__``, to go to the consumer
  like the failure of any stage; the ring stays usable, and no memory is reused early.

How a batch travels, and who may touch it:

    allocate (workers)    a pinned buffer per array of the batch; rows are written into it
    __call__ (one thread) copies issued on the side stream, then ``transform``, then an event
    hand_over (consumer)  the consumer's stream waits for that event; the arrays are lent
    (finalizer)           the last view died: the array is left in a queue, nothing more
    __call__ (later)      an event on each consumer stream; once done, the memory is free

Retired memory is reclaimed oldest first. While fewer batches than ``slots`` are about, new
memory is made rather than waiting; from then on the side stream is made to wait for the
oldest retired batch (the work it waits for was issued long ago), and only when every batch
is still held does the ring grow.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from nogil_loader.device.batch import Batch, map_leaves, numeric
from nogil_loader.device.protocol import Block, Device, DeviceArray, Event, Stream
from nogil_loader.device.staging import (
    POISON,
    Pool,
    Returns,
    Staging,
    hold_of,
    size_class,
)

SLOTS = 4
"""One batch the step reads, one just dropped whose event is pending, two copied ahead."""


@dataclass(frozen=True, slots=True)
class RingReport:
    """What the ring did so far. Bytes and counts since it was made.

    ``str(report)`` is one line for people.
    """

    device: str
    slots: int
    """Batches the ring was made for."""
    batches: int
    """Batches sent."""
    copied: int
    """Bytes copied to the device."""
    staged: int
    """Of these, bytes that were not in a buffer of the ring and were copied into one first."""
    held_most: int
    """The most batches that were ready, held or not yet given up by a stream at once."""
    grown: int
    """Batches that found every slot held and made the ring grow."""
    deferred: int
    """Times the side stream was made to wait for a retired batch."""
    pinned: int
    """Pinned bytes that the ring made; ``close`` gives them back."""
    memory: int
    """Device bytes that the ring made, without what ``transform`` allocates."""

    def __str__(self) -> str:
        text = (
            f"{self.device}: {self.batches} batches, {self.copied / 1e6:.1f} MB copied,"
            f" {self.memory / 1e6:.1f} MB on the device, {self.pinned / 1e6:.1f} MB pinned,"
            f" at most {self.held_most} of {self.slots} slots in use"
        )
        if self.staged:
            text += f"; {self.staged / 1e6:.1f} MB came from ordinary memory and were copied twice"
        if self.grown:
            text += f"; the ring grew {self.grown} times, as more batches were held than slots"
        return text


class _Flight:
    """A batch as the ring counts it: over when nothing of it is left anywhere."""

    __slots__ = ("_over",)

    def __init__(self, over: Returns[None]) -> None:
        self._over = over

    def __del__(self) -> None:
        self._over.leave(None)


@dataclass(frozen=True, slots=True)
class _Released:
    """An array whose last view is dead, and the streams that may still be reading it."""

    flight: _Flight
    array: DeviceArray
    streams: tuple[Stream, ...]


@dataclass(frozen=True, slots=True)
class _Retired:
    """A released array and the events after which its memory is free."""

    flight: _Flight
    array: DeviceArray
    events: list[Event]


class _MemoryHold:
    """The owner of a device block while arrays of the ring show it.

    It goes back to the pool the moment no such array is left: what the side stream itself
    still does with it comes, in that stream, before whatever is put there next.
    """

    __slots__ = ("_block", "_returns")

    def __init__(self, block: Block, returns: Returns[Block]) -> None:
        self._block = block
        self._returns = returns

    def __del__(self) -> None:
        self._returns.leave(self._block)


class _Loan:
    """The lease of one array of a batch: the owner of the memory that the consumer sees.

    Made by the thread that takes the batch: on free-threaded builds an object whose last
    reference is dropped by another thread than its maker may outlive that for a while.
    """

    __slots__ = ("_array", "_device", "_flight", "_ready", "_returns", "_streams")

    def __init__(
        self,
        device: Device,
        flight: _Flight,
        array: DeviceArray,
        stream: Stream,
        ready: Event,
        returns: Returns[_Released],
    ) -> None:
        self._device = device
        self._flight = flight
        self._array = array
        self._streams = {stream.handle: stream}  # each waits for `ready` before it is here
        self._ready = ready
        self._returns = returns

    def export(self, handle: int) -> None:
        if handle not in self._streams:
            stream = self._device.adopt(handle)
            self._device.wait(stream, self._ready)
            self._streams[handle] = stream

    def __del__(self) -> None:
        streams = tuple(self._streams.values())
        self._returns.leave(_Released(self._flight, self._array, streams))


@dataclass(slots=True)
class Arrival:
    """A batch on the device that nobody has been given yet: ``Transfer.hand_over`` does."""

    batch: Batch
    ready: Event = field(repr=False)
    flight: _Flight | None = field(repr=False)


class Ring:
    """A ``Transfer`` to one device. Use ``open_transfer`` to make the right one.

    Every call may come from any thread. ``__call__`` lets in one at a time: a run has one
    copy thread, and two epochs that overlap have two.

    Args:
        device: where to.
        slots: batches for which memory is kept; 4 suits a look-ahead of two batches.
        transform: called with every batch on the side stream, after its copy is issued.
        stream: the stream the consumer works on (integer handle or ``__cuda_stream__``);
            by default the one current in the thread that takes the batch.
        poison: fill memory with 0xA5 as soon as it is free: a way to prove these rules on a
            real device, at the cost of writing everything twice.
    """

    def __init__(
        self,
        device: Device,
        *,
        slots: int = SLOTS,
        transform: Callable[[Batch], Batch] | None = None,
        stream: object = None,
        poison: bool = False,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots={slots}: the ring needs at least one")
        self.device = device
        self._slots = slots
        self._transform = transform
        self._poison = poison
        self._consumer = None if stream is None else device.adopt(stream)
        self._side = device.new_stream()
        self._staging = Staging(device, poison=poison)
        # Between the copy thread, that of an epoch that has begun early, and close: taken
        # once a batch, and nearly always free.
        self._guard = threading.Lock()
        self._closed = False
        self._pool = Pool()
        self._blocks: Returns[Block] = Returns()
        self._over: Returns[None] = Returns(self._settle)
        self._released: Returns[_Released] = Returns(self._settle)
        self._retired: deque[_Retired] = deque()
        self._set_aside: list[_Released] = []
        self._late: list[tuple[DeviceArray, tuple[Stream, ...]]] = []  # released after close
        self._flights = 0  # batches about: on their way, held, or not yet reclaimed
        self._growing = False
        self._batches = self._copied = self._staged = 0
        self._held_most = self._grown = self._deferred = self._memory = 0

    def allocator(self) -> Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[np.generic]]:
        """``alloc(shape, dtype)``: an uninitialised pinned array for a batch under way."""
        return self._staging.allocate

    def __call__(self, batch: Batch) -> Arrival:
        """Issue the copy of a finished host batch, and the transform; returns at once.

        Arrays from ``allocator`` (or the first rows of one) are copied from where they
        are; other numeric arrays are first copied into pinned memory, here. Arrays of
        strings and objects, and what is no array, stay on the host.
        """
        with self._guard:
            if self._closed:
                raise RuntimeError("the device ring is closed: no batch after close()")
            with self.device.using(self._side):
                return self._send(batch)

    def hand_over(self, arrival: Arrival) -> Batch:
        """The batch, for the calling thread, whose stream now waits for the copy.

        Called once for each arrival, in the thread that takes the batch.
        """
        if arrival.flight is None:
            raise RuntimeError("a batch is handed over once, and this one was")
        stream = self._consumer or self.device.current_stream()
        self.device.wait(stream, arrival.ready)
        lend = partial(self._lend, arrival.flight, stream, arrival.ready)
        batch = map_leaves(lend, arrival.batch)
        arrival.batch = arrival.flight = None  # the batch must not live on in here
        return batch

    def _lend(self, flight: _Flight, stream: Stream, ready: Event, leaf: object) -> object:
        if not self.device.owns(leaf):
            return leaf
        loan = _Loan(self.device, flight, leaf, stream, ready, self._released)
        return self.device.lend(leaf, loan)

    def report(self) -> RingReport:
        """What the ring did so far."""
        return RingReport(
            device=self.device.name,
            slots=self._slots,
            batches=self._batches,
            copied=self._copied,
            staged=self._staged,
            held_most=self._held_most,
            grown=self._grown,
            deferred=self._deferred,
            pinned=self._staging.nbytes,
            memory=self._memory,
        )

    def close(self) -> None:
        """Wait for the copies under way and give all memory back. Idempotent.

        Batches that the consumer still holds, or has yet to be handed, stay valid. Their
        memory is given back together when the last of them is dropped, which waits for the
        streams that read them.
        """
        with self._guard:
            if self._closed:
                return
            self._closed = True
            try:
                self._reclaim()
                for retired in self._retired:
                    for event in retired.events:
                        self.device.wait(self._side, event)
                self.device.synchronize(self._side)
            finally:
                self._retired.clear()
                self._set_aside.clear()
                self._blocks.close()
                self._pool = Pool()
                self._staging.close()
        self._released.close()
        self._over.close()

    # -- the copy thread

    def _send(self, batch: Batch) -> Arrival:
        self._reclaim()
        self._growing = False
        batch = map_leaves(self._copy, batch)
        ready = self.device.record(self._side)
        if self._transform is not None:
            batch = self._transform(batch)
            ready = self.device.record(self._side)
        self._flights += 1
        self._batches += 1
        self._grown += self._growing
        self._held_most = max(self._held_most, self._flights)
        return Arrival(batch, ready, _Flight(self._over))

    def _copy(self, leaf: object) -> object:
        """A leaf of the host batch as an array on the device, its copy issued."""
        if not isinstance(leaf, np.ndarray) or not numeric(leaf):
            return leaf
        hold = hold_of(leaf) if leaf.flags.c_contiguous else None
        if hold is None:
            pinned = self._staging.allocate(leaf.shape, leaf.dtype)
            pinned[...] = leaf
            leaf, hold = pinned, hold_of(pinned)
            assert hold is not None
            self._staged += leaf.nbytes
        block = self._block(leaf.nbytes)
        array = self.device.array(block, leaf.shape, leaf.dtype, _MemoryHold(block, self._blocks))
        self.device.copy(leaf.ctypes.data, block, leaf.nbytes, self._side)
        hold.reads.append(self.device.record(self._side))
        self._copied += leaf.nbytes
        return array

    def _block(self, nbytes: int) -> Block:
        """Device memory that the side stream may write to from now on."""
        block = self._free_block(nbytes)
        while block is None and self._retired and self._flights >= self._slots:
            retired = self._retired.popleft()
            for event in retired.events:
                self.device.wait(self._side, event)
            self._deferred += 1
            del retired  # and with it the array that held the memory
            self._land()
            block = self._free_block(nbytes)
        if block is None:
            block = self.device.memory(size_class(nbytes))
            self._memory += block.nbytes
            self._growing |= self._flights >= self._slots
        return block

    def _free_block(self, nbytes: int) -> Block | None:
        for block in self._blocks.collect():
            if self._poison:
                self.device.fill(block, POISON, self._side)
            self._pool.put(block)
        return self._pool.take(nbytes)

    def _reclaim(self) -> None:
        """Mark the streams of what was released; free what the marks let go."""
        for released in self._released.collect():
            try:
                events = [self.device.record(stream) for stream in released.streams]
            except BaseException:
                self._set_aside.append(released)  # no mark, so never again
                raise
            self._retired.append(_Retired(released.flight, released.array, events))
            del released
        while self._retired and all(map(self.device.done, self._retired[0].events)):
            self._retired.popleft()
        self._land()

    def _land(self) -> None:
        """Count off the batches of which nothing is left."""
        self._flights -= sum(1 for _ in self._over.collect())

    # -- after close, wherever the last view of an array dies

    def _settle(self) -> None:
        """Keep what was released after ``close`` until all is; then wait once, and let go.

        This may run in a finalizer that interrupts the holder of the lock, hence no waiting
        for it: whoever holds it looks once more when it has given it back.
        """
        while not (self._released.empty() and self._over.empty()):
            if not self._guard.acquire(blocking=False):
                return
            try:
                self._late += [(one.array, one.streams) for one in self._released.collect()]
                self._land()
                gone, self._late = ([], self._late) if self._flights else (self._late, [])
            finally:
                self._guard.release()
            readers = {stream.handle: stream for _, streams in gone for stream in streams}
            for stream in readers.values():
                self.device.synchronize(stream)

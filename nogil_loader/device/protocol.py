"""What the ring asks of an accelerator: memory, one copy, and the order of streams.

Guarantees
- A device never makes the host wait, but in ``synchronize``, which only ``close`` calls.
- ``done`` is a question that is answered at once; ``wait`` makes a *stream* wait.
- A ``Block`` owns its memory: dropping the last reference to it gives the memory back.
- Every call may come from any thread. A device selects itself for the calling thread
  where its runtime keeps a current device per thread, and puts back what was there.

The words are CUDA's, whose programming guide ("Asynchronous Concurrent Execution") gives
the rules that the ring builds on: work in one stream runs in the order it was issued; an
event recorded on a stream is done when everything issued to that stream before it is; work
in two streams is ordered only by events. Three devices implement this: ``device.cupy``,
``device.host``, and ``testing.device``, whose streams move only when a test says so.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt


class DeviceArray(Protocol):
    """An array in device memory: ``cupy.ndarray``, or ``np.ndarray`` on the host."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        ...

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Element type."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        ...


@dataclass(frozen=True, slots=True)
class Stream:
    """A queue of device work. Two streams with the same handle are the same stream.

    ``native`` is the runtime's own object, held so that the queue outlives every event
    the ring still means to record on it.
    """

    handle: int
    native: object = field(default=None, compare=False, repr=False)


Event: TypeAlias = object
"""A mark in a stream, from ``Device.record``; only that device looks inside."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Block:
    """``nbytes`` of memory at ``address``, owned by ``native`` and freed with it."""

    address: int
    nbytes: int
    native: object = field(repr=False)


class Lease(Protocol):
    """What a consumer's array holds on to; its death is the release of the memory."""

    def export(self, handle: int) -> None:
        """The array is about to be read on the stream with this handle as well."""
        ...


class Device(Protocol):
    """One accelerator, as far as the ring is concerned."""

    @property
    def name(self) -> str:
        """``"cuda:0"``, ``"host"``."""
        ...

    def pinned(self, nbytes: int) -> Block:
        """Host memory that the device can copy from without the host's help."""
        ...

    def memory(self, nbytes: int) -> Block:
        """Memory on the device."""
        ...

    def new_stream(self) -> Stream:
        """A stream that no other work is ordered with."""
        ...

    def current_stream(self) -> Stream:
        """The stream on which the calling thread's own work goes now."""
        ...

    def adopt(self, stream: object) -> Stream:
        """The user's stream: an integer handle or an object with ``__cuda_stream__``.

        Raises ``TypeError`` for anything else, ``ValueError`` for a stream that means
        another queue in every thread.
        """
        ...

    def using(self, stream: Stream) -> AbstractContextManager[object]:
        """Within it, work of the calling thread goes to ``stream``."""
        ...

    def copy(self, source: int, target: Block, nbytes: int, stream: Stream) -> None:
        """Issue a copy of ``nbytes`` from host address ``source``; returns at once.

        The memory at ``source`` must be pinned and stay as it is until the copy is done.
        """
        ...

    def fill(self, target: Block, value: int, stream: Stream) -> None:
        """Issue the setting of every byte of ``target`` to ``value``; returns at once."""
        ...

    def record(self, stream: Stream) -> Event:
        """Mark what has been issued to ``stream`` so far."""
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """What is issued to ``stream`` from now on runs after ``event``."""
        ...

    def done(self, event: Event) -> bool:
        """Has everything before the mark run? Raises what the device reports of it."""
        ...

    def synchronize(self, stream: Stream) -> None:
        """Make the host wait for all of ``stream``. For ``close`` alone."""
        ...

    def array(
        self, block: Block, shape: tuple[int, ...], dtype: npt.DTypeLike, owner: object
    ) -> DeviceArray:
        """The start of ``block`` as a C-ordered array, which keeps ``owner`` alive."""
        ...

    def lend(self, array: DeviceArray, lease: Lease) -> DeviceArray:
        """The same elements as an array whose memory is kept by ``lease``.

        Views of it and exports from it (DLPack, ``__cuda_array_interface__``) keep the
        lease alive too, and tell it on which stream they will be read.
        """
        ...

    def owns(self, value: object) -> TypeGuard[DeviceArray]:
        """Is ``value`` an array in this device's memory?"""
        ...

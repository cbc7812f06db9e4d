"""Batches that stay in host memory: the host as a device, and the transfer to nowhere.

Guarantees
- ``HostTransfer`` copies nothing: the consumer gets the very arrays the workers wrote, and
  their memory is reused once no view of them is left.
- ``HostDevice`` does at once, in the calling thread, what a GPU would do later. It exists
  so that the ring runs from end to end where there is no GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from nogil_loader.device.batch import Batch, numeric
from nogil_loader.device.protocol import Block, DeviceArray, Event, Lease, Stream
from nogil_loader.device.staging import Staging

_ONLY = Stream(0)


def host_block(nbytes: int) -> Block:
    """Ordinary memory as a block."""
    memory = np.empty(nbytes, np.uint8)
    return Block(memory.ctypes.data, nbytes, memory)


class Owned:
    """An object whose memory NumPy may show, and which keeps ``owner`` alive meanwhile."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
        }


def shown(array: npt.NDArray[np.generic], owner: object) -> npt.NDArray[np.generic]:
    """The same elements as an array that keeps ``owner`` alive, and nothing else."""
    low, high = np.lib.array_utils.byte_bounds(array)
    flat = np.asarray(Owned(low, max(1, high - low), owner))
    offset = array.ctypes.data - low
    return np.ndarray(array.shape, array.dtype, flat, offset, array.strides)


class HostDevice:
    """The host in the place of a device: copies are done when the call returns."""

    name = "host"

    def pinned(self, nbytes: int) -> Block:
        return host_block(nbytes)

    def memory(self, nbytes: int) -> Block:
        return host_block(nbytes)

    def new_stream(self) -> Stream:
        return _ONLY

    def current_stream(self) -> Stream:
        return _ONLY

    def adopt(self, stream: object) -> Stream:
        raise TypeError(f"stream={stream!r}: batches on the host are on no stream")

    def using(self, stream: Stream) -> AbstractContextManager[object]:
        return nullcontext()

    def copy(self, source: int, target: Block, nbytes: int, stream: Stream) -> None:
        ctypes.memmove(target.address, source, nbytes)

    def fill(self, target: Block, value: int, stream: Stream) -> None:
        ctypes.memset(target.address, value, target.nbytes)

    def record(self, stream: Stream) -> Event:
        return None

    def wait(self, stream: Stream, event: Event) -> None:
        pass

    def done(self, event: Event) -> bool:
        return True

    def synchronize(self, stream: Stream) -> None:
        pass

    def array(
        self, block: Block, shape: tuple[int, ...], dtype: npt.DTypeLike, owner: object
    ) -> DeviceArray:
        flat = np.asarray(Owned(block.address, block.nbytes, owner))
        return np.ndarray(shape, dtype, buffer=flat)

    def lend(self, array: DeviceArray, lease: Lease) -> DeviceArray:
        assert isinstance(array, np.ndarray)
        return shown(array, lease)

    def owns(self, value: object) -> TypeGuard[DeviceArray]:
        return isinstance(value, np.ndarray) and numeric(value)


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a transfer that stays on the host did."""

    device: str
    batches: int
    memory: int
    """Bytes made for batches, and used again for later ones."""

    def __str__(self) -> str:
        return f"{self.device}: {self.batches} batches, {self.memory / 1e6:.1f} MB"


class HostTransfer:
    """A ``Transfer`` that leaves batches where they are.

    Args:
        transform: called with every batch, in the thread that would issue copies.
    """

    def __init__(self, *, transform: Callable[[Batch], Batch] | None = None) -> None:
        self._staging = Staging(HostDevice())
        self._transform = transform
        self._batches = 0

    def allocator(self) -> Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[np.generic]]:
        """``alloc(shape, dtype)``: an uninitialised array in memory that is reused."""
        return self._staging.allocate

    def __call__(self, batch: Batch) -> Batch:
        """The batch, transformed."""
        self._batches += 1
        return batch if self._transform is None else self._transform(batch)

    def hand_over(self, arrival: Batch) -> Batch:
        """The batch itself."""
        return arrival

    def report(self) -> HostReport:
        """Counts so far."""
        return HostReport("host", self._batches, self._staging.nbytes)

    def close(self) -> None:
        """Keep no memory; arrays still held stay valid."""
        self._staging.close()

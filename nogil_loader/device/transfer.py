"""``to_device`` at work: which device, and the object that takes batches there.

Guarantees
- ``open_transfer("auto")`` uses the first GPU where CuPy and a GPU are there and the host
  otherwise, and logs which and why. A device asked for by name is that device or an error
  that names what is missing.
- Importing this module imports no CuPy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nogil_loader.device.batch import Batch
from nogil_loader.device.host import HostReport, HostTransfer
from nogil_loader.device.protocol import Device
from nogil_loader.device.ring import SLOTS, Arrival, Ring, RingReport

_log = logging.getLogger(__name__)

A = TypeVar("A")

TransferReport: TypeAlias = "RingReport | HostReport"


class Transfer(Protocol[A]):
    """The last stage of a run that ends on a device.

    A run allocates the arrays of a batch with ``allocator()`` (any thread), calls the
    transfer with each finished batch in *one* private thread, and calls ``hand_over`` with
    what came back in the thread that takes the batch, just before returning it. What has
    not been handed over is not delivered. Runs that overlap, as successive epochs do, share
    one transfer.
    """

    def allocator(self) -> Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[np.generic]]:
        """``alloc(shape, dtype)``: memory for one array of a batch, to be written to."""
        ...

    def __call__(self, batch: Batch) -> A:
        """Send a batch on its way; returns at once with what to hand over."""
        ...

    def hand_over(self, arrival: A) -> Batch:
        """The batch for the calling thread, in order with that thread's stream."""
        ...

    def report(self) -> TransferReport:
        """What it did so far; ``str`` of it is a line."""
        ...

    def close(self) -> None:
        """Give back everything that no consumer holds. Idempotent, from any thread."""
        ...


def open_transfer(
    device: str = "auto",
    *,
    transform: Callable[[Batch], Batch] | None = None,
    stream: object = None,
    slots: int = SLOTS,
    poison: bool = False,
) -> Transfer[Arrival] | Transfer[Batch]:
    """The transfer for ``to_device(device, transform=, stream=)``.

    Args:
        device: ``"auto"``, ``"host"`` (or ``"cpu"``), ``"cuda"`` (the first GPU), ``"cuda:N"``.
        transform: ``fn(batch) -> batch``, run on the device's side stream.
        stream: the consumer's stream: an integer handle or an object with
            ``__cuda_stream__``. Default: the one current where the batch is taken.
        slots: batches for which the ring keeps memory.
        poison: see ``Ring``.

    Raises:
        ImportError: a GPU is asked for and CuPy is missing.
        RuntimeError: CuPy is there, and the driver or the GPU is not.
        ValueError: no such GPU, or no such kind of device.

    >>> transfer = open_transfer("host")
    >>> rows = transfer.allocator()((2, 3), np.uint8)
    >>> rows[...] = 7
    >>> int(transfer.hand_over(transfer({"image": rows}))["image"].sum())
    42
    >>> transfer.close()
    """
    index, why = choose(device)
    if device == "auto":
        _log.info("to_device('auto') chose %s: %s", "host" if index is None else why, why)
    if index is None:
        if stream is not None:
            raise ValueError(
                f"to_device({device!r}, stream=…): batches on the host are on no stream"
            )
        return HostTransfer(transform=transform)
    return Ring(open_device(index), slots=slots, transform=transform, stream=stream, poison=poison)


def choose(device: str) -> tuple[int | None, str]:
    """Which GPU (None: the host) a device name means here, and why.

    >>> choose("host")
    (None, 'asked for')
    >>> choose("cuda:x")
    Traceback (most recent call last):
    ValueError: to_device('cuda:x'): a device is "auto", "host", "cuda" or "cuda:N"
    """
    if device in ("host", "cpu"):
        return None, "asked for"
    if device == "auto":
        try:
            count = _count_gpus(device)
        except ImportError:
            return None, "CuPy is not installed"
        except RuntimeError as missing:
            return None, str(missing)
        return 0, f"cuda:0, the first of {count}"
    named = re.fullmatch(r"cuda(?::(\d+))?", device)
    if named is None:
        raise ValueError(f'to_device({device!r}): a device is "auto", "host", "cuda" or "cuda:N"')
    count = _count_gpus(device)
    index = int(named[1] or 0)
    if index >= count:
        last = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        raise ValueError(f"to_device({device!r}): this machine has {last}")
    return index, "asked for"


def open_device(index: int) -> Device:
    """The GPU with this number, through CuPy."""
    from nogil_loader.device.cupy import CupyDevice

    return CupyDevice(index)


def _count_gpus(device: str) -> int:
    """How many GPUs CuPy can use; raises what to tell the user when there is none."""
    try:
        from nogil_loader.device.cupy import count_gpus
    except ImportError as missing:
        raise ImportError(
            f'to_device({device!r}) needs CuPy: pip install "nogil_loader[gpu]"'
            " (docs/gpu.md says how on free-threaded 3.13)"
        ) from missing
    return count_gpus(device)

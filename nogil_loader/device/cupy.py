"""A CUDA device through CuPy. Imported only when a GPU is asked for.

Guarantees
- Pinned memory is exactly as large as asked for: ``cupy.cuda.alloc_pinned_memory`` rounds
  up to a power of two, so ``PinnedMemory`` is used directly, and usable by every GPU.
- Device memory of the ring comes from ``cudaMalloc``, not from CuPy's pool, which might
  hand it to another stream while the consumer's still reads it.
- CuPy keeps a current device and stream per *thread*; every call here selects its own
  device, so any thread may make it, and one process may drive several GPUs.
- An array that is lent tells its lease on which stream it will be read, whenever it is
  exported by DLPack or ``__cuda_array_interface__``.

Needs CuPy 14 (``Stream.from_external``), CUDA 12 or newer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeGuard, cast

import cupy
import numpy.typing as npt

from nogil_loader.device.protocol import Block, DeviceArray, Event, Lease, Stream

_LEGACY, _PER_THREAD = 1, 2
"""CUDA's reserved handles: ``cudaStreamLegacy``, ``cudaStreamPerThread``."""


class _Leased(Protocol):
    """What an array tells of its being read elsewhere."""

    lease: Lease | None


class LentArray(cupy.ndarray):  # type: ignore[misc]
    """A ``cupy.ndarray`` whose memory belongs to the ring, and comes back to it by itself.

    It and its views behave as any CuPy array; results of arithmetic are ordinary ones.
    """

    lease: Lease | None = None

    def __array_finalize__(self, array: _Leased | None) -> None:
        self.lease = getattr(array, "lease", None)

    def __dlpack__(self, *, stream: int | None = None, **options: object) -> object:
        """A capsule, as the array API has it: ``stream`` None means the legacy default
        stream, -1 that the caller sees to the order of streams itself."""
        if self.lease is not None and stream != -1:
            self.lease.export(0 if stream is None else stream)
        return super().__dlpack__(stream=stream, **options)

    @property
    def __cuda_array_interface__(self) -> Mapping[str, object]:
        """The interface, version 3: its ``stream`` is the calling thread's current one,
        on which the copy is awaited here and the release will be."""
        if self.lease is not None:
            self.lease.export(cupy.cuda.get_current_stream().ptr)
        return cast(Mapping[str, object], super().__cuda_array_interface__)


class _Foreign:
    """A stream that someone else owns, by its handle."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


class CupyDevice:
    """GPU number ``index`` of those CuPy sees."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.name = f"cuda:{index}"

    def pinned(self, nbytes: int) -> Block:
        with cupy.cuda.Device(self.index):
            memory = cupy.cuda.PinnedMemory(nbytes, cupy.cuda.runtime.hostAllocPortable)
        return Block(memory.ptr, nbytes, memory)

    def memory(self, nbytes: int) -> Block:
        with cupy.cuda.Device(self.index):
            memory = cupy.cuda.Memory(nbytes)
        return Block(memory.ptr, nbytes, memory)

    def new_stream(self) -> Stream:
        with cupy.cuda.Device(self.index):
            native = cupy.cuda.Stream(non_blocking=True)
        return Stream(native.ptr, native)

    def current_stream(self) -> Stream:
        native = cupy.cuda.get_current_stream(self.index)
        return _named(native.ptr, native)

    def adopt(self, stream: object) -> Stream:
        if isinstance(stream, int) and not isinstance(stream, bool):
            native = cupy.cuda.Stream.from_external(_Foreign(stream))
        elif hasattr(stream, "__cuda_stream__") or isinstance(stream, cupy.cuda.Stream):
            native = (
                stream
                if isinstance(stream, cupy.cuda.Stream)
                else cupy.cuda.Stream.from_external(stream)
            )
        else:
            raise TypeError(
                f"stream={stream!r}: a stream is an integer handle (torch:"
                " torch.cuda.current_stream().cuda_stream) or has __cuda_stream__"
            )
        return _named(native.ptr, (native, stream))

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        with cupy.cuda.Device(self.index), _native(stream):
            yield

    def copy(self, source: int, target: Block, nbytes: int, stream: Stream) -> None:
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(
            target.address, source, nbytes, runtime.memcpyHostToDevice, stream.handle
        )

    def fill(self, target: Block, value: int, stream: Stream) -> None:
        cupy.cuda.runtime.memsetAsync(target.address, value, target.nbytes, stream.handle)

    def record(self, stream: Stream) -> Event:
        with cupy.cuda.Device(self.index):
            event = cupy.cuda.Event(disable_timing=True)
            event.record(_native(stream))
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        with cupy.cuda.Device(self.index):
            _native(stream).wait_event(event)

    def done(self, event: Event) -> bool:
        return bool(cast(cupy.cuda.Event, event).done)

    def synchronize(self, stream: Stream) -> None:
        with cupy.cuda.Device(self.index):
            _native(stream).synchronize()

    def array(
        self, block: Block, shape: tuple[int, ...], dtype: npt.DTypeLike, owner: object
    ) -> DeviceArray:
        memory = cupy.cuda.UnownedMemory(block.address, block.nbytes, owner, self.index)
        return cast(
            DeviceArray, cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))
        )

    def lend(self, array: DeviceArray, lease: Lease) -> DeviceArray:
        source = cast(cupy.ndarray, array)
        memory = cupy.cuda.UnownedMemory(source.data.ptr, source.nbytes, lease, self.index)
        lent = LentArray(
            source.shape,
            source.dtype,
            memptr=cupy.cuda.MemoryPointer(memory, 0),
            strides=source.strides,
        )
        lent.lease = lease
        return cast(DeviceArray, lent)

    def owns(self, value: object) -> TypeGuard[DeviceArray]:
        return isinstance(value, cupy.ndarray)


def count_gpus(device: str) -> int:
    """How many GPUs CuPy can use.

    Raises ``RuntimeError`` with what the driver says when there is none; ``device`` is what
    the user asked for.
    """
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError(
            f"to_device({device!r}): CuPy {cupy.__version__} finds no usable GPU ({error})"
        ) from error
    if not count:
        raise RuntimeError(f"to_device({device!r}): CuPy {cupy.__version__} finds no GPU")
    return count


def _named(handle: int, native: object) -> Stream:
    """A stream of the consumer's, under one name however it is spelt."""
    if handle == _PER_THREAD:
        raise ValueError(
            "the per-thread default stream (handle 2) is another stream in every thread:"
            " work on a stream of its own (cupy.cuda.Stream(), torch.cuda.Stream())"
            " and give it to to_device(stream=…)"
        )
    return Stream(0 if handle == _LEGACY else handle, native)


def _native(stream: Stream) -> cupy.cuda.Stream:
    native = stream.native
    return native[0] if isinstance(native, tuple) else native


def scale_channels(
    pixels: object, scales: list[float], shifts: list[float], dtype: str, channels_first: bool
) -> DeviceArray:
    """``pixels[..., c] * scales[c] + shifts[c]`` for ``[N, H, W, C]``, on the current stream.

    One kernel per channel with the numbers as arguments: no constants on the device, so
    nothing to copy there and nothing to keep.
    """
    source = cast(cupy.ndarray, pixels)
    n, h, w, c = source.shape
    out = cupy.empty((n, c, h, w) if channels_first else (n, h, w, c), dtype)
    last = out.transpose(0, 2, 3, 1) if channels_first else out
    for channel, (scale, shift) in enumerate(zip(scales, shifts, strict=True)):
        _scale(source[..., channel], scale, shift, last[..., channel])
    return cast(DeviceArray, out)


_scale = cupy.ElementwiseKernel(
    "T x, float32 scale, float32 shift",
    "U y",
    "y = static_cast<U>(static_cast<float>(x) * scale + shift)",
    "nogil_loader_scale",
)

"""A device for tests: nothing on it happens until the test says so.

Guarantees
- Streams are queues that move one operation at a time, when ``step`` or ``run`` is called,
  in any order the test likes: every interleaving of copies, kernels and events is possible.
- The host never waits: ``synchronize`` outside ``waiting()`` is an ``AssertionError``. In
  ``moving()``, where a thread moves the streams in an order of its own, it is noted in ``waits``.
- A copy or kernel that touches freed memory, or copies from memory that is not pinned, is
  an ``AssertionError``. Kernels hold no reference to the arrays they were given, as on a GPU.
- Memory from ``empty`` is reused, and poisoned, in the order of the stream it was made on,
  as a caching allocator's is; that of the ring is poisoned by ``Ring(poison=True)``.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from nogil_loader.device.host import Owned, shown
from nogil_loader.device.protocol import Block, DeviceArray, Event, Lease, Stream
from nogil_loader.device.staging import POISON

Array = npt.NDArray[np.generic]


class FakeArray(np.ndarray[tuple[int, ...], np.dtype[np.generic]]):
    """An array in the fake device's memory. DLPack exports of it name a stream."""

    lease: Lease | None = None

    def __array_finalize__(self, array: object) -> None:
        self.lease = getattr(array, "lease", None)

    def export(self, handle: int) -> Array:
        """What ``__dlpack__(stream=handle)`` does on a GPU, and the consumer's view."""
        if self.lease is not None:
            self.lease.export(handle)
        return self.view(np.ndarray)


@dataclass(slots=True)
class FakeEvent:
    """Done, or not yet, or gone wrong."""

    done: bool = False
    error: BaseException | None = None


@dataclass(slots=True)
class Readout:
    """What a kernel read, once it has run."""

    value: Array | None = None


@dataclass(frozen=True, slots=True)
class _Op:
    """An operation at the head of a stream: may it run, and what it does."""

    ready: Callable[[], bool]
    run: Callable[[], None]


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Memory:
    """An allocation, known to its device for as long as it lives."""

    bytes: Array
    live: dict[int, int] = field(repr=False)
    address: int = field(init=False)

    def __post_init__(self) -> None:
        self.address = self.bytes.ctypes.data
        self.live[self.address] = self.bytes.nbytes

    def __del__(self) -> None:
        del self.live[self.address]


class _Scratch:
    """The owner of a block from ``empty``: back to its stream's free list when dropped."""

    def __init__(self, device: FakeDevice, block: Block, stream: Stream) -> None:
        self._device, self._block, self._stream = device, block, stream

    def __del__(self) -> None:
        self._device.fill(self._block, POISON, self._stream)
        self._device.scratch.setdefault(self._stream.handle, []).append(self._block)


class FakeDevice:
    """A device whose streams the test moves by hand. Thread-safe but for the test's own steps.

    >>> device = FakeDevice()
    >>> side = device.new_stream()
    >>> event = device.record(side)
    >>> device.done(event), device.step(side), device.done(event)
    (False, True, True)
    """

    name = "fake"

    def __init__(self) -> None:
        self.pinned_live: dict[int, int] = {}
        """Address -> bytes of the pinned memory that exists."""
        self.memory_live: dict[int, int] = {}
        """Address -> bytes of the device memory that exists."""
        self.scratch: dict[int, list[Block]] = {}
        """Free memory of ``empty``, by the handle of the stream it was made on."""
        self.failures: dict[str, BaseException] = {}
        """What the next call of that name raises: ``copy``, ``memory``, ``record``, ``run``."""
        self.waits: list[str] = []
        """The names of the threads that waited for the device, once for each time."""
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._streams: dict[int, deque[_Op]] = {0: deque()}
        self._default = Stream(0)
        self._current = threading.local()
        self._may_wait = False

    # -- what the test does

    @property
    def streams(self) -> list[int]:
        """Handles of all streams."""
        return list(self._streams)

    def pending(self, stream: Stream) -> int:
        """Operations that have not run."""
        return len(self._streams[stream.handle])

    def step(self, stream: Stream) -> bool:
        """Run the next operation of a stream; False if there is none or it must wait."""
        with self._lock:
            queue = self._streams[stream.handle]
            if not queue or not queue[0].ready():
                return False
            queue.popleft().run()
            return True

    def run(self) -> None:
        """Run whatever can run, on all streams."""
        while any(self.step(Stream(handle)) for handle in self.streams):
            pass

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within it the host may wait (for ``close``)."""
        before, self._may_wait = self._may_wait, True
        try:
            yield
        finally:
            self._may_wait = before

    @contextmanager
    def moving(self, seed: int = 0) -> Iterator[None]:
        """Within it a thread moves one stream or another whenever one can move."""
        over = threading.Event()
        rng = np.random.default_rng(seed)

        def move() -> None:
            while not over.is_set():
                with self._lock:
                    order = rng.permutation(len(self._streams)) * 16
                    if not any(self.step(Stream(int(handle))) for handle in order):
                        self._work.wait()

        thread = threading.Thread(target=move, name="fake device")
        thread.start()
        try:
            with self.waiting():
                yield
        finally:
            over.set()
            with self._lock:
                self._work.notify_all()
            thread.join()

    def launch(self, kernel: Callable[..., object], *arrays: DeviceArray, stream: Stream) -> None:
        """Call ``kernel`` with the arrays' memory when the stream comes to it."""
        places = [_place(array) for array in arrays]

        def run() -> None:
            for low, high, _ in places:
                self._check(low, high - low, self.memory_live, "a kernel")
            kernel(*(show() for _, _, show in places))

        self._issue(stream, run)

    def read(self, array: DeviceArray, stream: Stream) -> Readout:
        """A kernel that reads the whole array."""
        readout = Readout()

        def kernel(values: Array) -> None:
            readout.value = values.copy()

        self.launch(kernel, array, stream=stream)
        return readout

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Memory as a caching allocator gives it: reused in the current stream's order."""
        nbytes = max(1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
        stream = self.current_stream()
        free = self.scratch.get(stream.handle, [])
        for block in free:
            if block.nbytes == nbytes:
                free.remove(block)
                break
        else:
            block = self.memory(nbytes)
        return self.array(block, shape, dtype, _Scratch(self, block, stream))

    # -- the Device protocol

    def pinned(self, nbytes: int) -> Block:
        return self._allocate(nbytes, self.pinned_live)

    def memory(self, nbytes: int) -> Block:
        self._fail("memory")
        return self._allocate(nbytes, self.memory_live)

    def new_stream(self) -> Stream:
        with self._lock:
            stream = Stream(len(self._streams) * 16)
            self._streams[stream.handle] = deque()
            return stream

    def current_stream(self) -> Stream:
        stream = getattr(self._current, "stream", self._default)
        assert isinstance(stream, Stream)
        return stream

    def adopt(self, stream: object) -> Stream:
        if not isinstance(stream, int) or stream not in self._streams:
            raise TypeError(f"stream={stream!r} is no stream of this device")
        return Stream(stream)

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def copy(self, source: int, target: Block, nbytes: int, stream: Stream) -> None:
        self._fail("copy")
        self._check(source, nbytes, self.pinned_live, "a copy's source, when issued,")
        address = target.address

        def run() -> None:
            self._check(source, nbytes, self.pinned_live, "a copy's source")
            self._check(address, nbytes, self.memory_live, "a copy's target")
            ctypes.memmove(address, source, nbytes)

        self._issue(stream, run)

    def fill(self, target: Block, value: int, stream: Stream) -> None:
        address, nbytes = target.address, target.nbytes

        def run() -> None:
            if address in self.memory_live:
                ctypes.memset(address, value, nbytes)

        self._issue(stream, run)

    def record(self, stream: Stream) -> Event:
        self._fail("record")
        event = FakeEvent()

        def run() -> None:
            event.error = self.failures.pop("run", None)
            event.done = True

        self._issue(stream, run)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        with self._lock:
            self._streams[stream.handle].append(_Op(lambda: event.done, lambda: None))
            self._work.notify_all()

    def done(self, event: Event) -> bool:
        assert isinstance(event, FakeEvent)
        if event.error is not None:
            raise event.error
        return event.done

    def synchronize(self, stream: Stream) -> None:
        assert self._may_wait, "the host waited for the device"
        self.waits.append(threading.current_thread().name)
        self.run()
        assert not self.pending(stream), "the host would wait for ever"

    def array(
        self, block: Block, shape: tuple[int, ...], dtype: npt.DTypeLike, owner: object
    ) -> DeviceArray:
        flat = np.asarray(Owned(block.address, block.nbytes, owner))
        return np.ndarray(shape, dtype, flat).view(FakeArray)

    def lend(self, array: DeviceArray, lease: Lease) -> DeviceArray:
        assert isinstance(array, np.ndarray)
        lent = shown(array, lease).view(FakeArray)
        lent.lease = lease
        return lent

    def owns(self, value: object) -> TypeGuard[DeviceArray]:
        return isinstance(value, FakeArray)

    # -- inside

    def _issue(self, stream: Stream, run: Callable[[], None]) -> None:
        with self._lock:
            self._streams[stream.handle].append(_Op(_always, run))
            self._work.notify_all()

    def _allocate(self, nbytes: int, live: dict[int, int]) -> Block:
        memory = _Memory(np.full(nbytes, POISON, np.uint8), live)
        return Block(memory.address, nbytes, memory)

    def _fail(self, name: str) -> None:
        error = self.failures.pop(name, None)
        if error is not None:
            try:
                raise error
            finally:
                del error  # or the traceback would keep alive what the test looks for

    def _check(self, address: int, nbytes: int, live: dict[int, int], what: str) -> None:
        now = live.copy().items()  # other threads allocate and drop meanwhile
        inside = any(at <= address and address + nbytes <= at + n for at, n in now)
        assert inside, f"{what} is not in live memory of that kind"


def _always() -> bool:
    return True


def _place(array: DeviceArray) -> tuple[int, int, Callable[[], Array]]:
    """Where an array's elements are, and a way to see them that keeps nothing alive."""
    assert isinstance(array, np.ndarray)
    low, high = np.lib.array_utils.byte_bounds(array)
    shape, dtype, strides = array.shape, array.dtype, array.strides
    offset = array.ctypes.data - low

    def show() -> Array:
        flat = np.asarray(Owned(low, max(1, high - low), None))
        return np.ndarray(shape, dtype, flat, offset, strides)

    return low, high, show

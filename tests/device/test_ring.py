"""The rules of the ring, on a device whose streams move only when the test says so.

``RingMachine`` takes steps of workers, copy thread, consumer and GPU in any order. Its rules:

- every kernel reads the batch it was given: no pinned buffer is refilled before its copy is done,
  and no device memory is written before the events of all streams that read it, exports included;
- a view keeps what it shows, and a batch that was abandoned or never taken costs nothing;
- an error of the device reaches the caller, and only that batch is lost;
- the host never waits (the device fails the test if it does), except in ``close``;
- ``close``, twice, leaves no pinned memory, and no device memory once the last view is dropped.

Below it each rule has an example of its own, and so have those about sizes, growth and closing.
"""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nogil_loader.device.host import HostDevice
from nogil_loader.device.protocol import Stream
from nogil_loader.device.ring import Arrival, Ring
from nogil_loader.testing.device import FakeArray, FakeDevice, Readout

SHAPES = [(1,), (3, 5), (300,), (40, 10), (0, 4)]


class Broken(Exception):
    """What the tests make the device raise."""


@dataclass
class Held:
    """What a consumer holds, what must be in it, and the stream it works on."""

    arrays: dict[str, FakeArray]
    value: int
    stream: Stream


class RingMachine(RuleBasedStateMachine):
    """Workers, copy thread, consumer and GPU take steps in any order; the consumer's kernels
    must see what the workers wrote, and the host must never wait."""

    @initialize(slots=st.integers(1, 3), transform=st.booleans(), given_stream=st.booleans())
    def start(self, slots: int, transform: bool, given_stream: bool) -> None:
        self.device = FakeDevice()
        self.streams = [self.device.current_stream(), self.device.new_stream()]
        self.given = self.streams[1] if given_stream else None
        self.ring = Ring(
            self.device,
            slots=slots,
            transform=self.double if transform else None,
            stream=self.given.handle if self.given else None,
            poison=True,
        )
        self.factor = 2 if transform else 1
        self.number = 0
        self.filled: list[tuple[dict[str, object], int]] = []
        self.ready: list[tuple[Arrival, int]] = []
        self.held: list[Held] = []
        self.read: list[tuple[Readout, int]] = []

    def pick(self, which: int) -> Held:
        return self.held[which % len(self.held)]

    def double(self, batch: object) -> object:
        """A transform with one output in new memory and one that is its input."""
        assert isinstance(batch, dict)
        data, side = batch["data"], self.device.current_stream()
        out = self.device.empty(data.shape, data.dtype)
        self.device.launch(lambda x, y: np.multiply(x, 2, out=y), data, out, stream=side)
        label = batch["label"]
        self.device.launch(lambda x: np.multiply(x, 2, out=x), label, stream=side)
        return {"data": out, "label": label, "name": batch["name"]}

    @rule(shape=st.sampled_from(SHAPES), staged=st.booleans(), rows=st.booleans())
    def fill(self, shape: tuple[int, ...], staged: bool, rows: bool) -> None:
        """The workers write a batch; sometimes a short one, sometimes in ordinary memory."""
        alloc = self.ring.allocator()
        self.number += 1
        data = alloc(shape, np.int32)
        label = np.empty(3, np.int64) if staged else alloc((3,), np.int64)
        data[...] = label[...] = self.number
        if rows:
            data = data[: max(1, shape[0] // 2)]
        batch: dict[str, object] = {"data": data, "label": label, "name": f"batch {self.number}"}
        self.filled.append((batch, self.number))

    @precondition(lambda self: self.filled)
    @rule()
    def abandon(self) -> None:
        """The run loses interest in a batch it was filling."""
        self.filled.pop()

    @precondition(lambda self: self.filled)
    @rule()
    def send(self) -> None:
        batch, number = self.filled.pop(0)
        self.ready.append((self.ring(batch), number))

    @precondition(lambda self: self.filled)
    @rule(what=st.sampled_from(["copy", "memory", "record"]))
    def fail(self, what: str) -> None:
        """An error where the device is called reaches the caller, and only that batch is lost."""
        batch, number = self.filled.pop(0)
        self.device.failures[what] = Broken(what)
        try:
            self.ready.append((self.ring(batch), number))
        except Broken as error:
            assert error.args == (what,)
        else:
            assert what == "memory", "the failure was swallowed"
        self.device.failures.clear()

    @precondition(lambda self: self.ready)
    @rule()
    def lose(self) -> None:
        """A batch copied ahead that is never delivered."""
        self.ready.pop()

    @precondition(lambda self: self.ready)
    @rule(which=st.integers(0, 1))
    def take(self, which: int) -> None:
        arrival, number = self.ready.pop(0)
        with self.device.using(self.streams[which]):
            batch = self.ring.hand_over(arrival)
        assert isinstance(batch, dict)
        assert batch.pop("name") == f"batch {number}"
        stream = self.given or self.streams[which]
        self.held.append(Held(batch, number * self.factor, stream))

    @rule(shape=st.sampled_from(SHAPES), which=st.integers(0, 1), elsewhere=st.booleans())
    def whole_step(self, shape: tuple[int, ...], which: int, elsewhere: bool) -> None:
        """A batch from the workers' hands to the end of a user's step, all only issued."""
        self.fill(shape, False, False)
        self.filled[0], self.filled[-1] = self.filled[-1], self.filled[0]
        self.send()
        self.ready[0], self.ready[-1] = self.ready[-1], self.ready[0]
        self.take(which)
        (self.read_elsewhere if elsewhere else self.read_on_own_stream)(-1)
        self.drop(-1)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def read_on_own_stream(self, which: int) -> None:
        held = self.pick(which)
        for array in held.arrays.values():
            self.read.append((self.device.read(array, held.stream), held.value))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def read_elsewhere(self, which: int) -> None:
        """Another framework is given the array and reads it on a stream of its own."""
        held = self.pick(which)
        other = self.streams[held.stream == self.streams[0]]
        for array in held.arrays.values():
            view = array.export(other.handle)
            self.read.append((self.device.read(view, other), held.value))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def keep_only_a_view(self, which: int) -> None:
        held = self.pick(which)
        held.arrays = {key: array[::2] for key, array in held.arrays.items()}

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        del self.held[which % len(self.held)]

    @rule(which=st.integers(0, 2), steps=st.sampled_from([1, 2, 5, 100]))
    def gpu_goes_on(self, which: int, steps: int) -> None:
        for _ in range(steps):
            self.device.step(Stream(which * 16))

    @invariant()
    def every_kernel_saw_its_batch(self) -> None:
        for readout, value in getattr(self, "read", ()):
            if readout.value is not None:
                np.testing.assert_array_equal(readout.value, value)

    def teardown(self) -> None:
        if not hasattr(self, "ring"):
            return
        self.device.run()
        self.every_kernel_saw_its_batch()
        assert all(readout.value is not None for readout, _ in self.read)
        self.filled.clear()
        self.ready.clear()
        with self.device.waiting():
            self.ring.close()
            self.ring.close()
            assert not self.device.pinned_live, "close left pinned memory"
            array = held = None
            for held in self.held:
                for array in held.arrays.values():
                    readout = self.device.read(array, held.stream)
                    self.device.run()
                    np.testing.assert_array_equal(readout.value, held.value)
            array = held = None
            self.held.clear()
            self.device.scratch.clear()
            self.device.run()
            self.device.scratch.clear()
            assert not self.device.memory_live, "device memory outlived its batches"


TestRing = RingMachine.TestCase
TestRing.settings = settings(
    max_examples=500 if os.environ.get("NOGIL_LOADER_SOAK") else 60,
    stateful_step_count=40,
    deadline=None,
)


def filled(ring: Ring, value: int, shape: tuple[int, ...] = (4,)) -> dict[str, object]:
    """A host batch with one array in the ring's own memory."""
    array = ring.allocator()(shape, np.int32)
    array[...] = value
    return {"x": array}


def taken(ring: Ring, value: int) -> FakeArray:
    """The array of a batch that went all the way to the calling thread."""
    batch = ring.hand_over(ring(filled(ring, value)))
    assert isinstance(batch, dict)
    array = batch["x"]
    assert isinstance(array, FakeArray)
    return array


def test_a_pinned_buffer_is_not_refilled_before_its_copy_is_done() -> None:
    device = FakeDevice()
    ring = Ring(device)
    arrival = ring(filled(ring, 1))
    second = filled(ring, 2)
    device.run()
    third = filled(ring, 3)
    assert len(device.pinned_live) == 2, "the first buffer was free only for the third batch"
    assert second["x"].ctypes.data != third["x"].ctypes.data
    del arrival


def test_a_buffer_that_somebody_still_sees_is_not_refilled_after_its_copy() -> None:
    device = FakeDevice()
    ring = Ring(device)
    host = filled(ring, 1)
    row = host["x"][1:]
    ring(host)
    del host
    device.run()
    filled(ring, 2)
    assert row.tolist() == [1, 1, 1]


def test_memory_is_not_reused_before_the_stream_of_an_export_is_past_it() -> None:
    device = FakeDevice()
    ring = Ring(device, slots=1)
    other = device.new_stream()
    array = taken(ring, 1)
    seen = device.read(array.export(other.handle), other)
    del array
    later = [taken(ring, 2), taken(ring, 3)]
    while any(device.step(Stream(handle)) for handle in device.streams if handle != other.handle):
        pass
    device.run()
    assert seen.value is not None and seen.value.tolist() == [1] * 4
    del later


def test_a_stream_waits_rather_than_memory_growing_when_the_host_runs_ahead() -> None:
    device = FakeDevice()
    ring = Ring(device, slots=2)
    stream = device.current_stream()
    seen = [device.read(taken(ring, k), stream) for k in range(50)]
    assert len(device.memory_live) == 2
    assert ring.report().grown == 0
    assert ring.report().deferred == 48
    device.run()
    assert [int(readout.value[0]) for readout in seen] == list(range(50))


def test_holding_more_batches_than_slots_grows_the_ring_and_is_reported() -> None:
    device = FakeDevice()
    ring = Ring(device, slots=2)
    held = [taken(ring, k) for k in range(5)]
    device.run()
    assert [int(array[0]) for array in held] == [0, 1, 2, 3, 4]
    report = ring.report()
    assert (report.held_most, report.grown) == (5, 3)
    assert "the ring grew 3 times, as more batches were held than slots" in str(report)


def test_a_batch_that_was_never_taken_costs_nothing() -> None:
    device = FakeDevice()
    ring = Ring(device, slots=1)
    for k in range(10):
        ring(filled(ring, k))
    assert len(device.memory_live) == 1


def test_memory_with_no_event_on_its_stream_is_never_reused() -> None:
    device = FakeDevice()
    ring = Ring(device, slots=1, poison=True)
    stream = device.current_stream()
    seen = device.read(taken(ring, 1), stream)
    device.failures["record"] = Broken("no event")
    with pytest.raises(Broken):
        ring(filled(ring, 2))
    array = taken(ring, 3)
    while device.step(Stream(16)):  # the side stream is ahead of the consumer
        pass
    device.run()
    assert seen.value is not None and seen.value.tolist() == [1] * 4
    del array


def test_an_error_on_the_device_reaches_the_next_caller() -> None:
    device = FakeDevice()
    ring = Ring(device)
    arrival = ring(filled(ring, 1))
    device.failures["run"] = Broken("the copy went wrong")
    device.run()
    with pytest.raises(Broken, match="went wrong"):
        filled(ring, 2)
    del arrival


def test_a_transform_that_raises_loses_no_memory() -> None:
    def wrong(batch: object) -> object:
        raise Broken("transform")

    device = FakeDevice()
    ring = Ring(device, slots=1, transform=wrong)
    for k in range(5):
        with pytest.raises(Broken):
            ring(filled(ring, k))
        device.run()
    assert len(device.memory_live) == len(device.pinned_live) == 1


def test_dropping_a_batch_after_close_waits_for_its_readers() -> None:
    device = FakeDevice()
    ring = Ring(device)
    array = taken(ring, 1)
    with device.waiting():
        ring.close()
        assert not device.pinned_live
        seen = device.read(array, device.current_stream())
        del array
        assert seen.value is not None and seen.value.tolist() == [1] * 4
    assert not device.memory_live


def test_close_waits_for_copies_and_readers_under_way() -> None:
    device = FakeDevice()
    ring = Ring(device)
    arrival = ring(filled(ring, 1))
    seen = device.read(taken(ring, 2), device.current_stream())
    with device.waiting():
        ring.close()
    assert seen.value is not None and seen.value.tolist() == [2] * 4
    del arrival
    assert not device.memory_live and not device.pinned_live


def test_a_closed_ring_refuses_work() -> None:
    device = FakeDevice()
    ring = Ring(device)
    batch = filled(ring, 1)
    with device.waiting():
        ring.close()
    with pytest.raises(RuntimeError, match="closed"):
        ring(batch)
    with pytest.raises(RuntimeError, match="closed"):
        ring.allocator()((1,), np.uint8)


def test_arrays_from_elsewhere_are_staged_and_counted() -> None:
    device = FakeDevice()
    ring = Ring(device)
    ring({"own": filled(ring, 1), "other": np.arange(6).reshape(2, 3).T, "name": "n"})
    report = ring.report()
    assert (report.copied, report.staged) == (16 + 48, 48)
    assert "copied twice" in str(report)


def test_strings_objects_and_scalars_stay_on_the_host() -> None:
    ring = Ring(FakeDevice())
    batch = {"s": np.array(["a", "b"]), "o": np.array([None, {}]), "n": None, "i": np.int32(3)}
    taken = ring.hand_over(ring(batch))
    assert isinstance(taken, dict)
    assert all(taken[key] is batch[key] for key in batch)


def test_batches_of_many_shapes_share_memory() -> None:
    device = FakeDevice()
    ring = Ring(device, slots=1)
    for length in np.random.default_rng(0).integers(1_000, 8_000, 200).tolist():
        ring.hand_over(ring(filled(ring, 1, (length,))))
        device.run()
    assert len(device.memory_live) < 10, "200 shapes over three octaves, one batch at a time"


def test_real_threads_and_a_host_device_deliver_every_batch_whole() -> None:
    """Workers, copy thread and consumer at full speed; the consumer holds a few batches."""
    ring = Ring(HostDevice(), slots=2, poison=True)
    sent: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
    written: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()

    def work() -> None:
        for value in range(300):
            written.put(filled(ring, value, (500,)))
        written.put(None)

    def send() -> None:
        while (batch := written.get()) is not None:
            sent.put(ring(batch))
            del batch
        sent.put(None)

    threads = [threading.Thread(target=work), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    value, held = 0, []
    while (arrival := sent.get()) is not None:
        batch = ring.hand_over(arrival)
        assert isinstance(batch, dict)
        held.append((value, batch))
        held = held[-3:]
        assert all((kept["x"] == number).all() for number, kept in held)
        value += 1
    for thread in threads:
        thread.join()
    assert value == 300
    ring.close()

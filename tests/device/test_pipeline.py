"""Whole pipelines that end on a device: workers, copy thread, consumer and GPU at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader.device import transfer
from nogil_loader.device.ring import Ring, RingReport
from nogil_loader.testing.device import FakeDevice


class Crew:
    """The threads of the runs of a test, to wait for: on free-threaded builds some objects
    die with the thread that made them, wherever their last reference was dropped, and that is
    a moment after ``threading`` has forgotten it."""

    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()

    def note(self) -> None:
        """To be called while a run is on."""
        here = threading.enumerate()
        self.threads.update(t for t in here if t.name.startswith("nogil-loader"))

    def wait(self) -> None:
        for thread in self.threads:
            thread.join()
        gc.collect()


@pytest.fixture
def crew() -> Crew:
    return Crew()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, crew: Crew) -> Iterator[FakeDevice]:
    """A fake device in the place of the first GPU, whose streams move in any order."""
    fake = FakeDevice()
    monkeypatch.setattr(transfer, "choose", lambda name: (0, "a fake"))
    monkeypatch.setattr(transfer, "open_device", lambda index: fake)
    with fake.moving(seed=17):
        yield fake
        crew.wait()


def gone(device: FakeDevice, crew: Crew) -> None:
    """No memory of the device outlives the run."""
    crew.wait()
    assert not device.pinned_live
    assert not device.memory_live


def sample(i: int) -> dict[str, object]:
    return {"x": np.full((8, 8), i, np.float32), "label": i, "name": f"sample {i}"}


@pytest.mark.parametrize("workers", [1, 3])
def test_every_batch_is_read_whole_however_the_device_is_late(
    device: FakeDevice, crew: Crew, workers: int
) -> None:
    pipeline = nl.from_sequence(range(203)).map(sample).workers(workers).batch(8)
    stream = device.current_stream()
    seen, held = [], []
    with pipeline.to_device("cuda:0").run() as run:
        crew.note()
        for batch in run:
            assert batch["name"][0] == f"sample {8 * len(seen)}"
            seen.append((device.read(batch["x"], stream), device.read(batch["label"], stream)))
            held.append(batch)
            del held[: -(len(seen) % 4) or None], batch
        here = threading.current_thread().name
        assert device.waits.count(here) <= 1, "the last batch of a closed ring may wait, no other"
    held.clear()
    del run
    with device.waiting():
        device.synchronize(stream)
    for number, (x, label) in enumerate(seen):
        wanted = np.arange(8 * number, min(203, 8 * number + 8))
        np.testing.assert_array_equal(label.value, wanted)
        np.testing.assert_array_equal(
            x.value, np.broadcast_to(wanted[:, None, None], x.value.shape)
        )
    gone(device, crew)


def test_leaving_early_gives_all_memory_back(device: FakeDevice, crew: Crew) -> None:
    pipeline = nl.from_sequence(range(400)).map(sample).batch(4).to_device("cuda:0")
    with pipeline.run() as run:
        crew.note()
        for number, _ in enumerate(run):
            if number == 5:
                break
    del _, run
    gone(device, crew)


def test_an_error_in_the_transform_reaches_the_consumer_after_earlier_batches(
    device: FakeDevice, crew: Crew
) -> None:
    def transform(batch: dict[str, object]) -> dict[str, object]:
        if "sample 12" in batch["name"]:
            raise ValueError("no such thing on this device")
        return batch

    pipeline = nl.from_sequence(range(40)).map(sample).batch(4)
    taken = 0
    with (
        pytest.raises(ValueError, match="no such thing"),
        pipeline.to_device("cuda:0", transform=transform).run() as run,
    ):
        crew.note()
        for _ in run:
            taken += 1
    assert taken == 3


def test_a_batch_is_assembled_where_the_device_copies_from(device: FakeDevice, crew: Crew) -> None:
    with nl.from_sequence(range(20)).map(sample).batch(4).to_device("cuda:0").run() as run:
        for _ in run:
            crew.note()
        made = run.report()
    del _
    report = made.counts.device
    assert isinstance(report, RingReport)
    assert report.batches == 5
    assert report.copied == 20 * (8 * 8 * 4 + 8)
    assert report.staged == 0
    assert f"device: fake: 5 batches, 0.0 MB copied, {report.memory / 1e6:.1f} MB" in str(made)
    assert made.as_dict()["counts"]["device"]["batches"] == 5  # type: ignore[index, call-overload]


def test_epochs_share_one_ring_that_is_closed_behind_the_last(
    device: FakeDevice, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings: list[Ring] = []

    def noted(*args: object, **options: object) -> Ring:
        rings.append(Ring(*args, **options))  # type: ignore[arg-type]
        return rings[-1]

    monkeypatch.setattr(transfer, "Ring", noted)
    pipeline = nl.from_sequence(range(24)).map(sample).batch(4).to_device("cuda:0")
    stream, read = device.current_stream(), []
    for run in pipeline.epochs(5):
        for batch in run:
            crew.note()
            read.append(device.read(batch["label"], stream))
            del batch
        assert len(rings) == 1
    with device.waiting():
        device.synchronize(stream)
    seen = [readout.value.tolist() for readout in read]
    assert seen == 5 * [list(range(first, first + 4)) for first in range(0, 24, 4)]
    assert rings[0].report().batches == 30
    with pytest.raises(RuntimeError, match="the device ring is closed"):
        rings[0]({})
    gone(device, crew)


def test_on_the_host_batches_are_those_of_the_plain_pipeline() -> None:
    plain = nl.from_sequence(range(50)).map(sample).batch(8)
    for mine, theirs in zip(plain.to_device("host"), plain, strict=True):
        np.testing.assert_array_equal(mine["x"], theirs["x"])
        assert mine["name"] == theirs["name"]

"""The CUDA device. What needs no GPU is tested wherever CuPy is; the rest where one is."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

from nogil_loader.device import export, normalize, open_transfer  # noqa: E402
from nogil_loader.device.cupy import CupyDevice, LentArray, count_gpus  # noqa: E402
from nogil_loader.device.ring import Ring  # noqa: E402


def gpus() -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


needs_gpu = pytest.mark.skipif(not gpus(), reason="no GPU that CuPy can use")
needs_none = pytest.mark.skipif(gpus() > 0, reason="there is a GPU")


class Lease:
    """What an array says of where it will be read."""

    def __init__(self) -> None:
        self.exports: list[int] = []

    def export(self, handle: int) -> None:
        self.exports.append(handle)


def nowhere(nbytes: int) -> object:
    """A CuPy array at an address that is never read."""
    memory = cupy.cuda.UnownedMemory(0x7F0000000000, nbytes, None, 0)
    return cupy.ndarray((nbytes // 4,), np.float32, memptr=cupy.cuda.MemoryPointer(memory, 0))


def test_views_of_a_lent_array_keep_the_lease_and_know_it() -> None:
    lease = Lease()
    lent = CupyDevice(0).lend(nowhere(4096), lease)
    assert type(lent) is LentArray
    view = lent[2:].reshape(-1, 2).T
    assert view.lease is lease
    gone = weakref.ref(lease)
    plain = view.view(cupy.ndarray)  # knows no lease, but shows memory that does
    del lent, view, lease
    gc.collect()
    assert gone() is not None
    del plain
    gc.collect()
    assert gone() is None


def test_an_export_by_dlpack_names_its_stream_to_the_lease() -> None:
    lease = Lease()
    lent = CupyDevice(0).lend(nowhere(4096), lease)
    for stream in (-1, 64, None):
        try:
            lent.__dlpack__(stream=stream)
        except (cupy.cuda.runtime.CUDARuntimeError, BufferError, ValueError):
            continue  # the driver has a say after the lease
    assert lease.exports == [64, 0]


def test_streams_are_adopted_by_handle_and_by_protocol() -> None:
    class Theirs:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 12345

    device = CupyDevice(0)
    assert device.adopt(12345) == device.adopt(Theirs())
    assert device.adopt(1) == device.adopt(0), "two names of the legacy default stream"


@pytest.mark.parametrize("stream", [2, cupy.cuda.Stream.ptds])
def test_the_per_thread_default_stream_is_refused_with_the_cure(stream: object) -> None:
    with pytest.raises(ValueError, match="another stream in every thread"):
        CupyDevice(0).adopt(stream)


@pytest.mark.parametrize("stream", ["main", 1.5, True, object()])
def test_what_is_no_stream_is_refused(stream: object) -> None:
    with pytest.raises(TypeError, match="integer handle"):
        CupyDevice(0).adopt(stream)


@needs_none
def test_no_gpu_is_an_error_that_says_what_the_driver_says() -> None:
    with pytest.raises(RuntimeError, match=r"CuPy \d+\.\d+.* finds no (usable )?GPU"):
        count_gpus("cuda:0")
    with pytest.raises(RuntimeError):
        open_transfer("cuda:0")


@needs_gpu
@pytest.mark.parametrize("side", [False, True])
def test_every_batch_arrives_whole_with_poisoned_memory(side: bool) -> None:
    ring = Ring(CupyDevice(0), slots=2, poison=True)
    stream = cupy.cuda.Stream(non_blocking=True) if side else cupy.cuda.Stream.null
    alloc = ring.allocator()
    sums = []
    with stream:
        for number in range(500):
            rows = alloc((1 + number % 5, 1000), np.int32)
            rows[...] = number
            batch = ring.hand_over(ring({"x": rows, "label": np.arange(number, number + 3)}))
            sums.append((number, len(rows), batch["x"].sum(), batch["label"].sum()))
            del batch, rows
    stream.synchronize()
    for number, rows, x, label in sums:
        assert int(x) == 1000 * rows * number
        assert int(label) == 3 * number + 3
    assert ring.report().memory < 10 * 5 * 4000
    ring.close()


@needs_gpu
def test_held_batches_are_never_overwritten() -> None:
    ring = Ring(CupyDevice(0), slots=2, poison=True)
    held = []
    for number in range(20):
        rows = ring.allocator()((100,), np.int64)
        rows[...] = number
        held.append(ring.hand_over(ring(rows)))
    ring.close()
    assert [int(array.min()) for array in held] == list(range(20))
    assert ring.report().grown == 18


@needs_gpu
def test_the_transform_runs_on_the_side_stream() -> None:
    seen = []

    def transform(batch: dict[str, object]) -> dict[str, object]:
        seen.append(cupy.cuda.get_current_stream().ptr)
        return normalize((0.5,) * 3, (0.25,) * 3, key="image")(batch)

    transfer = open_transfer("cuda:0", transform=transform, poison=True)
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    wanted = normalize((0.5,) * 3, (0.25,) * 3)(images)
    for _ in range(50):
        batch = transfer.hand_over(transfer({"image": images}))
        np.testing.assert_allclose(cupy.asnumpy(batch["image"]), wanted, atol=2e-6)
    assert cupy.cuda.get_current_stream().ptr not in seen
    transfer.close()


@needs_gpu
def test_an_export_on_another_stream_keeps_the_memory_until_that_stream_is_past_it() -> None:
    ring = Ring(CupyDevice(0), slots=1, poison=True)
    other = cupy.cuda.Stream(non_blocking=True)
    busy = cupy.ones((4096, 4096), np.float32)
    results = []
    for number in range(50):
        rows = ring.allocator()((100_000,), np.int32)
        rows[...] = number
        batch = ring.hand_over(ring(rows))
        with other:
            cupy.matmul(busy, busy)  # makes the read below late
            results.append(cupy.from_dlpack(batch).max())
        del batch, rows
    other.synchronize()
    assert [int(result) for result in results] == list(range(50))
    ring.close()


@needs_gpu
def test_torch_reads_the_same_memory() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    transfer = open_transfer("cuda:0", poison=True)
    for number in range(50):
        rows = transfer.allocator()((1000,), np.float32)
        rows[...] = number
        view = export({"x": transfer.hand_over(transfer(rows))}, torch.from_dlpack)
        assert float(view["x"].sum()) == 1000 * number
    transfer.close()

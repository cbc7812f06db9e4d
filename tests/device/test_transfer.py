"""Which device is chosen, what is said about it, and the transfer that stays on the host."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import numpy as np
import pytest

from nogil_loader.device import export, open_transfer
from nogil_loader.device.transfer import choose


class Gpus(ModuleType):
    """``nogil_loader.device.cupy`` on a machine with some GPUs, or with none."""

    def __init__(self, count: int) -> None:
        super().__init__("nogil_loader.device.cupy")
        self.count = count

    def count_gpus(self, device: str) -> int:
        if not self.count:
            raise RuntimeError(f"to_device({device!r}): CuPy 14.2.0 finds no usable GPU")
        return self.count


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setitem(sys.modules, "nogil_loader.device.cupy", Gpus(request.param))


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "nogil_loader.device.cupy", raising=False)


@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_auto_takes_the_first_gpu_and_says_so(gpus: None) -> None:
    assert choose("auto") == (0, "cuda:0, the first of 2")
    assert choose("cuda") == (0, "asked for")
    assert choose("cuda:1") == (1, "asked for")


@pytest.mark.parametrize("gpus", [2, 1], indirect=True)
def test_a_gpu_that_is_not_there_is_an_error_naming_those_that_are(gpus: None) -> None:
    with pytest.raises(ValueError, match=r"'cuda:7'\): this machine has cuda:0"):
        choose("cuda:7")


@pytest.mark.parametrize("gpus", [0], indirect=True)
def test_cupy_without_a_gpu_is_an_error_that_says_so(gpus: None) -> None:
    with pytest.raises(RuntimeError, match="finds no usable GPU"):
        choose("cuda:0")
    assert choose("auto")[0] is None


def test_a_gpu_without_cupy_is_an_error_that_names_the_extra(no_cupy: None) -> None:
    with pytest.raises(ImportError, match=r'pip install "nogil_loader\[gpu\]"'):
        open_transfer("cuda:0")


def test_auto_without_cupy_is_the_host_and_logged(
    no_cupy: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "nogil_loader"):
        transfer = open_transfer("auto")
    transfer.close()
    assert caplog.messages == ["to_device('auto') chose host: CuPy is not installed"]


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "CUDA:0", ""])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r'"auto", "host", "cuda" or "cuda:N"'):
        choose(name)


def test_a_stream_on_the_host_is_refused() -> None:
    with pytest.raises(ValueError, match="no stream"):
        open_transfer("host", stream=7)


def test_on_the_host_the_consumer_gets_the_very_arrays_the_workers_wrote() -> None:
    transfer = open_transfer("host", transform=lambda batch: {**batch, "more": 1})
    rows = transfer.allocator()((2, 3), np.uint8)
    batch = transfer.hand_over(transfer({"x": rows, "s": ["a", "b"]}))
    assert batch["x"] is rows
    assert batch["more"] == 1
    assert str(transfer.report()) == "host: 1 batches, 0.0 MB"
    transfer.close()
    rows[...] = 9
    assert rows.sum() == 54, "what is still held stays valid"


def test_on_the_host_memory_comes_back_only_when_no_view_is_left() -> None:
    transfer = open_transfer("host")
    alloc = transfer.allocator()
    first = alloc((100,), np.int64)
    first[...] = 1
    row = export({"x": first}, np.from_dlpack)["x"][3:5]
    del first
    alloc((100,), np.int64)[...] = 2
    assert row.tolist() == [1, 1]
    assert transfer.report().memory == 2 * 1024
    del row
    alloc((100,), np.int64)
    assert transfer.report().memory == 2 * 1024
    transfer.close()

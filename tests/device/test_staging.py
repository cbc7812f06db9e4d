"""Sizes of buffers, and buffers that come back."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.device.host import HostDevice
from nogil_loader.device.protocol import Block
from nogil_loader.device.staging import SMALLEST, Pool, Staging, hold_of, size_class


@given(st.integers(0, 2**40))
def test_a_class_fits_wastes_little_and_is_its_own_class(nbytes: int) -> None:
    size = size_class(nbytes)
    assert size >= nbytes
    assert size <= max(SMALLEST, nbytes + max(SMALLEST, nbytes // 8))
    assert size % SMALLEST == 0
    assert size_class(size) == size


@given(st.lists(st.integers(1, 10**6), max_size=30), st.integers(1, 10**6))
def test_the_smallest_block_that_fits_is_taken_or_none_that_is_too_large(
    sizes: list[int], wanted: int
) -> None:
    pool = Pool()
    for size in sizes:
        pool.put(Block(0, size_class(size), None))
    fitting = [
        size_class(size)
        for size in sizes
        if size_class(wanted) <= size_class(size) <= 2 * size_class(wanted)
    ]
    block = pool.take(wanted)
    assert (block.nbytes if block else None) == min(fitting, default=None)


def test_what_was_put_is_taken_once() -> None:
    pool = Pool()
    blocks = [Block(0, 512, None), Block(1, 512, None)]
    for block in blocks:
        pool.put(block)
    assert {pool.take(1), pool.take(1)} == set(blocks)
    assert pool.take(1) is None


def test_an_array_knows_its_buffer_through_any_view() -> None:
    array = Staging(HostDevice()).allocate((8, 4), np.int16)
    assert hold_of(array) is not None
    assert hold_of(array[2:].view(np.uint8)) is hold_of(array)
    assert hold_of(np.zeros(3)) is None


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,)])
def test_any_shape_can_be_allocated(shape: tuple[int, ...]) -> None:
    array = Staging(HostDevice()).allocate(shape, np.float64)
    assert array.shape == shape
    array[...] = 1.5
    assert (array == 1.5).all()


def test_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="Python objects"):
        Staging(HostDevice()).allocate((3,), object)


def test_buffers_that_many_threads_take_and_drop_are_never_shared() -> None:
    staging = Staging(HostDevice())
    wrong = []

    def work(number: int) -> None:
        held: list[np.ndarray] = []
        for turn in range(300):
            array = staging.allocate((64 + turn % 7,), np.int64)
            array[...] = number
            held.append(array)
            del held[:-3]
            if not all((kept == number).all() for kept in held):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert staging.nbytes <= 4 * 4 * 1024 * 4
    staging.close()

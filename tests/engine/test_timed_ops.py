"""Ops with a time limit: in blocks of several samples, every one of them comes out."""

from __future__ import annotations

import pytest

import nogil_loader as nl


@pytest.mark.parametrize("block", [1, 2, 7, 64])
def test_a_time_limit_loses_no_sample_of_a_block(block: int) -> None:
    data = nl.from_sequence(range(200)).map(abs, timeout=60.0).workers(2, block=block)
    assert list(data) == list(range(200))


def test_a_time_limit_beside_failures_loses_none_but_those() -> None:
    def fragile(n: int) -> int:
        if n % 10 == 3:
            raise ValueError(n)
        return n

    data = nl.from_sequence(range(100)).map(fragile, timeout=60.0, on_error="skip")
    assert list(data.workers(2, block=16)) == [n for n in range(100) if n % 10 != 3]

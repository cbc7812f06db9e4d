"""Groups end with the epochs inside a stream, but what a failure cuts short is no group."""

from __future__ import annotations

import itertools

import pytest

import nogil_loader as nl


@pytest.mark.parametrize("at", range(9))
def test_a_failure_at_any_place_of_an_epoch_comes_after_the_whole_batches_only(at: int) -> None:
    calls = itertools.count()

    def op(value: int) -> int:
        if next(calls) == at:
            raise LookupError(value)
        return value

    chain = nl.from_sequence(range(3)).map(op).batch(2).repeat(3).workers(1, block=2)
    got = []
    with chain.run() as run, pytest.raises(LookupError):
        for batch in run:
            got.append(batch.tolist())
    whole = [[0, 1], [2]] * 3
    assert got == whole[: [0, 0, 1, 2, 2, 3, 4, 4, 5][at]]

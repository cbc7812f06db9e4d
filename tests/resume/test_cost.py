"""What a place in an epoch costs: the figures that the design promises, on real runs.

Times are the best of several, so that a busy machine is not taken for slow code.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from time import perf_counter

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader.pipeline import Pipeline
from nogil_loader.position.keys import Keyed
from nogil_loader.position.permutation import Permutation


def best(times: int, call: Callable[[], object]) -> float:
    """The shortest of some calls, in seconds."""
    found = []
    for _ in range(times):
        begun = perf_counter()
        call()
        found.append(perf_counter() - begun)
    return min(found)


def first_batch(chain: Pipeline[object], **options: object) -> object:
    with chain.run(**options) as run:  # type: ignore[arg-type]
        return next(run)


def huge(rank: int = 4095, world: int = 4096) -> Pipeline[object]:
    """A billion positions: 50 sources mixed by their sizes, shuffled, one of 4,096 ranks."""
    sizes = [10**6 + 777_777 * number for number in range(50)]
    sizes[-1] += 10**9 - sum(sizes)
    mixed = nl.mix([nl.from_sequence(range(size)) for size in sizes], sizes)
    return mixed.shuffle(seed=17).shard(rank, world).batch(256)


def test_a_billion_positions_start_within_100_ms_and_100_mb() -> None:
    assert best(5, lambda: first_batch(huge())) < 0.1
    tracemalloc.start()
    first_batch(huge())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


@pytest.mark.parametrize("world", [64, 4096, 1_000_000])
def test_a_rank_starts_as_soon_whatever_the_world_size(world: int) -> None:
    small = best(7, lambda: first_batch(huge(1, 2)))
    large = best(7, lambda: first_batch(huge(world - 1, world)))
    assert large < 2 * small + 0.01


def test_a_state_costs_less_than_50_us() -> None:
    with huge().run() as run:
        for _ in range(3):
            next(run)
        assert best(300, run.state) < 50e-6


def test_a_generator_costs_less_than_3_us() -> None:
    rng = Keyed(seed=1, epoch=2, stage="augment")

    def thousand() -> None:
        for position in range(1000):
            rng(position)

    assert best(20, thousand) / 1000 < 3e-6


def test_a_shuffled_position_costs_less_than_100_ns() -> None:
    order = Permutation(10**9, 17)
    block = np.arange(4096)
    assert best(50, lambda: order(block)) / block.size < 100e-9


def test_after_100_000_batches_a_resume_calls_no_op_again_and_starts_as_a_fresh_run() -> None:
    called: list[int] = []
    chain = nl.from_sequence(range(10**9)).map(called.append).batch(2).prefetch(1)
    with chain.run() as run:
        for _ in range(100_000):
            next(run)
        state = run.state()
    called.clear()
    first_batch(chain, resume=state)
    assert min(called) == 200_000
    fresh = best(7, lambda: first_batch(chain))
    assert best(7, lambda: first_batch(chain, resume=state)) < 2 * fresh + 0.01

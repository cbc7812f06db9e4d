"""Resume and ranks, as the contract states them; ``tests/resume`` and ``tests/cluster`` have
the thousands of drawn cases."""

from __future__ import annotations

import json

import numpy as np

import nogil_loader as nl
from nogil_loader.testing.child import in_child


def noise(value: int, rng: np.random.Generator) -> float:
    return value + float(rng.random())


@in_child()
def test_a_resumed_run_goes_on_bit_by_bit_with_other_threads_and_resumed_again() -> None:
    chain = nl.from_sequence(range(90)).shuffle(seed=3).map(noise, rng=True)
    chain = chain.filter(lambda value: int(value) % 5 != 1).batch(7)
    whole = [batch.tolist() for batch in chain.workers(3)]
    state, got = None, []
    for cut, workers in enumerate((1, 4, 2, 3), 1):
        with chain.workers(workers, block=cut).run(resume=state) as run:
            for _ in range(2 if cut < 4 else len(whole) - 6):
                got.append(next(run).tolist())
            state = json.loads(json.dumps(run.state()))
    assert got == whole


@in_child()
def test_another_world_size_gets_each_remaining_sample_once() -> None:
    def chain(rank: int, world: int) -> nl.Pipeline[np.ndarray]:
        return nl.from_sequence(range(96)).shuffle(seed=1).shard(rank, world).batch(4)

    seen: list[int] = []
    states = []
    for rank in range(2):
        with chain(rank, 2).run() as run:
            for _ in range(3 + rank):
                seen += next(run).tolist()
            states.append(run.state())
    merged = nl.merge_states(states)
    for rank in range(3):
        with chain(rank, 3).run(resume=merged) as run:
            seen += [value for batch in run for value in batch.tolist()]
    assert len(seen) == len(set(seen))
    assert 96 - len(seen) <= 2 + 3 * 3, "no more than the remainder and the last short batches"


@in_child()
def test_every_rank_has_the_same_number_of_batches_or_the_pipeline_is_refused() -> None:
    for remainder in ("drop", "wrap"):
        counts = set()
        for rank in range(3):
            chain = nl.from_sequence(range(100)).shard(rank, 3, remainder=remainder).batch(4)
            counts.add(len(list(chain)))
        assert len(counts) == 1, (remainder, counts)
    try:
        nl.from_sequence(range(100)).shard(0, 3).filter(bool)
    except ValueError as error:
        for cure in ("batches=", "uneven='agree'", "uneven='allow'"):
            assert cure in str(error).replace('"', "'"), error
    else:
        raise AssertionError("uneven ranks were let by")

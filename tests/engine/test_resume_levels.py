"""Resume where groups are grouped again: a cut between the children of the very first unit."""

from __future__ import annotations

import nogil_loader as nl


def thrice(batch: object) -> list[tuple[str, int]]:
    return [(str(batch), number) for number in range(3)]


def test_a_cut_among_the_children_of_a_batch_of_batches_loses_none() -> None:
    data = nl.from_sequence(range(4)).batch(1).batch(1).flat_map(thrice)
    whole = list(data)
    for cut in range(len(whole)):
        with data.run() as run:
            begun = [next(run) for _ in range(cut)]
            state = run.state()
        with data.run(resume=state) as run:
            assert begun + list(run) == whole

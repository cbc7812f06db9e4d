"""The loader on real ranks: shards, checkpoints that change the world, and no chatter."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

Say = Callable[..., list[object]]

SOAK = bool(os.environ.get("NOGIL_LOADER_SOAK"))
SAMPLES = 1_003

PIPELINE = """
import json, random, sys
from pathlib import Path
import nogil_loader as nl

def ident(i):
    return i

def train():
    return (
        nl.from_sequence(range({samples})).map(ident).shuffle(seed=17).shard(remainder={remainder!r})
        .map(ident).batch({batch}).workers(2)
    )
"""

TO_A_CUT = """
import os
resume = json.loads(Path({saved!r}).read_text()) if {saved!r} else None
cut = random.Random({seed} + int(os.environ["PMI_RANK"]) * {apart}).randrange({most})
mine = []
with train().run(resume=resume) as batches:
    for number, batch in enumerate(batches):
        mine += batch.tolist()
        if number == cut and not {last}:
            break
    state = batches.state()
say([mine, state])
"""


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shards_are_disjoint_complete_and_equal(ranks_say: Say, ranks: int) -> None:
    program = PIPELINE.format(samples=SAMPLES, remainder="drop", batch=16)
    said = ranks_say(ranks, program + "say([batch.tolist() for batch in train()])")
    units = [unit for batches in said for batch in batches for unit in batch]
    assert len(set(units)) == len(units) == SAMPLES - SAMPLES % ranks
    assert len({tuple(map(len, batches)) for batches in said}) == 1


@pytest.mark.parametrize("seed", range(20 if SOAK else 1))
@pytest.mark.parametrize("apart", [0, 1], ids=["same batch", "each its own"])
def test_each_sample_once_however_often_the_world_changes(
    ranks_say: Say, tmp_path: Path, seed: int, apart: int
) -> None:
    """Cut at random batches and go on with another number of ranks, three times in a row."""
    from nogil_loader import merge_states

    worlds = random.Random(seed).sample([1, 2, 3, 4, 5], 4)
    seen: list[int] = []
    saved = ""
    for turn, ranks in enumerate(worlds):
        program = PIPELINE.format(samples=SAMPLES, remainder="drop", batch=7)
        program += TO_A_CUT.format(
            saved=saved,
            seed=seed * 10 + turn,
            apart=apart,
            most=SAMPLES // (12 * ranks),
            last=turn == 3,
        )
        said = ranks_say(ranks, program)
        seen += [unit for mine, _ in said for unit in mine]
        saved = str(tmp_path / f"state-{turn}.json")
        Path(saved).write_text(json.dumps(merge_states([state for _, state in said])))
    assert len(set(seen)) == len(seen)
    assert SAMPLES - worlds[-1] < len(seen) <= SAMPLES


def test_ranks_gather_their_states_themselves(ranks_say: Say) -> None:
    """What docs/cluster.md says: allgather, merge, and each rank goes on."""
    program = PIPELINE.format(samples=120, remainder="drop", batch=5)
    said = ranks_say(
        3,
        program
        + """
from nogil_loader.cluster import connect
group = connect().group
mine = []
with train().run() as batches:
    for number, batch in enumerate(batches):
        mine += batch.tolist()
        if number == 2:
            state = nl.merge_states(group.allgather(batches.state()))
            break
with train().run(resume=state) as batches:
    for batch in batches:
        mine += batch.tolist()
say(mine)
""",
    )
    assert sorted(unit for mine in said for unit in mine) == list(range(120))


def test_a_run_says_nothing_to_other_ranks(ranks_say: Say) -> None:
    """No MPI is started, so nothing can have been said."""
    program = PIPELINE.format(samples=400, remainder="drop", batch=10)
    said = ranks_say(4, program + "say([sum(1 for _ in train()), 'mpi4py' in sys.modules])")
    assert said == [[10, False]] * 4


def test_uneven_ranks_agree_and_end_together(ranks_say: Say) -> None:
    said = ranks_say(
        3,
        """
        import nogil_loader as nl
        def odd_ones_are_rare(i):
            return i % 3 == 0 or i % 7 == 0
        train = (
            nl.from_sequence(range(1000)).shard(uneven="agree").filter(odd_ones_are_rare).batch(4)
        )
        say([len(batch) for batch in train])
        """,
    )
    assert len(said[0]) == len(said[1]) == len(said[2]) > 10

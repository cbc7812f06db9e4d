"""The loader on real ranks: shards, checkpoints that change the world, and no chatter."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nogil_loader as nl

Say = Callable[..., list[Any]]

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


UNEVEN = {
    "filter": ".filter(some).batch(4)",
    "flat_map": ".flat_map(few).batch(4)",
    "bucket": ".bucket(size, boundaries=[3, 6], batch_sizes=[4, 3, 2])",
    "pack": ".map(tokens).pack(16, rows=2)",
}


@pytest.mark.parametrize("stage", UNEVEN)
def test_uneven_ranks_agree_and_end_together(ranks_say: Say, stage: str) -> None:
    """And go on, together, with what none of them was given before a cut; all that they say
    is an allgather for every eight batches."""
    said = ranks_say(
        3,
        f"""
        import numpy as np
        import nogil_loader as nl
        from nogil_loader.cluster.mpi import MpiGroup

        said, gather = [], MpiGroup.allgather
        def counted(group, value):
            said.append(value)
            return gather(group, value)
        MpiGroup.allgather = counted

        def some(i):
            return i % 3 == 0 or i % 7 == 0
        def few(i):
            return [i] * (i % 4)
        def size(i):
            return i * i % 10
        def tokens(i):
            return np.full(i % 9 + 1, i)

        train = nl.from_sequence(range(1000)).shard(uneven="agree"){UNEVEN[stage]}
        whole = sum(1 for _ in train)
        rounds = len(said)
        with train.run() as batches:
            for _ in range(5):
                next(batches)
            state = batches.state()
        with train.run(resume=state) as batches:
            rest = sum(1 for _ in batches)
        say([whole, rounds, rest])
        """,
    )
    assert said[0] == said[1] == said[2]
    whole, rounds, rest = said[0]  # type: ignore[misc]
    assert whole > 10
    assert rounds <= whole // 8 + 1
    assert rest == whole - 5


def test_ranks_that_could_talk_say_nothing_in_a_run(ranks_say: Say) -> None:
    """Every call to a group is counted, over an epoch of even shards."""
    program = PIPELINE.format(samples=4_000, remainder="drop", batch=10)
    said = ranks_say(
        4,
        program
        + """
from nogil_loader.cluster import connect
from nogil_loader.cluster.mpi import MpiGroup
said = []
group = connect().group
group.barrier()
for name in ("allgather", "barrier", "__init__"):
    setattr(MpiGroup, name, lambda *given, name=name: said.append(name))
say([sum(1 for _ in train()), said])
""",
    )
    assert said == [[100, []]] * 4


CHAINS = """
import json, os, random, sys
from pathlib import Path
import numpy as np
import nogil_loader as nl

def some(i):
    return i % 3 == 0 or i % 7 == 0
def size(i):
    return i * i % 10
def tokens(i):
    return np.full(i % 9 + 1, i)

source = nl.from_sequence(range(1, {samples} + 1)).shuffle(seed=17).shard(uneven="allow")
chains = {{
    "filter": source.filter(some).batch(4),
    "bucket": source.bucket(size, boundaries=[3, 6], batch_sizes=[4, 3, 2]),
    "pack": source.map(tokens).pack(16, rows=2),
    "unbatch": source.batch(5).unbatch().filter(some).batch(3),
}}

def shown(batch):
    if isinstance(batch, dict):  # of pack: the tokens, and where each sequence is
        return next(v for k, v in batch.items() if k not in ("segment_ids", "positions"))
    return batch

saved = json.loads(Path({saved!r}).read_text()) if {saved!r} else {{}}
draw = random.Random(1000 * {seed} + int(os.environ["PMI_RANK"]))
said = {{}}
for name, chain in chains.items():
    mine, cut = [], draw.randrange(5)
    with chain.run(resume=saved.get(name)) as batches:
        for number, batch in enumerate(batches):
            mine += [unit for unit in np.ravel(shown(batch)).tolist() if unit]
            if number == cut and not {last}:
                break
        said[name] = mine, batches.state()
say(said)
"""


@pytest.mark.parametrize("seed", range(20 if SOAK else 1))
def test_stages_that_drop_or_gather_keep_the_law_however_often_the_world_changes(
    ranks_say: Say, tmp_path: Path, seed: int
) -> None:
    """Each rank stops at a batch of its own, others go on, three times in a row: every unit
    once over all ranks, but for those that the last world cannot share out."""
    from nogil_loader import merge_states

    samples = 301
    some = Counter(i for i in range(1, samples + 1) if i % 3 == 0 or i % 7 == 0)
    whole = {
        "filter": some,
        "bucket": Counter(range(1, samples + 1)),
        "pack": Counter({i: i % 9 + 1 for i in range(1, samples + 1)}),
        "unbatch": some,
    }
    worlds = random.Random(seed).sample([1, 2, 3, 4, 5], 4)
    seen: dict[str, Counter[int]] = {name: Counter() for name in whole}
    saved = ""
    for turn, ranks in enumerate(worlds):
        program = CHAINS.format(
            samples=samples, saved=saved, seed=10 * seed + turn, last=turn == len(worlds) - 1
        )
        said = ranks_say(ranks, program)
        for name, counts in seen.items():
            counts.update(unit for rank in said for unit in rank[name][0])
        saved = str(tmp_path / f"states-{turn}.json")
        merged = {name: merge_states([rank[name][1] for rank in said]) for name in whole}
        Path(saved).write_text(json.dumps(merged))
    for name, expected in whole.items():
        assert not seen[name] - expected, f"{name} over {worlds} ranks: shown again"
        missing = set(expected - seen[name])
        assert len(missing) < worlds[-1], f"{name} over {worlds} ranks: {missing} vanished"


def test_a_start_is_as_much_work_in_any_world() -> None:
    """Counted in calls, of the thread that starts a run: no rank of 4,096 does more."""

    def calls(world: int) -> int:
        chain = (
            nl.from_sequence(range(10**9)).shuffle(seed=1).shard(rank=world - 1, world_size=world)
        )
        count = 0

        def called(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(called)
        try:
            run = chain.batch(8).workers(1).run()
        finally:
            sys.setprofile(None)
        run.close()
        return count

    calls(1)
    alone = calls(1)
    assert all(abs(calls(world) - alone) <= alone // 10 for world in (4, 64, 4096))

"""Random chains, cut anywhere and continued with other threads: the same values, none twice.

Every case is a number; a failing one prints the code of its chain.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader import stages
from nogil_loader.pipeline import Pipeline

SOAK = os.environ.get("NOGIL_LOADER_SOAK") == "1"
CASES = 2000 if SOAK else 160
CHUNK = 40
PATIENCE = 30.0
"""Seconds to wait for a value: what takes longer hangs."""


def double(value: int) -> int:
    return value * 2


def odd_third(value: int) -> bool:
    return value % 3 != 1


def children(value: int) -> list[int]:
    return [value * 100 + number for number in range(value % 4)]


def noise(value: int, rng: np.random.Generator) -> int:
    return value * 1000 + int(rng.integers(1000))


def fragile(value: int) -> int:
    if value % 7 == 3:
        raise ValueError(value)
    return value


def length(value: int) -> int:
    return value % 10


def tokens(value: int) -> np.ndarray:
    return np.full(value % 6 + 1, value)


def middle(batch: np.ndarray) -> np.ndarray:
    return batch[: max(1, len(batch) - 1)]


def even_sum(batch: np.ndarray) -> bool:
    return int(np.sum(batch)) % 2 == 0


class Chance:
    """Draws a chain, stage by stage, within what the rules allow."""

    def __init__(self, number: int) -> None:
        self.random = Random(number)

    def chain(self) -> Pipeline[object]:
        random = self.random
        count = random.choice([0, 1, 5, 17, 40])
        streams = random.random() < 0.2
        chain = self.source(count, streams)
        if not streams:
            chain = self.order(chain)
        chain = self.ops(chain)
        if random.random() < 0.85:
            chain = self.group(chain)
        return chain

    def source(self, count: int, streams: bool) -> Pipeline[object]:
        if streams:
            return nl.from_iterable(Numbers(count))
        if self.random.random() < 0.2 and count:
            other = nl.from_sequence(range(1000, 1000 + self.random.randint(1, 20)))
            stop = self.random.choice(["first", "all"])
            return nl.mix([nl.from_sequence(range(count)), other], [2, 1], stop=stop)
        return nl.from_sequence(range(count))

    def order(self, chain: Pipeline[object]) -> Pipeline[object]:
        random = self.random
        if random.random() < 0.6:
            chain = chain.shuffle(seed=random.randint(0, 9))
        if random.random() < 0.2:
            chain = chain.take(random.randint(1, 30))
        if random.random() < 0.2:
            chain = chain.skip(random.randint(1, 9))
        if random.random() < 0.2:
            chain = chain.repeat(random.randint(1, 3))
        return chain

    def ops(self, chain: Pipeline[object]) -> Pipeline[object]:
        random = self.random
        for _ in range(random.randint(0, 3)):
            draw = random.randrange(7)
            if draw == 0:
                chain = chain.map(double, threads=random.choice([None, 2]))
            elif draw == 1:
                chain = chain.filter(odd_third)
            elif draw == 2:
                chain = chain.flat_map(children)
            elif draw == 3:
                chain = chain.map(noise, rng=True)
            elif draw == 4:
                chain = chain.map(fragile, on_error="skip")
            elif draw == 5:
                chain = chain.map(double, serial=True)
            else:
                chain = chain.map(double, limit=1)
        return chain

    def group(self, chain: Pipeline[object]) -> Pipeline[object]:
        random = self.random
        draw = random.randrange(6)
        drop = random.random() < 0.4
        size = random.randint(1, 6)
        if draw == 0:
            sizes = random.choice([size, [size, 2, 3]])
            return chain.bucket(length, [3, 6], sizes, drop_last=drop)
        if draw == 1:
            algorithm = random.choice(["first_fit", "best_fit", "concat"])
            rows = random.randint(1, 2)
            chain = chain.map(tokens)
            return chain.pack(8, algorithm=algorithm, rows=rows, drop_last=drop)
        chain = chain.batch(size, drop_last=drop)
        after = random.randrange(7)
        if after == 0:
            chain = chain.map(middle)
        elif after == 1:
            chain = chain.filter(even_sum)
        elif after == 2:
            chain = chain.unbatch()
            if random.random() < 0.5:
                chain = chain.filter(odd_third).batch(random.randint(1, 3))
        elif after == 3:
            chain = chain.take(random.randint(0, 5))
        elif after == 4:
            chain = chain.skip(random.randint(1, 3))
        elif after == 5 and not getattr(chain.source, "stream", False):
            chain = chain.repeat(2)
        return chain

    def threads(self, chain: Pipeline[object]) -> Pipeline[object]:
        chain = chain.workers(self.random.randint(1, 3), block=self.random.choice([None, 1, 3]))
        return chain.prefetch(self.random.randint(1, 4))


class Numbers:
    """A stream that can be read from the start any number of times."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __repr__(self) -> str:
        return f"Numbers({self.count})"


def plain(value: object) -> object:
    """In a form that compares."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    return value


def read(run: nl.Run[object], count: int | None = None) -> list[object]:
    got: list[object] = []
    while count is None or len(got) < count:
        try:
            got.append(plain(run.next(timeout=PATIENCE)))
        except StopIteration:
            break
    return got


def draw(number: int) -> tuple[Chance, Pipeline[object]] | None:
    chance = Chance(number)
    try:
        return chance, chance.chain()
    except ValueError:
        return None  # refused, as it must be: test_misuse says why


def code(number: int, chain: Pipeline[object]) -> str:
    return f"case {number}: {chain!r}"


@pytest.mark.parametrize("begin", range(0, CASES, CHUNK))
def test_any_chain_cut_anywhere_continues_bit_by_bit(begin: int) -> None:
    drawn = 0
    for number in range(begin, begin + CHUNK):
        pair = draw(number)
        if pair is None:
            continue
        drawn += 1
        chance, chain = pair
        epoch = chance.random.randint(0, 2)
        with chance.threads(chain).run(epoch=epoch, seed=5) as run:
            whole = read(run)
        got: list[object] = []
        state = None
        cuts = sorted(chance.random.randint(0, len(whole)) for _ in range(3))
        for cut in [*cuts, None]:
            again = chance.threads(chain)
            options = {"epoch": epoch, "seed": 5} if state is None else {"resume": state}
            with again.run(**options) as run:
                got += read(run, None if cut is None else cut - len(got))
                state = json.loads(json.dumps(run.state()))
            expected = whole[: len(got)] if cut is not None else whole
            assert got == expected, f"{code(number, chain)}, cuts {cuts}, at {cut}"
    assert drawn > CHUNK // 2


@pytest.mark.parametrize("begin", range(0, CASES // 2, CHUNK))
def test_out_of_order_each_batch_once_over_all_cuts(begin: int) -> None:
    for number in range(begin, begin + CHUNK):
        pair = draw(number)
        if pair is None:
            continue
        chance, chain = pair
        with chance.threads(chain).run() as run:
            whole = read(run)
        got: list[object] = []
        state = None
        for cut in (len(whole) // 3, len(whole) // 2, None):
            with chance.threads(chain).run(ordered=False, resume=state) as run:
                try:
                    run.state()
                except ValueError:
                    break  # nothing is batched, and there is no state
                got += read(run, None if cut is None else max(0, cut - len(got)))
                try:
                    state = json.loads(json.dumps(run.state()))
                except ValueError:
                    got = whole
                    break
        else:
            assert sorted(map(repr, got)) == sorted(map(repr, whole)), code(number, chain)


def one_to_one(chance: Chance, world: int) -> list[Pipeline[object]]:
    """The chains of all ranks of one job."""
    random = Random(chance.random.randint(0, 1 << 30))
    count, size = random.choice([7, 24, 61]), random.randint(1, 5)
    shuffled, noisy = random.random() < 0.7, random.random() < 0.5
    chains = []
    for rank in range(world):
        chain = nl.from_sequence(range(count))
        if shuffled:
            chain = chain.shuffle(seed=3)
        chain = chain.shard(rank, world)
        if noisy:
            chain = chain.map(noise, rng=True)
        chains.append(chain.batch(size))
    return chains


@pytest.mark.parametrize("begin", range(0, CASES // 4, CHUNK))
def test_another_world_size_sees_each_sample_of_the_epoch_once(begin: int) -> None:
    for number in range(begin, begin + CHUNK):
        seed = Random(number)
        worlds = [seed.randint(1, 4) for _ in range(3)]
        seen: list[int] = []
        state = None
        for turn, world in enumerate(worlds):
            chains = one_to_one(Chance(number), world)
            states = []
            for chain in chains:
                chance = Chance(number + turn)
                with chance.threads(chain).run(resume=state) as run:
                    last = turn == len(worlds) - 1
                    cut = None if last else seed.randint(0, 4)
                    for batch in itertools.islice(run, cut):
                        seen.extend(batch.tolist())
                    states.append(json.loads(json.dumps(run.state())))
            if not last:
                state = json.loads(json.dumps(nl.merge_states(states)))
        (single,) = one_to_one(Chance(number), 1)
        whole = [value for batch in single for value in batch.tolist()]
        assert len(set(seen)) == len(seen), f"case {number}: a sample came twice"
        assert set(seen) <= set(whole), f"case {number}: an augmentation changed"
        assert len(seen) >= len(whole) - worlds[-1] + 1, f"case {number}: samples vanished"


def test_after_resuming_no_op_is_called_for_what_was_accounted_for() -> None:
    calls: list[int] = []

    def op(value: int) -> int:
        calls.append(value)
        return value

    chain = nl.from_sequence(range(1000)).map(op).batch(10).prefetch(1).workers(1, block=1)
    with chain.run() as run:
        read(run, 50)
        state = run.state()
    calls.clear()
    with chain.run(resume=state) as run:
        assert read(run, 1) == [("int64", list(range(500, 510)))]
    assert min(calls) == 500


def test_a_state_of_other_data_or_another_chain_is_refused() -> None:
    chain = nl.from_sequence(range(20)).map(double).batch(4)
    with chain.run() as run:
        next(run)
        state = run.state()
    for other in (
        nl.from_sequence(range(21)).map(double).batch(4),
        nl.from_sequence(range(20)).map(double).batch(5),
        nl.from_sequence(range(20)).map(length).batch(4),
        nl.from_sequence(range(20)).shuffle(seed=1).map(double).batch(4),
    ):
        with pytest.raises(ValueError, match=r"allow_changes|changed|other|differ"):
            other.run(resume=state)
    assert stages.name_of(double) == "double"

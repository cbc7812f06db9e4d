"""Chains by chance: every stage that a state must know how to go on through.

Small data, and ops that are cheap, so that thousands of chains are cut within a minute. All
ops are module-level functions: the printed code of a chain can be run as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

import nogil_loader as nl
from nogil_loader.pipeline import Pipeline

Threads = tuple[int, "int | None", int]
"""Workers, units in a block (None: adapted), batches of prefetch."""


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


class Numbers:
    """A stream that can be read from the start any number of times."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __repr__(self) -> str:
        return f"Numbers({self.count})"


class Told:
    """Makes iterators that know where they are, and are asked."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self) -> Counting:
        return Counting(self.count)

    def __repr__(self) -> str:
        return f"Told({self.count})"


class Counting:
    def __init__(self, count: int) -> None:
        self.count = count
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        while self.next < self.count:
            self.next += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Chance:
    """Draws a chain, stage by stage, within what the rules allow."""

    def __init__(self, number: int) -> None:
        self.random = Random(number)

    def any_chain(self) -> Pipeline[object]:
        """For one rank, which goes on from its own state."""
        random = self.random
        count = random.choice([0, 1, 5, 17, 40])
        streams = random.random() < 0.2
        if streams:
            chain = nl.from_iterable(random.choice([Numbers, Told])(count))
        else:
            chain = self.order(self.source(count))
        sharded = not streams and random.random() < 0.3
        if sharded and count and random.random() < 0.4:
            return self.stopped(nl.from_sequence(range(count)))
        if sharded:
            world = random.randint(1, 3)
            chain = chain.shard(random.randrange(world), world, uneven="allow")
        chain = self.ops(chain)
        if random.random() < 0.85:
            chain = self.group(chain)
            chain = self.above(chain, may_repeat=not streams and not sharded)
        return chain

    def elastic_chain(self) -> tuple[Pipeline[object], bool]:
        """For any number of ranks, and whether something may be dropped or shown again.

        Only what the law speaks of: no stage whose result depends on how samples are grouped.
        """
        random = self.random
        chain = self.order(self.source(random.choice([3, 7, 24, 61])))
        if random.random() < 0.4:
            remainder = random.choice(["drop", "wrap"])
            chain = chain.shard(0, 1, remainder=remainder)
            if random.random() < 0.5:
                chain = chain.map(noise, rng=True)
            return chain.batch(random.randint(1, 5)), True
        chain = self.ops(chain.shard(0, 1, uneven="allow"))
        draw = random.randrange(6)
        if draw == 0:
            chain = chain.bucket(length, [3, 6], random.choice([3, [4, 2, 3]]))
            return (chain.unbatch() if random.random() < 0.3 else chain), False
        if draw == 1:
            fit = random.choice(["first_fit", "best_fit"])
            return chain.map(tokens).pack(8, algorithm=fit, rows=random.randint(1, 2)), False
        chain = chain.batch(random.randint(1, 5))
        if draw == 2:
            chain = chain.unbatch()
        elif draw == 3:
            chain = chain.unbatch().filter(odd_third).batch(random.randint(1, 3))
        return chain, False

    def source(self, count: int) -> Pipeline[object]:
        random = self.random
        if random.random() < 0.2 and count:
            other = nl.from_sequence(range(1000, 1000 + random.randint(1, 20)))
            stop = random.choice(["first", "all"])
            return nl.mix([nl.from_sequence(range(count)), other], [2, 1], stop=stop)
        return nl.from_sequence(range(count))

    def order(self, chain: Pipeline[object]) -> Pipeline[object]:
        random = self.random
        if random.random() < 0.6:
            chain = chain.shuffle(
                seed=random.randint(0, 9), window=random.choice([None, None, 1, 4])
            )
        if random.random() < 0.2:
            chain = chain.take(random.randint(1, 30))
        if random.random() < 0.2:
            chain = chain.skip(random.randint(1, 9))
        if random.random() < 0.2:
            chain = chain.repeat(random.randint(1, 3))
        return chain

    def stopped(self, chain: Pipeline[object]) -> Pipeline[object]:
        """One of the ranks that all stop at so many batches, and begin again if need be."""
        random = self.random
        world = random.randint(1, min(3, len(chain)))
        rank, batches = random.randrange(world), random.randint(1, 8)
        chain = chain.shuffle(random.randint(0, 9))
        if len(chain) > 10 and random.random() < 0.5:
            chain = chain.shard(rank, world).map(fragile, on_error="skip").map(noise, rng=True)
            return chain.batch(random.randint(1, 6), drop_last=random.random() < 0.4)
        return self.group(chain.shard(rank, world, batches=batches).map(noise, rng=True))

    def ops(self, chain: Pipeline[object]) -> Pipeline[object]:
        random = self.random
        for _ in range(random.randint(0, 3)):
            draw = random.randrange(8)
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
            elif draw == 6:
                chain = chain.filter(odd_third).flat_map(children)
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
        return chain.batch(size, drop_last=drop)

    def above(self, chain: Pipeline[object], may_repeat: bool) -> Pipeline[object]:
        """What follows where arrays are batched."""
        random = self.random
        if type(chain.chain[-1]).__name__ == "Pack":
            return chain
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
        elif after == 5 and may_repeat:
            chain = chain.repeat(2)
        return chain

    def threads(self) -> Threads:
        random = self.random
        return random.randint(1, 3), random.choice([None, 1, 3]), random.randint(1, 4)

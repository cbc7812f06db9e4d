"""What must hold for any chain, however it is cut; and the code of what broke it.

A law takes a chain and the numbers of one case, so that a failing case can be printed as a
call of it: ``python -c`` of what the error shows runs the same case again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np

import nogil_loader as nl
from nogil_loader import stages
from nogil_loader.engine.threads import Threads as Pool
from nogil_loader.pipeline import Pipeline
from nogil_loader.session import Session
from tests.resume.chains import Threads

PATIENCE = 30.0
"""Seconds to wait for a value: what takes longer hangs."""


def code(number: int, law: Callable[..., None], *given: object) -> str:
    """A case as a program."""
    return "\n".join(
        [
            f"case {number}; run this again, at the root of the repository:",
            "import nogil_loader, nogil_loader as nl, tests.resume.chains",
            "from tests.resume.chains import Numbers, Told",
            f"from tests.resume.laws import {law.__name__}",
            f"{law.__name__}({', '.join(map(repr, given))})",
        ]
    )


def start(
    chain: Pipeline[object], threads: Threads, pool: Pool | None, **options: object
) -> nl.Run[object]:
    """A run with so many threads; with a pool, on warm ones."""
    workers, block, prefetch = threads
    chain = chain.workers(workers, block=block).prefetch(prefetch)
    if pool is None:
        return chain.run(**options)  # type: ignore[arg-type]
    return Session(chain.source, chain.chain).start(pool=pool, **options)  # type: ignore[arg-type]


def saved(state: object) -> dict[str, object]:
    """A state, written and read again."""
    return json.loads(json.dumps(state))  # type: ignore[no-any-return]


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


def same_however_cut(
    chain: Pipeline[object],
    epoch: int,
    shares: Sequence[float],
    threads: Sequence[Threads],
    pool: Pool | None = None,
) -> None:
    """Cut after these shares of its values, and continued each time from the state alone with
    other threads, the chain yields what it yields uncut."""
    with start(chain, threads[0], pool, epoch=epoch, seed=5) as run:
        whole = read(run)
    got: list[object] = []
    options: dict[str, object] = {"epoch": epoch, "seed": 5}
    cuts = [*sorted(round(share * len(whole)) for share in shares), None]
    for cut, using in zip(cuts, cycle(threads[1:])):
        with start(chain, using, pool, **options) as run:
            got += read(run, None if cut is None else cut - len(got))
            options = {"resume": saved(run.state())}
        expected = whole if cut is None else whole[:cut]
        assert got == expected, f"cut at {cuts}, at {cut}: {got} instead of {expected}"


def each_once_out_of_order(
    chain: Pipeline[object],
    shares: Sequence[float],
    threads: Sequence[Threads],
    pool: Pool | None = None,
) -> None:
    """The same batches in completion order, over all cuts each of them once."""
    with start(chain, threads[0], pool) as run:
        whole = read(run)
    got: list[object] = []
    state = None
    cuts = [*sorted(round(share * len(whole)) for share in shares), None]
    for cut, using in zip(cuts, cycle(threads[1:])):
        with start(chain, using, pool, ordered=False, resume=state) as run:
            got += read(run, None if cut is None else cut - len(got))
            if cut is not None:
                state = saved(run.state())
    assert sorted(map(repr, got)) == sorted(map(repr, whole)), f"cut at {cuts}"


def each_once_over_all_ranks(
    chain: Pipeline[object],
    epoch: int,
    exact: bool,
    worlds: Sequence[int],
    cuts: Sequence[int],
    threads: Sequence[Threads],
    pool: Pool | None = None,
) -> None:
    """The law of elastic resume. ``worlds``: ranks in each turn; ``cuts``: batches of one rank
    after another, before it stops (in the last turn none does). ``exact``: nothing is dropped
    or shown again; else no more than the remainder that the shard declares."""
    alone = ranked(chain, 0, 1)
    whole = samples(read_whole(alone, epoch, threads[0], pool))
    stops, using = iter(cycle(cuts)), iter(cycle(threads))
    options: dict[str, object] = {"epoch": epoch}
    seen: Counter[int] = Counter()
    for turn, world in enumerate(worlds):
        last = turn == len(worlds) - 1
        states = []
        for rank in range(world):
            with start(ranked(chain, rank, world), next(using), pool, **options) as run:
                seen += samples(read(run, None if last else next(stops)))
                states.append(saved(run.state()))
        if not last:
            options = {"resume": saved(nl.merge_states(states))}
    again, missing = seen - whole, whole - seen
    remainder = next(s.remainder for s in chain.chain if isinstance(s, stages.Shard))
    allowed = 0 if exact else worlds[-1] - 1
    assert again.total() <= (sum(worlds) - len(worlds) if remainder == "wrap" else 0), again
    assert set(again) <= set(whole), f"{again} are no samples of this epoch"
    assert missing.total() <= (allowed if remainder == "drop" else 0), f"{missing} vanished"


def ranked(chain: Pipeline[object], rank: int, world: int) -> Pipeline[object]:
    """The chain as this rank runs it."""
    stages_ = [
        replace(stage, rank=rank, world_size=world) if isinstance(stage, stages.Shard) else stage
        for stage in chain.chain
    ]
    return Pipeline(chain.source, tuple(stages_))


def read_whole(
    chain: Pipeline[object], epoch: int, threads: Threads, pool: Pool | None
) -> list[object]:
    with start(chain, threads, pool, epoch=epoch) as run:
        return read(run)


def samples(values: Sequence[object]) -> Counter[int]:
    """How often each sample (of packs: each token) is in some batches."""
    found: Counter[int] = Counter()
    for value in values:
        if isinstance(value, dict):
            rows, ids = value["tokens"][1], value["segment_ids"][1]
            for row, marks in zip(rows, ids, strict=True):
                found.update(token for token, mark in zip(row, marks, strict=True) if mark)
        else:
            found.update(value[1] if isinstance(value, tuple) else [value])
    return found

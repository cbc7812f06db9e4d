"""Random pipelines whose bottleneck is known, because it was put there.

One resource gets a rate; every other one is at least ``MARGIN`` times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp
from random import Random

import nogil_loader as nl
from nogil_loader import plan
from nogil_loader.position.order import Sequential
from tests.observe.simulation import Cost, World

MARGIN = 1.6
"""How many times faster than the bottleneck anything else is, at least."""

KINDS = (
    "source",
    "private",
    "workers",
    "serial",
    "limit",
    "in_flight",
    "consumer",
    "memory",
    "straggler",
    "GIL",
)


@dataclass(frozen=True)
class Scenario:
    """A world, and what limits it."""

    seed: int
    kind: str
    name: str
    world: World
    pipeline: str


@dataclass
class _Draft:
    """A pipeline while it is put together, stage by stage."""

    rng: Random
    rate: float
    """Samples a second that the bottleneck lets through."""
    workers: int
    budget: float
    """Seconds a sample of CPU work that are left to give away."""
    stages: list[tuple[str, dict[str, int | bool]]] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)

    def slack(self) -> float:
        """How many times faster than the bottleneck a stage is."""
        return MARGIN * 4.0 ** self.rng.random()

    def add(self, name: str, cost: Cost, **options: int | bool) -> None:
        self.stages.append((name, options))
        self.costs[name] = cost

    def spread(self, mean: float) -> Cost:
        """Times around a mean, a function of the unit alone."""
        sigma = self.rng.choice((0.0, 0.1, 0.4))
        salt = self.rng.randrange(1 << 30)
        if not sigma:
            return _Constant(mean)
        return _Spread(mean, sigma, salt)

    def cpu(self, share: float) -> float:
        """Take a share of the CPU budget that is left."""
        seconds = self.budget * share
        self.budget -= seconds
        return seconds


@dataclass(frozen=True)
class _Constant:
    seconds: float

    def __call__(self, unit: int) -> float:
        return self.seconds


@dataclass(frozen=True)
class _Spread:
    mean: float
    sigma: float
    salt: int

    def __call__(self, unit: int) -> float:
        noise = Random(self.salt + unit).gauss(0.0, self.sigma)
        return self.mean * exp(noise - self.sigma**2 / 2)


@dataclass(frozen=True)
class _Heavy:
    """Every ``period``-th unit takes ``heavy`` seconds."""

    light: float
    heavy: float
    period: int

    def __call__(self, unit: int) -> float:
        return self.heavy if unit % self.period == self.period // 2 else self.light


def scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    if kind == "straggler":
        return _straggler(seed, rng)
    if kind == "memory":
        return _memory(seed, rng)
    return _rated(seed, rng, kind)


def _rated(seed: int, rng: Random, kind: str) -> Scenario:
    rate = 10.0 ** rng.uniform(1.3, 3.7)
    least = 2 if kind in ("serial", "limit", "GIL") else 1
    workers = rng.choice([n for n in (1, 2, 3, 4, 8) if n >= least])
    turns = 1 if kind == "GIL" else workers
    draft = _Draft(rng, rate, workers, turns / rate)
    if kind not in ("workers", "GIL"):
        draft.budget /= draft.slack()
    name = _put(draft, kind)
    for number in range(rng.randrange(4)):
        _put_fast(draft, number, allowed=kind != "GIL")
    rng.shuffle(draft.stages)
    if kind in ("workers", "GIL"):
        draft.add("decode", draft.spread(draft.budget))
        rng.shuffle(draft.stages)
    batch = rng.choice((1, 4, 16, 32))
    consume = batch / rate / (1.0 if kind == "consumer" else draft.slack())
    if kind != "consumer" and rng.random() < 0.3:
        consume = 0.0
    stream = None
    if kind == "source":
        stream = 1.0 / rate
    elif kind not in ("workers", "GIL") and rng.random() < 0.2:
        stream = 1.0 / rate / draft.slack()
    return _build(seed, kind, name, draft, batch, consume, stream, gil=kind == "GIL")


def _put(draft: _Draft, kind: str) -> str:
    """Put the bottleneck in; returns its name."""
    rng, rate = draft.rng, draft.rate
    if kind == "private":
        threads = rng.choice((1, 2, 4, 16))
        draft.add("fetch", draft.spread(threads / rate), threads=threads)
        return "fetch"
    if kind == "serial":
        draft.budget = (draft.workers / draft.slack() - 1.0) / rate
        draft.add("write", draft.spread(1.0 / rate), serial=True)
        return "write"
    if kind == "limit":
        limit = rng.randrange(1, draft.workers)
        draft.budget = max(0.0, (draft.workers / MARGIN - limit) / rate)
        draft.add("model", draft.spread(limit / rate), limit=limit)
        return "model"
    if kind == "in_flight":
        flying = rng.choice((2, 8, 32))
        draft.add("ask", draft.spread(flying / rate), in_flight=flying)
        return "ask"
    if kind in ("workers", "GIL"):
        return "GIL" if kind == "GIL" else "decode"  # gets what the others leave
    return kind


def _put_fast(draft: _Draft, number: int, *, allowed: bool) -> None:
    """Put in a stage that is no bottleneck."""
    rng = draft.rng
    form = rng.choice(("cpu", "cpu", "threads", "serial", "limit", "in_flight"))
    if form == "threads":
        threads = rng.choice((1, 2, 4, 16))
        cost = draft.spread(threads / draft.rate / draft.slack())
        draft.add(f"load{number}", cost, threads=threads)
        return
    if form == "in_flight" and allowed:
        flying = rng.choice((2, 8, 32))
        cost = draft.spread(flying / draft.rate / draft.slack())
        # Workers on their way to the call count as in flight.
        draft.add(f"call{number}", cost, in_flight=flying + draft.workers)
        return
    seconds = draft.cpu(rng.uniform(0.05, 0.15))
    if form == "serial":
        seconds = min(seconds, 1.0 / draft.rate / draft.slack())
        draft.add(f"log{number}", draft.spread(seconds), serial=True)
    elif form == "limit":
        limit = rng.randrange(1, 3)
        seconds = min(seconds, limit / draft.rate / draft.slack())
        draft.add(f"infer{number}", draft.spread(seconds), limit=limit)
    else:
        draft.add(f"crop{number}", draft.spread(seconds))


def _straggler(seed: int, rng: Random) -> Scenario:
    """A few samples take so long that the look-ahead is used up behind them."""
    workers = rng.choice((2, 4, 8))
    batch = rng.choice((4, 8, 16))
    light = 10.0 ** rng.uniform(-2.5, -1.5)
    window = 2 * batch + 4 * workers
    heavy = rng.uniform(5, 9) * window * light / (workers - 1)
    period = 2 * window
    rate = period / (heavy + (period - window) * light / workers)
    draft = _Draft(rng, rate, workers, 0.0)
    draft.add("decode", _Heavy(light, heavy, period))
    consume = batch / rate / draft.slack()
    return _build(seed, "straggler", "decode", draft, batch, consume, None)


def _memory(seed: int, rng: Random) -> Scenario:
    """Many threads that fetch, and a budget for few samples."""
    size = rng.choice((10_000, 1_000_000))
    batch = rng.choice((1, 2))
    inside = rng.randrange(1, 5) + 2 * batch
    threads = inside * rng.choice((3, 6))
    seconds = 10.0 ** rng.uniform(-2.5, -1)
    rate = inside / seconds
    draft = _Draft(rng, rate, 4, 4 / rate / MARGIN)
    draft.add("fetch", draft.spread(seconds), threads=threads)
    draft.add("decode", draft.spread(draft.cpu(0.5)))
    consume = batch / rate / draft.slack()
    return _build(
        seed, "memory", "memory", draft, batch, consume, None, size=size, memory=inside * size
    )


def _build(
    seed: int,
    kind: str,
    name: str,
    draft: _Draft,
    batch: int,
    consume: float,
    stream: float | None,
    *,
    gil: bool = False,
    size: int = 0,
    memory: int | None = None,
) -> Scenario:
    blocking = draft.workers + sum(
        int(options[key])
        for _, options in draft.stages
        for key in ("threads", "in_flight")
        if key in options
    )
    length = max(40 * batch, 8 * (64 + 4 * blocking))
    source = range(length)
    pipeline = nl.from_sequence(source) if stream is None else nl.from_iterable(_Again(source))
    for stage, options in draft.stages:
        add: Callable[..., nl.Pipeline[object]] = pipeline.map
        pipeline = add(_same, name=stage, **options)
    pipeline = pipeline.batch(batch).workers(draft.workers)
    if memory is not None:
        pipeline = pipeline.memory(memory)
    program = plan.compose(
        pipeline.chain,
        pipeline.source.open(),
        Sequential(length if stream is None else None),
        epoch=0,
        seed=0,
        ordered=True,
        rank=None,
    )
    costs = {"read": _Constant(0.0), **draft.costs}
    world = World(program.core, program.kinds, length, costs, consume, stream, size=size, gil=gil)
    return Scenario(seed, kind, name, world, repr(pipeline))


@dataclass(frozen=True)
class _Again:
    data: range

    def __call__(self) -> range:
        return self.data


def _same(value: object) -> object:
    return value

"""The core by itself, driven by hand through every order in which things can happen.

A ``World`` plays the workers, the stream, the clock and the consumer. What it does next is
drawn; what each op does to each cell is drawn beforehand, so that what must come out is known
from a plain sequential reading of the same chain.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nogil_loader.engine.core import (
    Block,
    Core,
    CoreSpec,
    Delivery,
    Failure,
    Ident,
    LevelSpec,
    OpSpec,
    Policy,
    RunStart,
    SegmentSpec,
    Task,
)
from nogil_loader.engine.core.block import AGAIN, RESOLVE, SUBSTITUTE, Pending, as_tuple, unit_of
from nogil_loader.engine.core.level import Slot
from nogil_loader.position.grouping import Batches

SOAK = 20 if os.environ.get("NOGIL_LOADER_SOAK") == "1" else 1
MAP, FILTER, FLAT_MAP = "map", "filter", "flat_map"


class Broken(Exception):
    """What ops raise here; ``args`` are (level, op, ident)."""


@dataclass(frozen=True)
class Act:
    """What an op does to one cell."""

    failures: int = 0
    """Attempts that fail before one succeeds."""
    keep: bool = True
    children: int = 1
    future: bool = False
    hangs: bool = False
    """The first attempt never comes back."""


@dataclass
class Chain:
    """A drawn chain: the spec of the core and what its ops do."""

    kinds: tuple[tuple[str, ...], ...]
    spec: CoreSpec
    units: int
    stream: bool
    fails_at: int | None
    """Streams: the unit at which reading raises."""
    luck: int
    """Seeds what ops do."""
    unlucky: float
    """Share of cells to which something happens."""
    alike: bool = True
    """With a byte budget: whether every cell has 10 bytes, or any number up to that."""

    def size(self, value: object) -> int:
        """Bytes of a cell, or of a batch of them."""
        if isinstance(value, list):
            return sum(map(self.size, value))
        if self.alike:
            return 10
        return Random(f"{self.luck} {value}").randint(1, 10)

    def act(self, level: int, op: int, ident: tuple[int, ...]) -> Act:
        random = Random(f"{self.luck} {level} {op} {ident}")
        spec = self.spec.levels[level].ops[op]
        segment = next(s for s in self.spec.levels[level].segments if s.first <= op < s.last)
        futures = segment.in_flight is not None and op == segment.last - 1
        failures = random.randint(1, 3) if random.random() < self.unlucky else 0
        hangs = spec.timeout is not None and not futures and random.random() < self.unlucky
        return Act(
            failures=failures,
            keep=random.random() < 0.6,
            children=random.randint(0, 3),
            future=futures and random.random() < 0.7,
            hangs=hangs,
        )


# What must come out -------------------------------------------------------------------------


class Ends(Exception):
    """The failure that ends a run."""

    def __init__(self, level: int, ident: tuple[int, ...], op: int) -> None:
        super().__init__(level, ident, op)


def expected(chain: Chain) -> tuple[list[object], tuple[int, tuple[int, ...], int] | None]:
    """Outputs in order, and the failure after them."""
    got: list[object] = []
    try:
        got.extend([])
        for value in outputs(chain, len(chain.spec.levels) - 1):
            got.append(value)
    except Ends as end:
        level, ident, op = end.args
        return got, (level, ident, op)
    return got, None


def outputs(chain: Chain, number: int) -> Iterator[object]:
    """Of a level, one after the other."""
    for value in with_marks(chain, number):
        if not isinstance(value, Mark):
            yield value


@dataclass
class Mark:
    """Stands behind the outputs of a unit."""

    unit: int


def with_marks(chain: Chain, number: int) -> Iterator[object]:
    level = chain.spec.levels[number]
    counts = [0] * len(level.ops)
    for unit, value in enumerate(units(chain, number)):
        yield from through(chain, number, 0, (unit,), value, counts)
        yield Mark(unit)


def units(chain: Chain, number: int) -> Iterator[object]:
    if number == 0:
        for unit in range(chain.units):
            if unit == chain.fails_at:
                raise Ends(0, (unit,), -1)
            yield (unit,)
        return
    below = chain.spec.levels[number - 1]
    size = below.rows
    drop = below.drop_last
    if size is None:
        assert below.grouper is not None
        grouper = below.grouper()
        assert isinstance(grouper, Batches)
        size, drop = grouper._size, grouper._drop_last
    group: list[object] = []
    every = below.boundary
    for value in with_marks(chain, number - 1):
        if isinstance(value, Mark):
            if every is not None and (value.unit + 1) % every == 0:
                if group and not drop:
                    yield group
                group = []
            continue
        group.append(value)
        if len(group) == size:
            yield group
            group = []
    if group and not drop:
        yield group


def through(
    chain: Chain, level: int, op: int, ident: tuple[int, ...], value: object, counts: list[int]
) -> Iterator[object]:
    spec = chain.spec.levels[level]
    if op == len(spec.ops):
        yield value
        return
    policy = spec.ops[op].policy
    act = chain.act(level, op, ident)
    if act.failures + act.hangs > policy.retries:
        if policy.then == "raise":
            raise Ends(level, ident, op)
        if policy.then == "skip":
            counts[op] += 1
            if policy.max_skips is not None and counts[op] > policy.max_skips:
                raise Ends(level, ident, op)
            return
        results = substitutes(chain.kinds[level][op], value)
    else:
        results = results_of(chain.kinds[level][op], act, value)
    kind = chain.kinds[level][op]
    if kind == FILTER:
        if results:
            yield from through(chain, level, op + 1, ident, value, counts)
    elif kind == FLAT_MAP:
        for number, child in enumerate(results):  # type: ignore[arg-type]
            yield from through(chain, level, op + 1, (*ident, number), child, counts)
    else:
        yield from through(chain, level, op + 1, ident, results, counts)


def results_of(kind: str, act: Act, value: object) -> object:
    if kind == FILTER:
        return act.keep
    if kind == FLAT_MAP:
        return [(value, number) for number in range(act.children)]
    return ("mapped", value)


def substitutes(kind: str, value: object) -> object:
    if kind == FILTER:
        return True
    if kind == FLAT_MAP:
        return [("instead", value)]
    return ("instead", value)


# What happens -------------------------------------------------------------------------------


class Promise:
    """Stands for a future."""

    def __init__(self, cell: tuple[int, int, tuple[int, ...]], value: object) -> None:
        self.cell = cell
        self.value = value


@dataclass
class World:
    """Everything around a core."""

    chain: Chain
    random: Random
    ordered: bool = True
    now: float = 0.0
    running: list[tuple[Task, int]] = field(default_factory=list)
    promises: list[tuple[Task, int]] = field(default_factory=list)
    untaken: list[Delivery] = field(default_factory=list)
    got: list[object] = field(default_factory=list)
    failure: Failure | None = None
    ended: bool = False
    attempts: dict[tuple[int, int, tuple[int, ...]], int] = field(default_factory=dict)
    inside: dict[tuple[int, int], list[Task]] = field(default_factory=dict)
    given_up: list[Task] = field(default_factory=list)
    window: int = 0

    def __post_init__(self) -> None:
        chain = self.chain
        self.core = Core(chain.spec, RunStart(None if chain.stream else chain.units, chain.stream))
        self.read = 0
        self.told_end = not chain.stream
        self.pick_up()

    # The consumer

    def pick_up(self) -> None:
        for delivery in self.core.deliveries:
            if delivery.ended:
                assert not self.ended, "the end came twice"
                self.ended = True
                self.failure = delivery.failure
            else:
                assert not self.ended, "a delivery after the end"
                self.untaken.append(delivery)
                self.got.extend(known(value) for value in delivery.values)
        self.core.deliveries.clear()

    def consume(self) -> None:
        delivery = self.untaken.pop(0)
        self.core.credit(delivery.weight, delivery.size)

    # The workers

    def take(self, kind: int) -> bool:
        core = self.core
        could = core.can(kind)
        task = core.take(kind, self.now)
        assert (task is not None) == could, f"can({kind}) said {could}"
        if task is None:
            return False
        for slot, *_ in task.slots or ():
            if slot.buffer is None:
                slot.buffer = {}
        if task.segment is not None:
            spec = task.segment.spec
            here = self.inside.setdefault((task.segment.level.number, spec.first), [])
            here.append(task)
            assert spec.limit is None or len(here) <= spec.limit, "limit= exceeded"
            assert not spec.serial or len(here) == 1, "two inside a serial segment"
        self.running.append((task, kind))
        return True

    def complete(self, index: int) -> None:
        task, _ = self.running.pop(index)
        self.work(task)
        self.leave(task)
        self.core.finish(task, self.now)
        if task.futures and task.block is not None:
            for value in task.block.out or ():
                if isinstance(value, Promise):
                    self.promises.append((task, 0))

    def leave(self, task: Task) -> None:
        if task.segment is not None:
            spec = task.segment.spec
            self.inside[task.segment.level.number, spec.first].remove(task)

    def attempt(self, level: int, op: int, ident: Ident, value: object) -> object:
        """One call of an op: its result, a promise, or an error."""
        cell = (level, op, as_tuple(ident))
        act = self.chain.act(*cell)
        policy = self.chain.spec.levels[level].ops[op].policy
        self.attempts[cell] = self.attempts.get(cell, 0) + 1
        assert self.attempts[cell] <= policy.retries + 1, f"{cell} was tried too often"
        result: object
        if self.attempts[cell] <= act.failures + act.hangs:
            result = Broken(*cell)
        else:
            result = results_of(self.chain.kinds[level][op], act, value)
        return Promise(cell, result) if act.future else result

    def hangs(self, level: int, op: int, ident: Ident) -> bool:
        cell = (level, op, as_tuple(ident))
        return self.chain.act(*cell).hangs and not self.attempts.get(cell)

    def work(self, task: Task) -> None:
        """What a worker does with a task, up to the first op with failures or futures."""
        if task.closed is not None:
            cells = task.closed.cells
            task.value = [known(cell) for cell in cells]
            if self.chain.spec.memory is not None:
                task.allocated = self.chain.size(task.value)
            return
        block, segment = task.block, task.segment
        assert block is not None and segment is not None
        level = block.level
        self.open(block)
        while block.op < segment.spec.last:
            out, failed, futures = self.run_op(block)
            if failed:
                block.out, block.pending, task.failed = out, (), failed
                self.weigh(task, block)
                return
            if futures:
                block.out, task.futures = out, futures
                self.weigh(task, block)
                return
            self.reshape(block, out)
        if task.slots is not None and level == 0:
            for slot, row, begin, end in task.slots:
                grown = 0
                for unit in range(begin, min(end, block.start + len(block.cells))):
                    assert row + unit - begin not in slot.buffer, "a row was written twice"
                    slot.buffer[row + unit - begin] = block.cells[unit - block.start]
                    grown += self.chain.size(block.cells[unit - block.start])
                if self.chain.spec.memory is not None and grown:
                    task.growth = [*task.growth, (slot, grown)]
        self.weigh(task, block)

    def weigh(self, task: Task, block: Block) -> None:
        if self.chain.spec.memory is not None:
            cells = block.cells if block.out is None else block.out
            sizes = [self.chain.size(cell) for cell in cells or ()]
            block.size, task.largest = sum(sizes), max(sizes, default=0)

    def open(self, block: Block) -> None:
        """Units become cells."""
        if block.cells is None:
            block.cells = [(unit,) for unit in range(block.start, block.stop)]
            if block.alone:
                block.cells, block.ids = [(block.first,)], [block.first]
        elif block.level and block.op == 0 and block.out is None:
            block.cells = [known(cell) for cell in block.cells]

    def run_op(self, block: Block) -> tuple[list[object], list[tuple[int, BaseException]], int]:
        assert block.cells is not None
        out = block.out or [None] * len(block.cells)
        pending = block.pending
        if block.out is None:
            pending = [Pending(index, AGAIN, None) for index in range(len(block.cells))]
        failed: list[tuple[int, BaseException]] = []
        for entry in pending:
            value = block.cells[entry.cell]
            if entry.how == SUBSTITUTE:
                result = substitutes(self.chain.kinds[block.level][block.op], value)
            elif entry.how == RESOLVE:
                result = out[entry.cell]
                if isinstance(result, Promise):
                    result = result.value
            else:
                ident = block.ident(entry.cell)
                if self.hangs(block.level, block.op, ident):
                    self.attempts[block.level, block.op, as_tuple(ident)] = 1  # it came back late
                    result = Broken(block.level, block.op, as_tuple(ident))
                else:
                    result = self.attempt(block.level, block.op, ident, value)
            out[entry.cell] = result
            if isinstance(result, Broken):
                failed.append((entry.cell, result))
        return out, failed, sum(isinstance(value, Promise) for value in out)

    def reshape(self, block: Block, out: list[object]) -> None:
        kind = self.chain.kinds[block.level][block.op]
        assert block.cells is not None
        ids = [block.ident(index) for index in range(len(block.cells))]
        if kind == MAP:
            block.cells = out
        elif kind == FILTER:
            block.cells = [cell for cell, keep in zip(block.cells, out, strict=True) if keep]
            block.ids = [ident for ident, keep in zip(ids, out, strict=True) if keep]
        else:
            block.cells = [child for values in out for child in values]  # type: ignore[attr-defined]
            block.ids = [
                (*as_tuple(ident), number)
                for ident, values in zip(ids, out, strict=True)
                for number in range(len(values))  # type: ignore[arg-type]
            ]
        block.out, block.pending, block.tries = None, (), None
        block.op += 1

    # Time

    def expire(self, index: int) -> bool:
        """If the op that a running task is at hangs: end its lease there."""
        task, _ = self.running[index]
        block, segment = task.block, task.segment
        if block is None or segment is None or block.op >= segment.spec.last:
            return False
        op = segment.spec.last - 1
        if self.chain.spec.levels[block.level].ops[op].timeout is None or block.op != op:
            return False
        self.open(block)
        todo = list(block.pending)
        if block.out is None:
            todo = [Pending(index, AGAIN, None) for index in range(len(block.cells))]
        out = list(block.out or [None] * len(block.cells))
        failed: list[tuple[int, BaseException]] = []
        for number, entry in enumerate(todo):
            ident = block.ident(entry.cell)
            if entry.how == AGAIN and self.hangs(block.level, op, ident):
                cell = (block.level, op, as_tuple(ident))
                self.attempts[cell] = 1
                half = Block(block.level, op, block.start, block.count, list(block.cells))
                half.ids = None if block.ids is None else list(block.ids)
                half.alone, half.first, half.tries = block.alone, block.first, block.tries
                half.skips, half.failure, half.size = block.skips, block.failure, block.size
                half.out = out
                failed.append((entry.cell, Broken(*cell)))
                assert self.core.expire(task, half, failed, todo[number + 1 :], self.now)
                self.leave(task)
                self.running.pop(index)
                self.given_up.append(task)
                return True
            value = block.cells[entry.cell]
            if entry.how == SUBSTITUTE:
                out[entry.cell] = substitutes(self.chain.kinds[block.level][op], value)
                continue
            result = self.attempt(block.level, op, ident, value)
            out[entry.cell] = result
            if isinstance(result, Broken):
                failed.append((entry.cell, result))
        # Nothing hangs: all was done just now, so the task is complete, and never expires.
        block.out, block.pending = out, ()
        task.failed = failed
        self.running.pop(index)
        self.leave(task)
        if not failed:
            self.reshape(block, out)
            self.work(task)
        self.core.finish(task, self.now)
        return True

    def settle(self, index: int) -> None:
        task, _ = self.promises.pop(index)
        self.core.settle(task, self.now)

    def late(self) -> None:
        """A thread that was given up comes back: it must not count."""
        self.core.finish(self.given_up.pop(), self.now)

    # The stream

    def arrive(self) -> None:
        chain = self.chain
        end = chain.units if chain.fails_at is None else min(chain.fails_at, chain.units)
        if self.read < end:
            self.read = min(end, self.read + self.random.randint(1, 5))
            self.core.arrived(self.read)
        else:
            self.told_end = True
            fails = chain.fails_at is not None and chain.fails_at < chain.units
            self.core.end(self.read, self.now, Broken(0, -1, (self.read,)) if fails else None)

    # All together

    def step(self) -> bool:
        """Do one thing that can be done; False when nothing can."""
        choices = [(self.complete, n) for n in range(len(self.running))]
        choices += [(self.expire, n) for n in range(len(self.running))]
        choices += [(self.settle, n) for n in range(len(self.promises))]
        workers = self.chain.spec.workers
        for kind, count in enumerate(workers):
            if sum(other == kind for _, other in self.running) < count:
                choices.append((self.take, kind))
        if self.untaken:
            choices.append((lambda _: self.consume(), 0))
        if self.given_up:
            choices.append((lambda _: self.late(), 0))
        if not self.told_end:
            choices.append((lambda _: self.arrive(), 0))
        deadline = self.core.deadline()
        if deadline is not None:
            choices.append((lambda _: self.advance(), 0))
        while choices:
            act, argument = choices.pop(self.random.randrange(len(choices)))
            done = act(argument)
            self.pick_up()
            self.check()
            if done is not False:
                return True
        return False

    def advance(self) -> None:
        deadline = self.core.deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        self.core.tick(self.now)

    def check(self) -> None:
        core, ahead = self.core, self.core.ahead
        kinds = range(len(self.chain.spec.workers))
        waits = (
            self.running
            or self.promises
            or self.untaken
            or not self.told_end
            or core.deadline() is not None
        )
        if not self.ended and not waits:
            assert any(map(core.can, kinds)), (
                "work remains, nobody runs, nobody can be given a task"
            )
        if core.spent():
            assert self.ended, "the threads may leave, and the end was not told"
        assert core.running == len(self.running)
        for segment in core.segments:
            limit = segment.spec.in_flight
            # A unit that a flat_map of the segment made into many is let in as one.
            many = max(4, 3 ** self.chain.kinds[segment.level.number].count(FLAT_MAP))
            assert limit is None or segment.in_flight <= limit * many
        self.check_bytes()
        size = core.head.size
        threads = self.chain.spec.workers[core.head.spec.kind]
        # Blocks may have become smaller since: the largest window so far is what counts.
        window = self.window = max(self.window, ahead.least + size, 4 * size * threads)
        source = core.source
        span = ahead.claimed - source.front
        undecided = span - source.kept
        live = span - source.overtaken + source.judged - ahead.credited
        if not core.stalls and core.source.failure is None:
            assert undecided <= 2 * window, "look-ahead without bound"
            assert live <= window or FLAT_MAP in self.chain.kinds[0], "look-ahead without bound"

    def check_bytes(self) -> None:
        """What is charged is what is there, and at most the budget and the largest sample for
        each thread; nothing is known beforehand of batches and of samples made into many."""
        ahead, spec = self.core.ahead, self.chain.spec
        assert ahead.charged >= 0
        if spec.memory is None or FLAT_MAP in self.chain.kinds[0] or self.core.stalls:
            return
        if len(spec.levels) == 1 and spec.memory >= 10:
            most = spec.memory + 10 * sum(spec.workers)
            assert ahead.charged <= most, "bytes beyond the budget"


def known(value: object) -> object:
    """A batch as a list, whether its rows were written early or late."""
    if isinstance(value, Slot):
        assert isinstance(value.buffer, dict)
        assert sorted(value.buffer) == list(range(len(value.buffer)))
        return [value.buffer[row] for row in range(value.rows)]
    return value


# Chains -------------------------------------------------------------------------------------

thens = st.sampled_from(["raise", "raise", "skip", "substitute"])


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    workers = [draw(st.integers(1, 3))]
    first_kinds, first = draw(levels(workers, upper=False))
    specs, kinds = [first], [first_kinds]
    while draw(st.booleans()) and len(specs) < 3:
        size = draw(st.integers(1, 4))
        drop = draw(st.booleans())
        below = specs[-1]
        early = len(specs) == 1 and all(kind == MAP for kind in kinds[-1])
        early = early and all(op.policy.then != "skip" for op in below.ops)
        if early and draw(st.integers(0, 3)):
            segments = below.segments
            if below.ops and below.ops[-1].timeout is not None:
                segments = (*segments, SegmentSpec(len(below.ops), len(below.ops)))
            specs[-1] = LevelSpec(below.ops, segments, rows=size, drop_last=drop)
        else:
            every = draw(st.sampled_from([None, None, 3, 7])) if len(specs) == 1 else None
            specs[-1] = LevelSpec(
                below.ops, below.segments, grouper=Group(size, drop), boundary=every
            )
        upper_kinds, upper = draw(levels(workers, upper=True))
        specs.append(upper)
        kinds.append(upper_kinds)
    stream = draw(st.booleans())
    units = draw(st.integers(0, 25))
    spec = CoreSpec(
        levels=tuple(specs),
        workers=tuple(workers),
        prefetch=draw(st.integers(1, 3)),
        group_size=draw(st.sampled_from([1, 4])),
        block=draw(st.sampled_from([None, 1, 2, 5])),
        memory=draw(st.sampled_from([None, None, 1, 45, 1000])),
    )
    return Chain(
        kinds=tuple(kinds),
        spec=spec,
        units=units,
        stream=stream,
        fails_at=draw(st.none() | st.integers(0, 25)) if stream else None,
        luck=draw(st.integers(0, 1 << 16)),
        alike=draw(st.booleans()),
        unlucky=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])),
    )


@dataclass(frozen=True)
class Group:
    """Makes fresh groupers."""

    size: int
    drop_last: bool

    def __call__(self) -> Batches:
        return Batches(self.size, drop_last=self.drop_last)


@st.composite
def levels(draw: st.DrawFn, workers: list[int], upper: bool) -> tuple[tuple[str, ...], LevelSpec]:
    count = draw(st.integers(0 if upper else 1, 3))
    kinds = tuple(draw(st.sampled_from([MAP, MAP, MAP, FILTER, FLAT_MAP])) for _ in range(count))
    ops, segments = [], []
    begin = 0
    for number in range(count):
        then = draw(thens)
        if upper and then == "skip":
            then = "raise"
        policy = Policy(
            then,
            retries=draw(st.integers(0, 2)),
            backoff=draw(st.sampled_from([None, backoff])),
            max_skips=draw(st.none() | st.integers(1, 4)) if then == "skip" else None,
        )
        style = draw(
            st.sampled_from(["plain"] * 4 + ["timed", "serial", "limit", "threads", "futures"])
        )
        if style == "futures" and kinds[number] != MAP:
            style = "plain"
        ops.append(OpSpec(f"op{number}", policy, 1e9 if style == "timed" else None))
        cut = style != "plain" or draw(st.booleans()) or number == count - 1
        alone = style in ("serial", "limit", "threads")
        if alone and begin < number:
            segments.append(SegmentSpec(begin, number))
            begin = number
        if cut:
            kind = 0
            if style == "threads":
                workers.append(draw(st.integers(1, 3)))
                kind = len(workers) - 1
            segments.append(
                SegmentSpec(
                    begin,
                    number + 1,
                    kind=kind,
                    limit=1 if style == "limit" else None,
                    serial=style == "serial",
                    in_flight=draw(st.integers(1, 3)) if style == "futures" else None,
                )
            )
            begin = number + 1
    return kinds, LevelSpec(tuple(ops), tuple(segments) or (SegmentSpec(0, 0),))


def backoff(attempt: int) -> float:
    return 0.5 * attempt


def run_to_the_end(world: World) -> None:
    steps = 0
    while not world.ended or world.untaken or world.running:
        assert world.step(), "nothing can happen, and the end was not told"
        steps += 1
        assert steps < 20_000, "no end in sight"


CASES = settings(
    max_examples=300 * SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@CASES
@given(chain=chains(), seed=st.integers(0, 1 << 30))
def test_every_order_of_events_gives_the_sequential_result(chain: Chain, seed: int) -> None:
    world = World(chain, Random(seed))
    run_to_the_end(world)
    values, failure = expected(chain)
    assert world.got == values
    assert place_of(world.failure) == failure
    if failure is None and not world.core.stalls:
        assert world.core.ahead.largest <= 10 or FLAT_MAP in chain.kinds[0]
    if failure is None and not drops_last(chain):
        assert world.core.ahead.charged == 0, "bytes are still charged when all was taken"


@CASES
@given(chain=chains(), seed=st.integers(0, 1 << 30))
def test_completion_order_delivers_the_same_values(chain: Chain, seed: int) -> None:
    values, failure = expected(chain)
    if failure is not None:
        return
    spec = CoreSpec(**{**vars(chain.spec), "ordered": False})
    world = World(Chain(**{**vars(chain), "spec": spec}), Random(seed))
    run_to_the_end(world)
    assert sorted(map(repr, world.got)) == sorted(map(repr, values))
    assert world.failure is None


@CASES
@given(chain=chains(), seed=st.integers(0, 1 << 30), when=st.integers(0, 60))
def test_after_close_nothing_is_handed_out_and_nothing_breaks(
    chain: Chain, seed: int, when: int
) -> None:
    world = World(chain, Random(seed))
    for _ in range(when):
        if world.ended or not world.step():
            break
    world.core.close()
    values, _ = expected(chain)
    assert world.got == values[: len(world.got)]
    for kind in range(len(chain.spec.workers)):
        assert not world.core.can(kind)
        assert world.core.take(kind, world.now) is None
    assert world.core.spent()
    while world.running:
        world.complete(0)
    while world.promises:
        world.settle(0)


@CASES
@given(chain=chains(), seed=st.integers(0, 1 << 30))
def test_a_run_can_be_cut_after_any_value_and_continued(chain: Chain, seed: int) -> None:
    """Resume at the point of some delivery: the same values follow, and none twice."""
    values, failure = expected(chain)
    if chain.stream or failure is not None or not values:
        return
    if any(op.policy.max_skips is not None for level in chain.spec.levels for op in level.ops):
        return
    random = Random(seed)
    cut = random.randrange(len(values))
    world = World(chain, random)
    point, seen = None, 0
    while point is None:
        assert world.step()
        while world.untaken and point is None:
            delivery = world.untaken[0]
            if seen + len(delivery.values) > cut:
                point = delivery.point(cut - seen)
            else:
                seen += len(delivery.values)
                world.consume()
    again = World(chain, random)
    again.core = Core(chain.spec, RunStart(chain.units, point=point))
    again.got.clear()
    again.untaken.clear()
    again.ended = False
    again.pick_up()
    run_to_the_end(again)
    assert again.got == values[cut + 1 :]


def drops_last(chain: Chain) -> bool:
    for level in chain.spec.levels:
        if level.drop_last or (isinstance(level.grouper, Group) and level.grouper.drop_last):
            return True
    return False


def place_of(failure: Failure | None) -> tuple[int, tuple[int, ...], int] | None:
    if failure is None:
        return None
    return failure.level, as_tuple(failure.ident), failure.op


ALONE = """
import os, sys, types
root = sys.argv[1]
for name in ("nogil_loader", "nogil_loader.engine", "nogil_loader.position"):
    package = types.ModuleType(name)  # without what its __init__ imports
    package.__path__ = [os.path.join(root, *name.split("."))]
    sys.modules[name] = package
for name in ("threading", "queue", "concurrent", "asyncio", "numpy", "time"):
    sys.modules[name] = None
from nogil_loader.engine.core import Core, CoreSpec, LevelSpec, OpSpec, RunStart, SegmentSpec
core = Core(CoreSpec((LevelSpec((OpSpec("a"),), (SegmentSpec(0, 1),)),)), RunStart(1))
task = core.take(0, 0.0)
task.block.cells, task.block.op = ["x"], 1
core.finish(task, 0.0)
assert core.deliveries[0].values == ["x"] and core.finished
sys.stdout.write("done")
sys.stdout.flush()
os._exit(0)
"""


def test_the_core_knows_of_no_thread_queue_clock_or_array() -> None:
    root = str(Path(__file__).parents[2])
    child = subprocess.run([sys.executable, "-c", ALONE, root], capture_output=True, text=True)
    assert child.stdout == "done", child.stderr


@pytest.mark.parametrize("ident", [3, (3,), (3, 1)])
def test_a_place_belongs_to_its_unit(ident: Ident) -> None:
    assert unit_of(ident) == 3

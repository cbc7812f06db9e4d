"""What a run executes: the ops of every level, the data, and how groups become batches.

A ``Program`` is made by ``plan`` for one pass and shared, read-only, by its workers; what a
worker needs for itself is bound once, in its own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nogil_loader.device.transfer import Transfer
from nogil_loader.engine.batches import Allocate
from nogil_loader.engine.cached import Keep, Lookup, PassBy, Store
from nogil_loader.engine.calls import on_field
from nogil_loader.engine.core import Block, CoreSpec
from nogil_loader.engine.ops import KEEP, READ, SEND, Fn, Op, Step, bind
from nogil_loader.engine.warm import PerWorker, Warm
from nogil_loader.fallback.remote import Remote
from nogil_loader.position.keys import Keyed
from nogil_loader.position.order import Order, Sequential
from nogil_loader.sources.base import Reader, StreamReader
from nogil_loader.sources.combine import MixedReader

Collate: TypeAlias = "Callable[[list[object], object], object]"
"""(samples in row order, layout of the group) -> batch."""
AnyReader: TypeAlias = "Reader | StreamReader | MixedReader"

_AHEAD = 1024
"""Units that are located at a time."""


@dataclass(frozen=True)
class Program:
    """See the top of this module."""

    core: CoreSpec
    ops: tuple[tuple[Op, ...], ...]
    collates: tuple[Collate | None, ...]
    """By level: how its groups become batches; None stacks them."""
    reader: AnyReader
    order: Order | None
    """Where units are in the data; None for a stream."""
    epoch: int = 0
    seed: int = 0
    allocate: Allocate = np.empty
    kinds: tuple[str, ...] = ("workers",)
    """Names of the kinds of threads."""
    warm: Warm = field(default_factory=Warm)
    """Objects that workers have for themselves."""
    store: Store | None = None
    """The cache, if there is one."""
    transfer: Transfer[object] | None = None
    """What takes batches to a device, if anything does."""
    marks: bool = False
    """Whether samples say if they are padding, as the remainder of a shard."""
    keepers: tuple[Callable[[], None], ...] = ()
    """Called once when the run is over."""


class Places:
    """Where units are, for one worker: a stretch of units is located at a time."""

    def __init__(self, program: Program) -> None:
        order = program.order
        self._order = order
        self._epoch = program.epoch
        self._reader = program.reader
        self.plain = order is None or isinstance(order, Sequential)
        """Whether unit, position and index are one and the same."""
        self._start = self._stop = 0
        self._positions: list[int] = []
        self._indices: list[int] = []
        self._sources: list[int] | None = None
        self._masked: list[bool] | None = None

    def _locate(self, unit: int) -> None:
        order = self._order
        assert order is not None
        stop = unit + _AHEAD
        if order.length is not None and unit < order.length:  # beyond: completed by first units
            stop = min(stop, order.length)
        units: NDArray[np.int64] = np.arange(unit, stop, dtype=np.int64)
        located = order.locate(units, self._epoch)
        self._positions = located.positions.tolist()
        self._indices = located.indices.tolist()
        self._sources = None if located.sources is None else located.sources.tolist()
        self._masked = None if located.masked is None else located.masked.tolist()
        self._start, self._stop = unit, stop

    def masked(self, unit: int) -> bool:
        """Whether the unit is padding: shown again only to make ranks even."""
        self.index(unit)
        return self._masked is not None and self._masked[unit - self._start]

    def position(self, unit: int) -> int:
        """The global position of a unit of level 0."""
        if self.plain:
            return unit
        if not self._start <= unit < self._stop:
            self._locate(unit)
        return self._positions[unit - self._start]

    def index(self, unit: int) -> int:
        """The identity of the unit in its source."""
        if self.plain:
            return unit
        if not self._start <= unit < self._stop:
            self._locate(unit)
        return self._indices[unit - self._start]

    def source(self, unit: int) -> int:
        """The number of the source that the unit comes from, in a mix."""
        self.index(unit)
        return 0 if self._sources is None else self._sources[unit - self._start]

    def reference(self, block: Block, index: int) -> object:
        """What names a cell of a block to people."""
        ident = block.ident(index)
        if block.level or block.alone:
            return self.ref(block.first)
        return self.ref(ident if isinstance(ident, int) else ident[0])

    def ref(self, unit: int) -> object:
        """What names a unit of level 0 to people."""
        reader = self._reader
        if isinstance(reader, MixedReader):
            return reader.ref(self.source(unit), self.index(unit))
        return reader.ref(self.index(unit))


def bind_steps(program: Program, places: Places) -> list[list[Step]]:
    """Every op of every level, bound for the calling thread."""
    return [[_bind(op, program, places) for op in ops] for ops in program.ops]


def _bind(op: Op, program: Program, places: Places) -> Step:
    store = program.store
    if op.kind == READ:
        read = _bind_read(program, places)
        if program.marks:
            read = _Marked(read, places)
        if op.cached and store is not None:
            return Step(op, Lookup(store, read, places.index), None)
        return Step(op, read, None)
    if op.kind == SEND:
        assert program.transfer is not None
        return Step(op, program.transfer, None)
    if op.kind == KEEP:
        assert store is not None
        return Step(op, Keep(store), None)
    if op.remote:
        assert isinstance(op.fn, Remote)
        step = Step(op, op.fn, None)
        step.remote = _Lent(program.warm, op.fn)
        step.randomness = (program.seed, program.epoch, op.name) if op.rng else None
        return step
    fn = program.warm.of(op.fn, op.fn.factory) if isinstance(op.fn, PerWorker) else bind(op.fn)
    # What a cache keeps must not depend on the epoch that happened to make it.
    epoch = 0 if op.cached else program.epoch
    keyed = Keyed(program.seed, epoch, op.name) if op.rng else None
    if op.cached:
        return Step(op, PassBy(on_field(fn, op), keyed), None, whole=True)
    return Step(op, fn, keyed)


class _Lent:
    """Runs a block in whichever worker process of the op is free."""

    def __init__(self, warm: Warm, remote: Remote) -> None:
        self._warm = warm
        self._remote = remote
        self.spent = 0.0

    def run(
        self,
        cells: Sequence[object],
        keys: Sequence[tuple[int, ...]] | None = None,
        randomness: tuple[int, int, str] | None = None,
    ) -> list[tuple[bool, object]]:
        driver = self._warm.lend(self._remote, self._remote.bind)
        try:
            return driver.run(cells, keys, randomness)
        finally:
            self.spent = driver.spent
            self._warm.give_back(self._remote, driver)


class _Marked:
    """Reading under ``shard(remainder="pad")``: dicts get a field ``"masked"``."""

    def __init__(self, read: Fn, places: Places) -> None:
        self._read = read
        self._places = places

    def __call__(self, unit: int) -> object:
        sample = self._read(unit)
        if not isinstance(sample, dict):
            raise TypeError(
                "shard(remainder='pad') marks its padding in a field \"masked\": samples must be "
                f"dicts, not {type(sample).__name__}; or use remainder='drop' or 'wrap'"
            )
        return {**sample, "masked": self._places.masked(unit)}


def _bind_read(program: Program, places: Places) -> Fn:
    reader = program.reader
    index = places.index
    if isinstance(reader, MixedReader):
        mixed, source = reader.bind(), places.source

        def read_one_of(unit: int) -> object:
            return mixed(source(unit), index(unit))

        return read_one_of
    assert isinstance(reader, Reader)
    get = reader.bind()
    if places.plain:
        return get

    def read(unit: int) -> object:
        return get(index(unit))

    return read

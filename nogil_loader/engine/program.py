"""What a run executes: the ops of every level, the data, and how groups become batches.

A ``Program`` is made by ``plan`` for one pass and shared, read-only, by its workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nogil_loader.engine.batches import Allocate
from nogil_loader.engine.core import Block, CoreSpec
from nogil_loader.engine.steps import FLAT_MAP, MEASURE, READ, Op, Step, bind
from nogil_loader.position.keys import Keyed
from nogil_loader.position.order import Order, Sequential
from nogil_loader.sources.base import Reader, StreamReader

Collate: TypeAlias = "Callable[[list[object], object], object]"
"""(samples in row order, layout of the group) -> batch."""

_AHEAD = 1024
"""Units that are located at a time."""


@dataclass(frozen=True)
class Program:
    """See the top of this module."""

    core: CoreSpec
    ops: tuple[tuple[Op, ...], ...]
    collates: tuple[Collate | None, ...]
    """By level: how its groups become batches; None stacks them."""
    reader: Reader | StreamReader
    order: Order | None
    """Where units are in the data; None for a stream."""
    epoch: int = 0
    seed: int = 0
    allocate: Allocate = np.empty
    kinds: tuple[str, ...] = ("workers",)
    """Names of the kinds of threads."""
    keepers: tuple[Callable[[], None], ...] = field(default=())
    """Called once when the run is over (caches, devices, process pools)."""


class Places:
    """Where units are, for one worker: a stretch of units is located at a time."""

    __slots__ = (
        "_epoch",
        "_indices",
        "_order",
        "_positions",
        "_reader",
        "_start",
        "_stop",
        "plain",
    )

    def __init__(self, program: Program) -> None:
        order = program.order
        self._order = order
        self._epoch = program.epoch
        self._reader = program.reader
        self.plain = order is None or isinstance(order, Sequential)
        self._start = self._stop = 0
        self._positions: list[int] = []
        self._indices: list[int] = []

    def _locate(self, unit: int) -> None:
        order = self._order
        assert order is not None
        stop = unit + _AHEAD
        if order.length is not None:
            stop = min(stop, order.length)
        units: NDArray[np.int64] = np.arange(unit, stop, dtype=np.int64)
        located = order.locate(units, self._epoch)
        self._positions = located.positions.tolist()
        self._indices = located.indices.tolist()
        self._start, self._stop = unit, stop

    def position(self, unit: int) -> int:
        """The global position of a unit of level 0."""
        if self.plain:
            return unit
        if not self._start <= unit < self._stop:
            self._locate(unit)
        return self._positions[unit - self._start]

    def index(self, unit: int) -> int:
        """The identity of the unit in the source."""
        if self.plain:
            return unit
        if not self._start <= unit < self._stop:
            self._locate(unit)
        return self._indices[unit - self._start]

    def reference(self, block: Block, index: int) -> object:
        """What names a cell of a block to people."""
        ident = block.ident(index)
        if block.level or block.alone:
            return self.ref(block.first)
        return self.ref(ident if isinstance(ident, int) else ident[0])

    def ref(self, unit: int) -> object:
        """What names a unit of level 0 to people."""
        return self._reader.ref(self.index(unit))


def bind_steps(program: Program, places: Places) -> list[list[Step]]:
    """Every op of every level, bound for the calling thread."""
    return [[_bind(op, program, places) for op in ops] for ops in program.ops]


def _bind(op: Op, program: Program, places: Places) -> Step:
    keyed = Keyed(program.seed, program.epoch, op.name) if op.rng else None
    if op.kind == READ:
        return Step(op, _bind_read(program, places), keyed)
    return Step(op, bind(op.fn), keyed)


def _bind_read(program: Program, places: Places) -> Callable[[int], object]:
    reader = program.reader
    assert isinstance(reader, Reader)
    get = reader.bind()
    if places.plain:
        return get
    index = places.index

    def read(unit: int) -> object:
        return get(index(unit))

    return read


def names(levels: Sequence[Sequence[Op]]) -> list[str]:
    """The names of all ops, in order, as people know them."""
    return [op.name for ops in levels for op in ops if op.kind != MEASURE]


__all__ = ["FLAT_MAP", "Collate", "Places", "Program", "bind_steps", "names"]

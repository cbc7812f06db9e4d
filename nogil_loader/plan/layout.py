"""What a chain comes to: its levels, and the settings beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nogil_loader import stages
from nogil_loader.engine.core import LevelSpec, OpSpec, SegmentSpec
from nogil_loader.engine.ops import Op
from nogil_loader.engine.program import Collate
from nogil_loader.position.grouping import Grouper


@dataclass
class Level:
    """A level while the chain is walked."""

    ops: list[Op] = field(default_factory=list)
    specs: list[OpSpec] = field(default_factory=list)
    segments: list[SegmentSpec] = field(default_factory=list)
    one_to_one: bool = True
    closed: bool = False
    """The last segment takes no further op."""
    rows: int | None = None
    drop_last: bool = False
    grouper: Callable[[], Grouper] | None = None
    collate: Collate | None = None
    neighbours: bool = True
    max_wait: float | None = None
    complete: bool = False
    """Has as many outputs as units, whatever is skipped: first units come again."""
    apart: bool = False
    """Begins with the rows of batches, as they were stacked."""
    boundary: int | None = None

    def outputs(self, count: int) -> int | None:
        """Units of the next level that ``count`` units become, all stages being one-to-one."""
        if self.rows is not None:
            return count // self.rows if self.drop_last else -(-count // self.rows)
        if self.grouper is None:
            return count
        grouper = self.grouper()
        if grouper.needs_size:
            return None
        return len(grouper.push(count)) + len(grouper.flush())

    def spec(self, bottom: bool) -> LevelSpec:
        segments = tuple(self.segments)
        if not segments and bottom:
            segments = (SegmentSpec(0, 0),)  # something must claim the units of a stream
        if self.rows is not None and self.specs and self.specs[-1].timeout is not None:
            # A hung op must never reach the rows: they are written by a task of their own.
            last = len(self.specs)
            segments = (*segments, SegmentSpec(last, last))
        return LevelSpec(
            ops=tuple(self.specs),
            segments=segments,
            rows=self.rows,
            drop_last=self.drop_last,
            grouper=self.grouper,
            neighbours=self.neighbours,
            max_wait=self.max_wait,
            complete=self.complete,
            apart=self.apart,
            boundary=self.boundary,
        )


@dataclass(frozen=True)
class Layout:
    """What a chain comes to, before any data is opened."""

    levels: tuple[Level, ...]
    orders: tuple[stages.Stage, ...]
    """Stages that are arithmetic over positions, in order."""
    repeat_after_batch: int | None
    threads: tuple[int, ...]
    """Private threads by kind, from 1."""
    kinds: tuple[str, ...]
    prefetch: int
    workers: stages.Workers
    memory: int | None
    group_size: int
    shard: stages.Shard | None
    device: stages.ToDevice | None
    fixed: str | None
    """Why another number of ranks cannot go on from a state, if so."""
    timed_batches: bool
    """Whether time decides what is in a batch, so that there is no resume."""

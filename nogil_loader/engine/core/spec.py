"""What the core is told about a run: frozen descriptions, made by ``plan``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nogil_loader.engine.core.level import Point
    from nogil_loader.position.grouping import Grouper
    from nogil_loader.position.rest import Wanted

CPU = 0
"""The kind of the shared workers; higher kinds are private sets of threads."""


@dataclass(frozen=True)
class Policy:
    """What follows when an op raises."""

    then: str = "raise"
    """``"raise"``, ``"skip"`` or ``"substitute"``, once the retries are used up."""
    retries: int = 0
    backoff: Callable[[int], float] | None = None
    """Seconds to wait before retry number n (from 1)."""
    only: tuple[type[BaseException], ...] = (Exception,)
    """What is retried, skipped or substituted; anything else is raised."""
    max_skips: int | float | None = None
    """A count (int), or a share of the units seen so far (float below 1)."""


@dataclass(frozen=True)
class OpSpec:
    """One op, as far as order, failure and scheduling are concerned."""

    name: str
    policy: Policy = field(default_factory=Policy)
    timeout: float | None = None


@dataclass(frozen=True)
class SegmentSpec:
    """Ops ``first … last - 1`` of a level, which one worker carries a block through."""

    first: int
    last: int
    kind: int = CPU
    limit: int | None = None
    """At most this many workers inside at once."""
    serial: bool = False
    """One block at a time, in unit order."""
    in_flight: int | None = None
    """The last op may return futures, at most this many unsettled at once."""
    auto: bool = False
    """How many of its workers are inside follows what is measured."""


@dataclass(frozen=True)
class LevelSpec:
    """The ops between two grouping stages, and how their outputs are grouped."""

    ops: tuple[OpSpec, ...] = ()
    segments: tuple[SegmentSpec, ...] = ()
    rows: int | None = None
    """Early rows: the batch size, where row = unit mod rows and workers write at once."""
    drop_last: bool = False
    """With early rows: a last batch with fewer rows is not made."""
    grouper: Callable[[], Grouper] | None = None
    """Late rows: what ranks and groups the survivors. Neither: outputs are delivered."""
    neighbours: bool = True
    """Whether every group is a run of neighbouring outputs (batches), or any set (bins)."""
    max_wait: float | None = None
    """Close a group when its first member has waited that many seconds."""
    complete: bool = False
    """For each unit that is skipped one more is run: a rank keeps its number of outputs."""
    apart: bool = False
    """The first op takes batches apart, and their rows are the samples they were made of."""
    boundary: int | None = None
    """Groups end after every so many units (the end of an epoch inside the stream)."""


@dataclass(frozen=True)
class CoreSpec:
    """A whole run."""

    levels: tuple[LevelSpec, ...]
    workers: tuple[int, ...] = (1,)
    """How many threads there are of each kind; the shared workers come first."""
    prefetch: int = 2
    """Batches (or, without batches, samples) to be ready before the consumer asks."""
    group_size: int = 1
    """Outputs of level 0 that one delivery needs, as far as is known beforehand."""
    ordered: bool = True
    block: int | None = None
    """Units a block, where they should not adapt."""
    target: float = 8e-3
    """Seconds that a block should take: the engine's part of it, some 60 us where the ops
    evict its code from the caches, stays below one percent; and for so much work a
    trip to a worker process and back, which costs some 300 us, is worth it."""
    memory: int | None = None
    """Bytes in flight, or None for no bound but the window."""


@dataclass(frozen=True)
class RunStart:
    """Where a run begins and how far it goes."""

    length: int | None = None
    """Units of level 0; None while it is not known (a stream) or endless."""
    stream: bool = False
    """Units become available as ``Core.arrived`` tells."""
    passed: int = 0
    """Streams: samples to read and forget before the first unit."""
    point: Point | None = None
    """Where an earlier run stopped."""
    partial: Mapping[int, Wanted] = field(default_factory=dict)
    """Units of level 0 of which only some children are still to be shown."""
    beyond: frozenset[int] = frozenset()
    """Numbers of last-level units delivered out of order beyond the point."""

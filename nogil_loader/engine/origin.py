"""What a run says of itself in a state, and how its points become levels of one.

Guarantees: a state is a function of what was returned to the consumer last; it never looks
at what workers are doing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nogil_loader.engine.core import Delivery, Point
from nogil_loader.position.rest import LevelState, Rest
from nogil_loader.position.state import Fingerprint, State
from nogil_loader.sources.base import JSON


@dataclass(frozen=True)
class Origin:
    """What does not change while a run goes."""

    fingerprint: Callable[[], Fingerprint] = dict
    """Asked for with the first state only: it may have to look at every file."""
    seed: int = 0
    epoch: int = 0
    length: int | None = None
    """Positions in the epoch's global order."""
    rank: int = 0
    world: int = 1
    rest: Rest = field(default_factory=Rest)
    point: Point | None = None
    """Where the run began."""
    beyond: tuple[int, ...] = ()
    """Batches behind it that an earlier run delivered, in completion order."""
    batches: int | None = None
    """Where ``shard(batches=N)`` stops this run."""
    levels: int = 1
    refusal: str | None = None
    """Why there can be no state, if so."""

    def state(
        self,
        point: Point | None,
        beyond: tuple[int, ...] = (),
        snapshot: tuple[int, JSON] | None = None,
    ) -> dict[str, JSON]:
        """The state at a point, as JSON."""
        if self.refusal is not None:
            raise ValueError(self.refusal)
        point = point if point is not None else self.point
        return State(
            fingerprint=self.fingerprint(),
            seed=self.seed,
            epoch=self.epoch,
            length=self.length,
            levels=levels_of(point, self.levels),
            rank=self.rank,
            world=self.world,
            rest=self.rest,
            beyond=beyond,
            snapshot=snapshot,
            samples=samples_of(point),
            batches=self.batches,
        ).to_json()


class Returned:
    """Which batches the consumer got, where they come in any order: all up to a point, and
    some beyond it. Those beyond that an earlier run delivered are made again, only to find out
    where they end, and told by a delivery of nothing."""

    def __init__(self, origin: Origin) -> None:
        point = origin.point
        self._point = point
        self._next = 0 if point is None else point.unit
        self._ends: dict[int, Point] = {}
        self._earlier = set(origin.beyond)
        self._whole = origin.levels > 1

    def add(self, delivery: Delivery, index: int) -> None:
        """A batch was handed out."""
        if len(delivery.values) > 1 or delivery.ids is not None:
            self._whole = False  # samples, not batches: they have no number of their own
            return
        self._ends[delivery.start] = delivery.point(index)
        self._advance()

    def pass_over(self, delivery: Delivery) -> None:
        """A batch that an earlier run handed out."""
        self._earlier.discard(delivery.start)
        self._ends[delivery.start] = delivery.point(0)
        self._advance()

    def _advance(self) -> None:
        while self._next in self._ends:
            self._point = self._ends.pop(self._next)
            self._next += 1

    def state(self) -> tuple[Point | None, tuple[int, ...]]:
        """The point, and the numbers of the batches beyond it."""
        if not self._whole:
            raise ValueError("ordered=False without batches has no state: batch() first")
        return self._point, tuple(sorted(self._earlier.union(self._ends)))


def levels_of(point: Point | None, count: int) -> tuple[LevelState, ...]:
    """A nested point, from the samples up."""
    levels: list[LevelState] = []
    while point is not None:
        levels.insert(0, _level_of(point))
        point = point.below
    return tuple(levels) if levels else (LevelState(),) * count


def samples_of(point: Point | None) -> LevelState | None:
    """The samples of a point inside a batch that is taken apart, each row by itself."""
    while point is not None and point.below is not None and point.below.below is not None:
        point = point.below
    return None if point is None or point.apart is None else _level_of(point.apart)


def _level_of(point: Point) -> LevelState:
    memo: JSON = point.memo  # type: ignore[assignment]
    return LevelState(point.unit, point.after, point.pending, memo, point.dropped)


def point_of(levels: tuple[LevelState, ...], samples: LevelState | None = None) -> Point | None:
    """The other way round."""
    point: Point | None = None
    for number, level in enumerate(levels):
        point = Point(level.unit, level.after, level.pending, level.memo, level.dropped, point)
        if number == 1 and samples is not None:
            point = point._replace(apart=point_of((samples,)))
    return point

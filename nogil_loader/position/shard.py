"""Shards: the units of one rank, and what makes the counts of all ranks equal.

Guarantees
- Rank r owns the units k with ``k mod world == r`` of the order below: no two ranks share
  one, none is left out but the declared remainder.
- With ``remainder="drop"``, ``"pad"`` or ``"wrap"`` every rank has the same number of
  units, hence the same number of batches of any size, with no communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from nogil_loader.position.order import Flags, Located, Order, Over, Positions

Remainder: TypeAlias = Literal["drop", "pad", "wrap", "keep"]


@dataclass(frozen=True, slots=True)
class Shard(Over):
    """Every ``world``-th unit of an order, from ``rank`` on.

    ``remainder`` says what happens when ``world`` does not divide the length:

    - ``"drop"``: the last ``length mod world`` units are shown to nobody.
    - ``"pad"``: short ranks show one of the first units once more, ``masked``.
    - ``"wrap"``: the same, but counted as an ordinary sample (``repeated``).
    - ``"keep"``: short ranks have one unit less. Counts differ between ranks: for
      ``Wrap``, and for pipelines that agree on the number of batches in another way.

    >>> import numpy as np
    >>> from nogil_loader.position.order import Sequential
    >>> Shard(Sequential(5), rank=1, world=2, remainder="pad").locate(np.arange(3)).masked
    array([False, False,  True])
    """

    rank: int
    world: int
    remainder: Remainder = "drop"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} is outside range(world size {self.world})")
        if self.remainder not in get_args(Remainder):
            choices = ", ".join(repr(choice) for choice in get_args(Remainder))
            raise ValueError(f"shard(remainder={self.remainder!r}): choose one of {choices}")

    @property
    def length(self) -> int | None:
        below = self.order.length
        if below is None:
            return None
        if self.remainder == "drop":
            return below // self.world
        if self.remainder == "keep":
            return len(range(self.rank, below, self.world))
        return -(-below // self.world)

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        below = self.order.length
        inner = units * self.world + self.rank
        if below is None or self.remainder in ("drop", "keep"):
            return self.order.locate(inner, epoch)
        again = inner >= below
        if not again.any():
            return self.order.locate(inner, epoch)
        located = self.order.locate(np.where(again, inner % below, inner), epoch)
        if self.remainder == "pad":
            return located._replace(masked=again)
        return located._replace(repeated=again)


@dataclass(frozen=True, slots=True)
class Wrap(Over):
    """The units of one rank, and then again and again, for ``shard(batches=N)``: the run stops
    at N.

    ``again``: what comes after the first round, where that is not all of the rank's part (of
    an epoch that others have begun). Those units are ``repeated``; they keep position and
    epoch, so they are the very same samples.
    """

    again: Order | None = None

    def __post_init__(self) -> None:
        if self._again.length == 0:
            raise ValueError(
                "shard(batches=...): a rank without a single unit has nothing to wrap; "
                "use fewer ranks or more data"
            )

    @property
    def _again(self) -> Order:
        return self.order if self.again is None else self.again

    @property
    def length(self) -> int | None:
        return None

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        count = self.order.length
        if count is None or not (units >= count).any():
            return self.order.locate(units, epoch)
        repeated = units >= count
        located = self._again.locate((units - count) % (self._again.length or 1), epoch)
        if not repeated.all():
            first = self.order.locate(np.where(repeated, 0, units), epoch)
            located = _either(repeated, located, first)
        return located._replace(repeated=repeated)


@dataclass(frozen=True, slots=True)
class Completed(Over):
    """The units of one rank, and beyond them its first ones again, in the place of samples that
    it has to skip: ``repeated``, and with ``masking`` masked, too.

    >>> from nogil_loader.position.order import Sequential
    >>> Completed(Shard(Sequential(6), rank=1, world=2)).locate(np.arange(4)).indices
    array([1, 3, 5, 1])
    """

    masking: bool = False

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        count = self.order.length
        if count is None or not (units >= count).any():
            return self.order.locate(units, epoch)
        repeated = units >= count
        located = self.order.locate(units % count, epoch)
        if not self.masking:
            return located._replace(repeated=repeated)
        masked = repeated if located.masked is None else repeated | located.masked
        return located._replace(repeated=repeated, masked=masked)


def _either(choose: Flags, some: Located, others: Located) -> Located:
    """Unit by unit: of ``some`` where ``choose``, else of ``others``."""
    sources = None
    if some.sources is not None and others.sources is not None:
        sources = np.where(choose, some.sources, others.sources)
    positions = np.where(choose, some.positions, others.positions)
    return Located(positions, np.where(choose, some.indices, others.indices), sources)

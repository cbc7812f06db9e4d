"""Orders: which sample stands at which place, as arithmetic that composes.

Guarantees
- An order is an immutable description; locating is a pure function of (order, epoch,
  units), vectorised, and safe from any thread.
- Memory and time depend on the units asked for, never on the length of the data.
- Every order but ``Shard``, ``Wrap`` and ``Remaining`` is *global*: the position it
  reports is the unit it was asked for. Those three choose among the positions of the
  global order below them and report its numbers. So a position never depends on the rank.

Orders nest, the source innermost::

    Epoch(Shard(Shuffled(Sequential(n), seed=17), rank=0, world=8), epoch=3)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nogil_loader.position.permutation import LONGEST, derive, key_of, permute
from nogil_loader.position.windows import permute_windows

Positions: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


class Located(NamedTuple):
    """Where some units are: arrays parallel to the units asked for."""

    positions: Positions
    """Places in the global order of the epoch: what randomness and elastic resume key by."""
    indices: Positions
    """Identities in the source."""
    sources: Positions | None = None
    """Which source, 0 for the first of a mix; None where there is only one."""
    masked: Flags | None = None
    """True for padding: a sample shown again to fill up, not to be counted. None: nowhere."""
    repeated: Flags | None = None
    """True for a sample shown again on purpose, and counted as such. None: nowhere."""


class Order(Protocol):
    """What every order answers."""

    @property
    def length(self) -> int | None:
        """How many units there are; None for an endless order or an unknown length."""
        ...

    @property
    def sources(self) -> int:
        """How many sources the units come from."""
        ...

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        """Where ``units`` are; int64 of one dimension, each in ``0 <= unit < length``.

        ``epoch`` is one number for all units or an int64 array, one each. A unit outside
        the range is a mistake of the caller that is not always caught.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sequential:
    """The samples of one source as they lie; ``None`` for a stream of unknown length.

    >>> import numpy as np
    >>> Sequential(5).locate(np.array([0, 3])).indices
    array([0, 3])
    """

    length: int | None
    sources: int = 1

    def __post_init__(self) -> None:
        if self.length is not None and not 0 <= self.length <= LONGEST:
            raise ValueError(f"an order has 0 to 2**62 samples, not {self.length}")

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        return Located(units, units)


@dataclass(frozen=True, slots=True)
class Over:
    """What orders over another order have in common: as long, and of as many sources."""

    order: Order

    @property
    def length(self) -> int | None:
        return self.order.length

    @property
    def sources(self) -> int:
        return self.order.sources


@dataclass(frozen=True, slots=True)
class Shuffled(Over):
    """All of a finite order, permuted anew in every epoch.

    >>> import numpy as np
    >>> order = Shuffled(Sequential(6), seed=17)
    >>> sorted(order.locate(np.arange(6), epoch=3).indices.tolist())
    [0, 1, 2, 3, 4, 5]
    """

    seed: int

    def __post_init__(self) -> None:
        if self.order.length is None:
            raise ValueError(
                "an endless order has no shuffle: shuffle before repeat(), or shuffle(window=...)"
            )

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        length = self.order.length or 0
        inner = permute(units, length, key_of("shuffle", self.seed, epoch))
        return self.order.locate(inner, epoch)._replace(positions=units)


@dataclass(frozen=True, slots=True)
class WindowShuffled(Over):
    """Each ``window`` consecutive units permuted among themselves; the last may be shorter.

    What a stream can have instead of a shuffle. Where the length is unknown every window
    is taken to be full: a stream that ends inside one lacks some of its units.
    """

    window: int
    seed: int

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"shuffle(window={self.window}): a window has at least one sample")

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        windows = units // self.window
        starts = windows * self.window
        keys = derive(key_of("window", self.seed, epoch), windows)
        inner = starts + permute_windows(units - starts, starts, self.window, self.length, keys)
        return self.order.locate(inner, epoch)._replace(positions=units)


@dataclass(frozen=True, slots=True)
class Repeat(Over):
    """A finite order again and again: ``times`` passes, or endlessly.

    Pass k of epoch e is epoch ``e * times + k`` of the order below (``e + k`` when
    endless), so a shuffle below is a new one in each pass and two epochs share no pass.
    Positions count on over the passes. ``every``: positions in a pass, where the order below
    is the part of one rank (and so has fewer units).

    >>> import numpy as np
    >>> Repeat(Sequential(3), 2).locate(np.array([1, 4])).indices
    array([1, 1])
    """

    times: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        if self.order.length is None:
            raise ValueError("an endless order cannot be repeated: repeat() it once")
        if self.times is None and self.order.length == 0:
            raise ValueError("repeat() of nothing would never yield: the order below is empty")
        if self.times is not None and self.times < 0:
            raise ValueError(f"repeat({self.times}): the number of passes is negative")

    @property
    def length(self) -> int | None:
        return None if self.times is None else self.times * (self.order.length or 0)

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        passes, inner = np.divmod(units, self.order.length or 1)
        epochs: int | Positions = (epoch if self.times is None else epoch * self.times) + passes
        if isinstance(epoch, int) and units.size and (passes == passes[0]).all():
            epochs = int(passes[0]) + (epoch if self.times is None else epoch * self.times)
        located = self.order.locate(inner, epochs)
        if self.every is not None:
            return located._replace(positions=passes * self.every + located.positions)
        return located._replace(positions=units)


@dataclass(frozen=True, slots=True)
class Take(Over):
    """The first ``count`` units of an order."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"take({self.count}): the count is negative")

    @property
    def length(self) -> int | None:
        below = self.order.length
        return self.count if below is None else min(self.count, below)

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        return self.order.locate(units, epoch)


@dataclass(frozen=True, slots=True)
class Skip(Over):
    """All of an order but its first ``count`` units."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"skip({self.count}): the count is negative")

    @property
    def length(self) -> int | None:
        below = self.order.length
        return None if below is None else max(0, below - self.count)

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        return self.order.locate(units + self.count, epoch)._replace(positions=units)


@dataclass(frozen=True, slots=True, eq=False)
class Remaining(Over):
    """What is left of an epoch: some positions, then all from ``tail`` on.

    ``explicit`` is int64, sorted, without repetition, and below ``tail``: a ``Rest`` makes
    it. Units are renumbered, positions keep their global numbers.

    >>> import numpy as np
    >>> Remaining(Sequential(9), np.array([2, 5]), tail=7).locate(np.arange(4)).positions
    array([2, 5, 7, 8])
    """

    explicit: Positions
    tail: int

    @property
    def length(self) -> int | None:
        below = self.order.length
        return None if below is None else self.explicit.size + max(0, below - self.tail)

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        return self.order.locate(at_places(units, self.explicit, self.tail), epoch)


def at_places(places: Positions, explicit: Positions, tail: int) -> Positions:
    """The numbers at some places of the list ``explicit, tail, tail + 1, ...``."""
    out = places + (tail - explicit.size)
    early = places < explicit.size
    if early.any():
        out[early] = explicit[places[early]]
    return out


@dataclass(frozen=True, slots=True)
class Epoch(Over):
    """One epoch of an order: ``locate(units)`` answers for ``epoch`` without being told."""

    epoch: int

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        return self.order.locate(units, self.epoch + epoch)

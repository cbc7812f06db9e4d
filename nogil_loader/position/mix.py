"""Mixes: several orders interleaved in exact proportions.

Guarantees
- Over every whole cycle (as many positions as the weights add up to in lowest terms) each
  source appears exactly by its weight; where a cycle is longer than ``WINDOW``, give or
  take the samples that trade places across its end. Within a cycle no source strays
  from its share by more than the window allows.
- Any position is found without looking at others. No position, and so no stride of a
  rank, is tied to a source: places are permuted within windows, anew in each window and
  epoch. Sources that are rarer than one in ``WINDOW`` may still miss a rank for a while.
- A source's units come in its own order when the cycle is at most ``SHORT`` long, as with
  weights 3:1 or .7/.2/.1; otherwise at most one window apart from it.

How. An unpermuted schedule comes first: a balanced tree of sources, in which the n-th
visit of a node goes left exactly when ``floor((n + 1) * share)`` exceeds
``floor(n * share)``. Counts along it are closed formulas that add up exactly. Then the
places within each window are permuted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from nogil_loader.position.order import Located, Order, Positions, Repeat
from nogil_loader.position.permutation import SHORT, Words, derive, key_of, tables
from nogil_loader.position.windows import keys_of, permute_windows, windows_by_size

WINDOW = 4096
"""Within how many positions the places of a long cycle are permuted."""

Stop: TypeAlias = Literal["first", "all", "never"]
_FINEST = 1 << 30


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights as whole numbers in lowest terms; decimals as written (.7 is 7/10).

    Weights that need a cycle of more than 2**30 are rounded to that.

    >>> whole_weights([0.5, 0.3, 0.2])
    (5, 3, 2)
    """
    parts = [Fraction(str(weight)) for weight in weights]
    if not parts or min(parts) <= 0:
        raise ValueError(f"mix(weights={list(weights)}): every weight must be above zero")
    scale = lcm(*(part.denominator for part in parts))
    whole = [int(part * scale) for part in parts]
    total = sum(whole)
    if total // gcd(*whole) > _FINEST:
        whole = [max(1, round(weight * _FINEST / total)) for weight in whole]
    return tuple(weight // gcd(*whole) for weight in whole)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The unpermuted schedule of whole ``weights``."""

    weights: tuple[int, ...]
    _bounds: Positions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bounds = np.concatenate([[0], np.cumsum(self.weights)]).astype(np.int64)
        object.__setattr__(self, "_bounds", bounds)

    def turns(self, places: Positions) -> tuple[Positions, Positions]:
        """Which source has its turn at each place, and how many turns it had before."""
        low = np.zeros_like(places)
        high = np.full_like(places, len(self.weights))
        visits = places.copy()
        while ((high - low) > 1).any():
            middle = (low + high + 1) // 2
            start = self._bounds[low]
            share = self._bounds[middle] - start
            whole = self._bounds[high] - start
            rounds, visit = np.divmod(visits, whole)
            before = visit * share // whole
            left = (visit + 1) * share // whole > before
            before += rounds * share
            # A leaf has share == whole: it goes left for ever and stays as it is.
            visits = np.where(left, before, visits - before)
            low = np.where(left, low, middle)
            high = np.where(left, middle, high)
        return low, visits

    def place(self, source: int, turn: int) -> int:
        """The place of turn number ``turn`` (from 0) of a source: the inverse of ``turns``."""
        path = []
        low, high = 0, len(self.weights)
        while high - low > 1:
            middle = (low + high + 1) // 2
            left = source < middle
            start, split, end = (int(self._bounds[at]) for at in (low, middle, high))
            path.append((left, split - start, end - start))
            low, high = (low, middle) if left else (middle, high)
        for left, share, whole in reversed(path):
            after = (turn + 1) * whole
            turn = -(-after // share) - 1 if left else turn * whole // (whole - share)
        return turn

    def count(self, source: int, places: int) -> int:
        """How many of the first ``places`` places are the source's."""
        low, high = 0, len(self.weights)
        while high - low > 1:
            middle = (low + high + 1) // 2
            start, split, end = (int(self._bounds[at]) for at in (low, middle, high))
            left = places * (split - start) // (end - start)
            if source < middle:
                places, high = left, middle
            else:
                places, low = places - left, middle
        return places


@dataclass(frozen=True, slots=True)
class Mix:
    """Several orders interleaved by ``weights``; which source goes into ``sources``.

    ``stop`` says where the mix ends:

    - ``"first"``: before the first sample that a source no longer has. Nothing repeats.
    - ``"all"``: when every source has been seen whole; shorter ones start again.
    - ``"never"``: all start again, endlessly.

    A source that starts again is in its own next pass: its shuffle is a new one, whatever
    the others do. The length depends on the weights and lengths only.

    >>> import numpy as np
    >>> from nogil_loader.position.order import Sequential
    >>> mix = Mix([Sequential(6), Sequential(9)], weights=[3, 1], seed=17)
    >>> mix.length, np.bincount(mix.locate(np.arange(4)).sources).tolist()
    (9, [3, 1])
    """

    orders: Sequence[Order]
    weights: Sequence[float]
    seed: int = 0
    stop: Stop = "first"
    length: int | None = field(init=False)
    _schedule: Schedule = field(init=False, repr=False, compare=False)
    _passes: tuple[Order, ...] = field(init=False, repr=False, compare=False)
    _cycle: NDArray[np.uint8] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.orders) != len(self.weights):
            raise ValueError(
                f"mix: {len(self.orders)} sources but {len(self.weights)} weights; give one each"
            )
        if self.stop not in get_args(Stop):
            choices = ", ".join(repr(choice) for choice in get_args(Stop))
            raise ValueError(f"mix(stop={self.stop!r}): choose one of {choices}")
        schedule = Schedule(whole_weights(self.weights))
        length = _mix_length(self.orders, schedule, self.stop)
        cycle = None
        if sum(schedule.weights) <= SHORT:
            cycle = schedule.turns(np.arange(sum(schedule.weights)))[0].astype(np.uint8)
        passes = tuple(
            _again(order, None if length is None else schedule.count(source, length), self.stop)
            for source, order in enumerate(self.orders)
        )
        put = object.__setattr__
        put(self, "orders", tuple(self.orders))
        put(self, "weights", tuple(self.weights))
        put(self, "length", length)
        put(self, "_schedule", schedule)
        put(self, "_cycle", cycle)
        put(self, "_passes", passes)

    @property
    def sources(self) -> int:
        return sum(order.sources for order in self.orders)

    def locate(self, units: Positions, epoch: int | Positions = 0) -> Located:
        sources, turns = self._turns(units, epoch)
        indices = np.empty_like(units)
        numbers = np.empty_like(units)
        first = 0
        for source, order in enumerate(self._passes):
            own = np.flatnonzero(sources == source)
            if own.size:
                found = order.locate(turns[own], epoch if isinstance(epoch, int) else epoch[own])
                indices[own] = found.indices
                numbers[own] = first if found.sources is None else found.sources + first
            first += order.sources
        return Located(units, indices, numbers)

    def _turns(self, units: Positions, epoch: int | Positions) -> tuple[Positions, Positions]:
        """Whose turn it is at ``units``, and how many it had before, after permuting."""
        weights = np.asarray(self._schedule.weights, np.int64)
        window = min(int(weights.sum()), WINDOW)
        windows = units // window
        starts = windows * window
        slots = units - starts
        keys = derive(key_of("mix", self.seed, epoch), windows)
        if self._cycle is None:
            slots = permute_windows(slots, starts, window, self.length, keys)
            return self._schedule.turns(starts + slots)
        sources = np.empty_like(units)
        turns = np.empty_like(units)
        for chosen, size in windows_by_size(starts, window, self.length):
            own, earlier = _permuted_cycle(self._cycle[:size], slots[chosen], keys_of(keys, chosen))
            sources[chosen] = own
            turns[chosen] = windows[chosen] * weights[own] + earlier
        return sources, turns


def _permuted_cycle(
    cycle: NDArray[np.uint8], slots: Positions, keys: Words
) -> tuple[Positions, Positions]:
    """The source at each slot of a cycle permuted by its key, and its turns before there."""
    distinct, row = np.unique(keys, return_inverse=True)
    laid = cycle[tables(cycle.size, distinct)][np.broadcast_to(row, slots.shape)]
    own = laid[np.arange(slots.size), slots]
    earlier = (laid == own[:, None]) & (np.arange(cycle.size) < slots[:, None])
    return own.astype(np.int64), np.count_nonzero(earlier, axis=1)


def _mix_length(orders: Sequence[Order], schedule: Schedule, stop: Stop) -> int | None:
    """Where a mix ends, in the unpermuted schedule; permuting moves no window's end."""
    ends = []
    for source, order in enumerate(orders):
        count = order.length
        if count is None:
            if stop == "all":
                return None
        elif stop == "first":
            ends.append(schedule.place(source, count))
        elif count == 0:
            raise ValueError(f"mix(stop={stop!r}): source {source} is empty and cannot start again")
        else:
            ends.append(schedule.place(source, count - 1) + 1)
    if stop == "never" or not ends:
        return None
    return min(ends) if stop == "first" else max(ends)


def _again(order: Order, turns: int | None, stop: Stop) -> Order:
    """``order`` in as many passes as it takes turns in a mix: part of the last may be unused."""
    if stop == "first" or order.length is None:
        return order
    return Repeat(order, None if turns is None else -(-turns // order.length))

"""What is left of an epoch: some positions in front, then every one from a tail on.

This form is closed under cutting: when ranks share it, rank r taking the k-th position
with ``k mod world == r``, and each stops anywhere, what none of them has accounted for is
such a rest again. It holds the positions between the slowest and the fastest rank and
those in open groups, so it does not grow with the number of cuts; where all ranks stand
equal it is the tail alone.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from nogil_loader.position.order import Order, Positions, Remaining, at_places
from nogil_loader.position.parse import JSON, StateMismatch, listed, mapped, whole, wholes

Ident: TypeAlias = "int | tuple[int, ...]"
"""A cell of a level: its unit, or (unit, child, ...)."""

_LISTED = 256
"""Up to this many positions are written out in JSON; more are packed."""


@dataclass(frozen=True, slots=True)
class LevelState:
    """Where one level of a rank stands: which of its units are accounted for."""

    unit: int = 0
    """Units before this one are delivered, dropped or filtered out, but for ``pending``."""
    after: Ident | None = None
    """Of ``unit`` itself, the cells up to and including this one are, too."""
    pending: tuple[Ident, ...] = ()
    """Cells before that point which wait in open groups, in the order they were pushed."""
    memo: JSON = None
    """What the grouper needs to go on with them (``Group.memo``)."""
    dropped: tuple[int, ...] = ()
    """Skipped so far, by op of the level; empty for none."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which children of a partly delivered parent are still to be shown.

    >>> wanted = Wanted(only=frozenset({(1,)}), after=(3,))
    >>> [child for child in range(6) if (child,) in wanted]
    [1, 4, 5]
    """

    only: frozenset[tuple[int, ...]] = frozenset()
    """These,"""
    after: tuple[int, ...] | None = None
    """and all behind this one; None: no others."""

    def __contains__(self, child: tuple[int, ...]) -> bool:
        return child in self.only or (self.after is not None and child > self.after)


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """The positions ``explicit`` (sorted, all below ``tail``), then every one from ``tail``.

    ``partial`` names the parents among them of which only some children are left.
    ``dropped`` counts what earlier runs skipped, over all ranks, by level and op.
    """

    explicit: Positions = field(default_factory=lambda: np.empty(0, np.int64))
    tail: int = 0
    partial: Mapping[int, Wanted] = field(default_factory=dict)
    dropped: tuple[tuple[int, ...], ...] = ()
    _json: list[JSON] = field(default_factory=list, init=False, repr=False)
    """What ``to_json`` gave: every ``Run.state()`` of a resumed run asks again."""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Rest):
            return NotImplemented
        return (self.tail, self.partial, self.dropped) == (
            other.tail,
            other.partial,
            other.dropped,
        ) and np.array_equal(self.explicit, other.explicit)

    __hash__ = None  # type: ignore[assignment]

    def order(self, whole_epoch: Order) -> Order:
        """The rest as an order: shard it as the epoch itself would be."""
        return whole_epoch if self == Rest() else Remaining(whole_epoch, self.explicit, self.tail)

    def count(self, length: int | None) -> int | None:
        """How many positions are left of an epoch of ``length`` (None: endless)."""
        return None if length is None else self.explicit.size + max(0, length - self.tail)

    def partial_units(self, rank: int, world: int) -> dict[int, Wanted]:
        """The parents of ``partial`` that fall to a rank, by its own unit numbers."""
        units = {}
        for position, wanted in self.partial.items():
            ordinal = int(np.searchsorted(self.explicit, position))
            if position >= self.tail:
                ordinal += position - self.tail
            if ordinal % world == rank:
                units[ordinal // world] = wanted
        return units

    def cut(self, ranks: Sequence[LevelState], length: int | None) -> Rest:
        """What is left when the ranks that shared this rest stand at ``ranks`` (level 0).

        Units beyond a rank's share (padding, wrapping) count for nothing.
        """
        world = len(ranks)
        total = self.count(length)
        numbers = np.arange(world, dtype=np.int64)
        reached = np.array([level.unit for level in ranks], np.int64)
        if total is not None:
            reached = np.minimum(reached, np.maximum(0, total - numbers + world - 1) // world)
        starts = numbers + reached * world
        # From `seam` on no rank has accounted for anything.
        seam = max(int((starts - world).max()) + 1, self.explicit.size)
        counts = np.maximum(0, seam - starts + world - 1) // world
        firsts = np.repeat(starts, counts)
        steps = np.arange(firsts.size) - np.repeat(np.cumsum(counts) - counts, counts)
        waiting = [
            _unit(ident) * world + rank
            for rank, level in enumerate(ranks)
            for ident in level.pending
            if _unit(ident) < reached[rank]
        ]
        ordinals = np.unique(np.concatenate([firsts + steps * world, np.array(waiting, np.int64)]))
        tail = self.tail + seam - self.explicit.size
        explicit = at_places(ordinals, self.explicit, self.tail)
        return Rest(explicit, tail, self._partial(ranks, total, explicit, tail), self.dropped)

    def _partial(
        self, ranks: Sequence[LevelState], total: int | None, explicit: Positions, tail: int
    ) -> dict[int, Wanted]:
        left = set(explicit.tolist()) if self.partial else set()
        partial = {at: each for at, each in self.partial.items() if at >= tail or at in left}
        for rank, level in enumerate(ranks):
            children: dict[int, set[tuple[int, ...]]] = {}
            for ident in level.pending:
                if isinstance(ident, tuple):
                    children.setdefault(ident[0], set()).add(ident[1:])
            if isinstance(level.after, tuple):
                children.setdefault(level.after[0], set())
            for unit, only in children.items():
                ordinal = unit * len(ranks) + rank
                if total is not None and ordinal >= total:
                    continue
                position = int(at_places(np.array([ordinal]), self.explicit, self.tail)[0])
                behind = None
                if isinstance(level.after, tuple) and level.after[0] == unit:
                    behind = level.after[1:]
                    before = self.partial.get(position)
                    if before is not None:
                        only |= {child for child in before.only if child > behind}
                        behind = None if before.after is None else max(behind, before.after)
                partial[position] = Wanted(frozenset(only), behind)
        return partial

    def to_json(self) -> JSON:
        """As JSON; long runs of positions are packed (steps, deflated, base 64).

        Computed once: what is returned is shared, and not to be changed.
        """
        if not self._json:
            self._json.append(self._as_json())
        return self._json[0]

    def _as_json(self) -> JSON:
        out: dict[str, JSON] = {"tail": self.tail}
        if self.explicit.size > _LISTED:
            out["explicit"] = _pack(self.explicit)
        elif self.explicit.size:
            out["explicit"] = self.explicit.tolist()
        if self.partial:
            out["partial"] = [
                [
                    at,
                    [list(child) for child in sorted(each.only)],
                    None if each.after is None else list(each.after),
                ]
                for at, each in sorted(self.partial.items())
            ]
        if self.dropped:
            out["dropped"] = [list(counts) for counts in self.dropped]
        return out

    @classmethod
    def from_json(cls, data: JSON) -> Rest:
        """The rest that ``to_json`` wrote. Raises ``StateMismatch`` where it did not."""
        fields = mapped(data, "rest")
        explicit = fields.get("explicit", [])
        if isinstance(explicit, dict):
            positions = _unpack(explicit)
        else:
            positions = np.array(wholes(explicit, "rest.explicit"), np.int64)
        tail = whole(fields.get("tail"), "rest.tail")
        if positions.size and (np.any(np.diff(positions) <= 0) or positions[-1] >= tail):
            raise StateMismatch("not a state: rest.explicit is not ascending below rest.tail")
        partial = {}
        for row in listed(fields.get("partial", []), "rest.partial"):
            at, only, after = _three(row)
            children = [wholes(child, "rest.partial") for child in listed(only, "rest.partial")]
            behind = None if after is None else wholes(after, "rest.partial")
            partial[whole(at, "rest.partial")] = Wanted(frozenset(children), behind)
        drops = listed(fields.get("dropped", []), "rest.dropped")
        dropped = tuple([wholes(row, "rest.dropped") for row in drops])
        return cls(positions, tail, partial, dropped)


def _unit(ident: Ident) -> int:
    return ident if isinstance(ident, int) else ident[0]


def _three(row: JSON) -> tuple[JSON, JSON, JSON]:
    items = listed(row, "rest.partial")
    if len(items) != 3:
        raise StateMismatch("not a state: rest.partial holds a row without three parts")
    return items[0], items[1], items[2]


def _pack(positions: Positions) -> dict[str, JSON]:
    steps = np.diff(positions)
    kind = np.dtype(np.min_scalar_type(int(steps.max()))).newbyteorder("<")
    packed = b64encode(zlib.compress(steps.astype(kind).tobytes())).decode("ascii")
    return {"first": int(positions[0]), "width": kind.itemsize, "steps": packed}


def _unpack(data: dict[str, JSON]) -> Positions:
    steps = data.get("steps")
    width = whole(data.get("width"), "rest.explicit.width")
    if not isinstance(steps, str) or width not in (1, 2, 4, 8):
        raise StateMismatch("not a state: rest.explicit has no steps of 1, 2, 4 or 8 bytes")
    try:
        raw = zlib.decompress(b64decode(steps, validate=True))
    except (NotBase64, zlib.error) as error:
        raise StateMismatch("not a state: the steps of rest.explicit are damaged") from error
    if len(raw) % width:
        raise StateMismatch("not a state: the steps of rest.explicit are damaged")
    ups = np.frombuffer(raw, np.dtype(f"<u{width}")).astype(np.int64)
    first = whole(data.get("first"), "rest.explicit.first")
    return first + np.concatenate([[0], np.cumsum(ups)]).astype(np.int64)

"""What a run leaves behind to be continued: by the same ranks, or by any other number.

Guarantees
- A state is plain JSON: for a rank whose stages are one-to-one a handful of numbers, and
  otherwise no more than what waits in open groups.
- The same rank of the same world goes on bit for bit from its own state.
- ``merge_states`` of all ranks is what other ranks go on from. What remains is every unit
  that its rank has not accounted for, in ascending global position; new rank r takes the
  k-th of them with ``k mod world == r``. Over all ranks and any number of cuts each unit
  of the epoch is shown exactly once, but for the declared remainder of the shards.
- A state of something else is refused, naming the difference.

Words: a *unit* is a place in the order of a rank; a *position* one in the global order of
the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from operator import attrgetter, itemgetter
from typing import TypeAlias

from nogil_loader.position.parse import JSON, StateMismatch, listed, mapped, whole, wholes
from nogil_loader.position.rest import Ident, LevelState, Rest, Wanted

VERSION = 1

Fingerprint: TypeAlias = Mapping[str, str | Sequence[str]]
"""Names of what must not have changed, and what it was: a digest, or a list of
descriptions (the stages) of which the first that differs is named."""


@dataclass(frozen=True, slots=True)
class State:
    """Where a rank stands, or, merged, where all ranks of a run stand together.

    >>> state = State({"data": "a1b2"}, seed=0, epoch=3, length=1000, levels=(LevelState(256),))
    >>> State.from_json(state.to_json()) == state
    True
    """

    fingerprint: Fingerprint
    seed: int
    epoch: int
    length: int | None
    """Positions in the epoch's global order; None without end."""
    levels: tuple[LevelState, ...] = ()
    """From the samples (level 0) up to what is delivered; none in a merged state."""
    rank: int = 0
    world: int = 1
    """Ranks that share ``rest``; 0 in a merged state, which any number may go on from."""
    rest: Rest = field(default_factory=Rest)
    """What of the epoch these ranks set out to show; merged: what is left of it."""
    beyond: tuple[int, ...] = ()
    """With ``ordered=False``: units of the last level delivered beyond the accounted ones."""
    snapshot: tuple[int, JSON] | None = None
    """For a stream: a position and where its source stood before reading it."""
    samples: LevelState | None = None
    """Inside a batch that ``unbatch`` takes apart: level 0, each row accounted for by itself;
    what a merge reads instead of ``levels[0]``."""
    batches: int | None = None
    """With ``shard(batches=N)``: where each rank stops; merged: what all ranks together have
    left to deliver."""

    @property
    def merged(self) -> bool:
        """Whether this is a state of all ranks."""
        return self.world == 0

    def to_json(self) -> dict[str, JSON]:
        """As JSON; what has its usual value is left out."""
        out: dict[str, JSON] = {
            "version": VERSION,
            "fingerprint": {
                name: value if isinstance(value, str) else list(value)
                for name, value in self.fingerprint.items()
            },
            "seed": self.seed,
            "epoch": self.epoch,
            "length": self.length,
            "world": self.world,
        }
        if not self.merged:
            out["rank"] = self.rank
            out["levels"] = [_level_to_json(level) for level in self.levels]
        if self.rest != Rest():
            out["rest"] = self.rest.to_json()
        if self.beyond:
            out["beyond"] = list(self.beyond)
        if self.snapshot is not None:
            out["snapshot"] = list(self.snapshot)
        if self.samples is not None:
            out["samples"] = _level_to_json(self.samples)
        if self.batches is not None:
            out["batches"] = self.batches
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, JSON]) -> State:
        """The state that ``to_json`` wrote. Raises ``StateMismatch`` for anything else."""
        version = data.get("version")
        if version != VERSION:
            raise StateMismatch(
                f"the state has version {version!r}, and this release reads version {VERSION}"
            )
        length = data.get("length")
        seed = data.get("seed")
        if not isinstance(seed, int):
            raise StateMismatch(f"not a state: seed is {seed!r} instead of a whole number")
        return cls(
            fingerprint=_fingerprint(data.get("fingerprint")),
            seed=seed,
            epoch=whole(data.get("epoch"), "epoch"),
            length=None if length is None else whole(length, "length"),
            levels=tuple(
                [_level_from_json(level) for level in listed(data.get("levels", []), "levels")]
            ),
            rank=whole(data.get("rank", 0), "rank"),
            world=whole(data.get("world"), "world"),
            rest=Rest.from_json(data["rest"]) if "rest" in data else Rest(),
            beyond=wholes(data.get("beyond", []), "beyond"),
            snapshot=_snapshot(data.get("snapshot")),
            samples=_level_from_json(data["samples"]) if "samples" in data else None,
            batches=whole(data["batches"], "batches") if "batches" in data else None,
        )

    def check(self, fingerprint: Fingerprint, *, allow_changes: bool = False) -> None:
        """Raise ``StateMismatch`` naming the first difference to ``fingerprint``."""
        if allow_changes:
            return
        for name in sorted({*self.fingerprint, *fingerprint}):
            difference = _difference(self.fingerprint.get(name), fingerprint.get(name))
            if difference:
                raise StateMismatch(
                    f"the state belongs to another {name}: {difference}. "
                    "resume with what it was made with, or run(..., allow_changes=True)"
                )

    def resume(self, rank: int, world: int) -> Resumed:
        """How ``rank`` of ``world`` goes on.

        From its own state it goes on where it stood; from a merged state, or the state of
        a run of one rank when there are more now, with its share of what is left.

        Raises ``StateMismatch`` for the state of another rank or world.
        """
        if (rank, world) == (self.rank, self.world):
            partial = self.rest.partial_units(rank, world)
            return Resumed(self.levels, self.rest, partial, self.beyond, self.samples, self.batches)
        if self.merged:
            # All ranks stop at the same batch, and together at what there is left.
            each = None if self.batches is None else -(-self.batches // world)
            partial = self.rest.partial_units(rank, world)
            return Resumed((), self.rest, partial, (), None, each)
        if self.world == 1:
            return merge([self]).resume(rank, world)
        raise StateMismatch(
            f"the state is of rank {self.rank} of {self.world}, and this is rank {rank} of "
            f"{world}: give each rank its own state, or all ranks merge_states() of all states"
        )


@dataclass(frozen=True, slots=True)
class Resumed:
    """How one rank goes on."""

    levels: tuple[LevelState, ...]
    """Where its levels stand; none: all at their beginning."""
    rest: Rest
    """What all ranks share: ``Shard(rest.order(order), rank, world)`` numbers the units."""
    partial: dict[int, Wanted]
    """Units of which only some children are to be shown."""
    beyond: tuple[int, ...]
    """Units of the last level that were delivered already."""
    samples: LevelState | None = None
    """As in ``State``."""
    batches: int | None = None
    """Where the rank stops, with ``shard(batches=N)``."""


def merge_states(states: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    """One state from those of all ranks, for a run with any number of ranks.

    ``states`` are what ``Run.state()`` returned on every rank, in any order. A merged
    state given alone is returned as it is.

    Raises ``StateMismatch`` where ranks are missing or given twice, where states are not
    of one run, and where a rank stands inside a batch that a later stage cut up.
    """
    read: list[State] = []
    for state in states:
        if read and "rest" in state and state["rest"] == states[0].get("rest"):
            # Thousands of ranks carry one and the same rest: read it once.
            own = {name: value for name, value in state.items() if name != "rest"}
            read.append(replace(State.from_json(own), rest=read[0].rest))
        else:
            read.append(State.from_json(state))
    return merge(read).to_json()


def merge(states: Sequence[State]) -> State:
    """``merge_states`` on states that were read."""
    if len(states) == 1 and states[0].merged:
        return states[0]
    states = _all_ranks(states)
    first = states[0]
    for state in states:
        _check_same_run(state, first)
    rest = first.rest.cut([_bottom(state) for state in states], first.length)
    earliest = int(rest.explicit[0]) if rest.explicit.size else rest.tail
    usable = [each.snapshot for each in states if each.snapshot and each.snapshot[0] <= earliest]
    return replace(
        first,
        levels=(),
        world=0,
        rest=replace(rest, dropped=_all_dropped(states)),
        samples=None,
        batches=_left(states),
        snapshot=max(usable, key=itemgetter(0), default=None),
    )


def _all_ranks(states: Sequence[State]) -> list[State]:
    """The states by rank, when there is one of each."""
    worlds = sorted({state.world for state in states})
    if len(worlds) != 1 or worlds[0] == 0:
        raise StateMismatch(f"merge_states needs the states of one run, not of worlds {worlds}")
    seen = Counter([state.rank for state in states])
    missing = [rank for rank in range(worlds[0]) if rank not in seen]
    twice = sorted([rank for rank, times in seen.items() if times > 1])
    strange = sorted([rank for rank in seen if rank >= worlds[0]])
    if missing or twice or strange:
        found = {"missing": missing, "given twice": twice, "out of range": strange}
        what = "; ".join([f"{_some(ranks)} {how}" for how, ranks in found.items() if ranks])
        raise StateMismatch(f"merge_states needs each of {worlds[0]} ranks once: {what}")
    return sorted(states, key=attrgetter("rank"))


def _check_same_run(state: State, first: State) -> None:
    """Whether a rank's state can be merged with that of rank 0."""
    state.check(first.fingerprint)
    for name in ("seed", "epoch", "length", "rest", "batches"):
        if getattr(state, name) != getattr(first, name):
            raise StateMismatch(
                f"rank {state.rank} has another {name} than rank 0: the states are not of one "
                "run, or were not taken in the same epoch"
            )
    if not state.levels:
        raise StateMismatch(f"the state of rank {state.rank} says of no level where it stands")
    known = 1 if state.samples is None else 2
    if any(level.after is not None or level.pending for level in state.levels[known:]):
        raise StateMismatch(
            f"rank {state.rank} stands inside a batch that a later stage has made many of, and "
            "whose rows are not simply its samples: only the same number of ranks can go on from "
            "here, each from its own state"
        )
    if state.beyond:
        raise StateMismatch(
            f"rank {state.rank} delivered batches out of order: only the same number of ranks "
            "can go on from here; run(ordered=True) leaves states that any number can"
        )


def _bottom(state: State) -> LevelState:
    """Where the samples of a rank stand."""
    return state.levels[0] if state.samples is None else state.samples


def _left(states: Sequence[State]) -> int | None:
    """Batches that the ranks have left to deliver, where there is a number to stop at."""
    stop = states[0].batches
    return None if stop is None else sum([stop - state.levels[-1].unit for state in states])


def _all_dropped(states: Sequence[State]) -> tuple[tuple[int, ...], ...]:
    """Skips by level and op: of these ranks, and of the runs before them."""
    tables = [[level.dropped for level in (_bottom(state), *state.levels[1:])] for state in states]
    tables.append(list(states[0].rest.dropped))
    levels = zip_longest(*tables, fillvalue=())
    sums = [tuple([sum(op) for op in zip_longest(*rows, fillvalue=0)]) for rows in levels]
    return tuple(sums) if any(sums) else ()


def _some(ranks: Sequence[int]) -> str:
    """Ranks for people: the first few."""
    shown = ", ".join([str(rank) for rank in ranks[:5]])
    return f"{shown} and {len(ranks) - 5} more" if len(ranks) > 5 else shown


def _difference(
    saved: str | Sequence[str] | None, current: str | Sequence[str] | None
) -> str | None:
    """What differs between two fingerprints, for people; None for nothing."""
    if saved is None or current is None or isinstance(saved, str) or isinstance(current, str):
        return None if saved == current else f"it was {saved!r} and is {current!r}"
    for was, now in zip_longest(saved, current):
        if was != now:
            if now is None:
                return f"{was} is missing"
            return f"{now} is new" if was is None else f"{was} is now {now}"
    return None


def _level_to_json(level: LevelState) -> dict[str, JSON]:
    out: dict[str, JSON] = {"unit": level.unit}
    if level.after is not None:
        out["after"] = _ident_to_json(level.after)
    if level.pending:
        out["pending"] = [_ident_to_json(ident) for ident in level.pending]
    if level.memo is not None:
        out["memo"] = level.memo
    if level.dropped:
        out["dropped"] = list(level.dropped)
    return out


def _level_from_json(data: JSON) -> LevelState:
    fields = mapped(data, "level")
    after = fields.get("after")
    pending = listed(fields.get("pending", []), "level.pending")
    return LevelState(
        unit=whole(fields.get("unit"), "level.unit"),
        after=None if after is None else _ident_from_json(after),
        pending=tuple([_ident_from_json(ident) for ident in pending]),
        memo=fields.get("memo"),
        dropped=wholes(fields.get("dropped", []), "level.dropped"),
    )


def _ident_to_json(ident: Ident) -> JSON:
    return ident if isinstance(ident, int) else list(ident)


def _ident_from_json(data: JSON) -> Ident:
    if isinstance(data, list) and data:
        return wholes(data, "ident")
    return whole(data, "ident")


def _fingerprint(data: JSON) -> Fingerprint:
    fingerprint: dict[str, str | Sequence[str]] = {}
    for name, value in mapped(data, "fingerprint").items():
        if isinstance(value, list):
            fingerprint[name] = [str(item) for item in value]
        elif isinstance(value, str):
            fingerprint[name] = value
        else:
            raise StateMismatch(f"not a state: the fingerprint of {name} is {value!r}")
    return fingerprint


def _snapshot(data: JSON) -> tuple[int, JSON] | None:
    if data is None:
        return None
    pair = listed(data, "snapshot")
    if len(pair) != 2:
        raise StateMismatch("not a state: snapshot is not a position and what was there")
    return whole(pair[0], "snapshot"), pair[1]

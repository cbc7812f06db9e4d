"""Which rank of how many, and the little that ranks say to each other.

Guarantees
- ``Ranks`` is what sharding needs: numbers, no communication.
- A ``Group`` can also gather small values from all ranks. Every rank makes the same calls
  in the same order, from one thread at a time; a call returns when all ranks have made it.
- The steady state of a run calls no group: shards are arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class ClusterError(RuntimeError):
    """What is said about ranks does not fit together. The message names both sides."""


class RankFailed(RuntimeError):
    """Another rank failed, so this one cannot go on. Its own error is on that rank."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """A place among the processes of a job.

    ``local_rank`` and ``local_size`` are the place among those of the same node. A launcher
    that does not tell them leaves them None.
    """

    rank: int
    world_size: int
    local_rank: int | None = None
    local_size: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ClusterError(f"rank {self.rank} is not in range(world size {self.world_size})")
        local, size = self.local_rank, self.local_size
        if local is None or size is None:
            return
        if not 0 <= local < size <= self.world_size:
            raise ClusterError(
                f"local rank {local} of {size} does not fit into a world of {self.world_size}"
            )


@runtime_checkable
class Group(Protocol):
    """Ranks that can talk."""

    @property
    def ranks(self) -> Ranks:
        """This process's place."""
        ...

    def allgather(self, value: object) -> list[object]:
        """The values of all ranks, by rank. Small ones: they are pickled."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called this."""
        ...

    def close(self) -> None:
        """Give back what the group holds. Idempotent; every rank calls it."""
        ...


@dataclass(frozen=True, slots=True)
class Solo:
    """One process on its own, as a group.

    >>> Solo().allgather("alone")
    ['alone']
    """

    @property
    def ranks(self) -> Ranks:
        return Ranks(0, 1, 0, 1)

    def allgather(self, value: object) -> list[object]:
        return [value]

    def barrier(self) -> None:
        return None

    def close(self) -> None:
        return None


def same_everywhere(group: Group, what: str, value: object) -> None:
    """Raise ``ClusterError`` on every rank unless all have the same value.

    >>> same_everywhere(Solo(), "seed", 17)
    """
    values = group.allgather(value)
    if any(other != values[0] for other in values):
        raise ClusterError(f"{what} differs between ranks: {by_rank(values)}")


def by_rank(values: Iterable[object]) -> str:
    """``'a' on ranks 0-2, 'b' on rank 3``: values for people, most common order kept.

    >>> by_rank(["a", "a", "b", "a"])
    "'a' on ranks 0-1, 3; 'b' on rank 2"
    """
    owners: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        owners.setdefault(repr(value), []).append(rank)
    return "; ".join(
        f"{value} on rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"
        for value, ranks in owners.items()
    )


def spans(numbers: list[int]) -> str:
    """Ascending numbers, runs of them shortened.

    >>> spans([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)

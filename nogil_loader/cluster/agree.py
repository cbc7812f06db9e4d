"""``shard(uneven="agree")``: as many batches on every rank, agreed upon as they go.

Guarantees
- Every rank delivers the same number of batches: that of the shortest.
- One small allgather for every ``every`` batches; the ranks make the same number of them,
  whichever ends first, so none is left waiting in one.
- When a rank fails, the batches that all ranks have by then are delivered everywhere; then
  that rank raises its own error, and the others ``RankFailed``, which names it.
- What a rank had beyond the shortest is counted in ``surplus``, never silently dropped.

A rank may not stop early alone: leave the loop at the same batch everywhere, as any step
with a collective in it demands already.

``settle`` is the whole protocol, and pure: each round, a rank offers how many batches it
has, at most ``every``; the smallest offer is what is delivered; a round in which anyone had
fewer than ``every`` is the last. All ranks see the same offers and so decide alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from nogil_loader.cluster.group import Group, RankFailed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank says in a round."""

    batches: int
    """How many it has ready, at most ``every``; fewer: there are no more."""
    failure: str | None = None
    """What ended it, if not the end of its data."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks do after a round."""

    deliver: int
    last: bool
    failures: tuple[tuple[int, str], ...] = ()
    """(rank, what it said), of the ranks that failed."""


def settle(offers: Sequence[Offer], every: int) -> Verdict:
    """What the offers of all ranks, by rank, come to.

    >>> settle([Offer(8), Offer(8)], every=8)
    Verdict(deliver=8, last=False, failures=())
    >>> settle([Offer(8), Offer(3)], every=8)
    Verdict(deliver=3, last=True, failures=())
    """
    deliver = min(offer.batches for offer in offers)
    failures = tuple(
        (rank, offer.failure) for rank, offer in enumerate(offers) if offer.failure is not None
    )
    # A rank with a full offer fails in the round after, where its offer is empty.
    return Verdict(deliver, deliver < every, failures if deliver < every else ())


class Agreed(Generic[T]):
    """The batches of one rank, cut to what every rank has. An iterator.

    Args:
        batches: this rank's own, however many there are.
        group: the ranks; every one of them iterates over an ``Agreed`` of its own.
        every: batches per round: that many are held back until the others are known to
            have them too. The same on every rank.

    >>> from nogil_loader.cluster.group import Solo
    >>> list(Agreed(iter("abc"), Solo(), every=2))
    ['a', 'b', 'c']
    """

    def __init__(self, batches: Iterator[T], group: Group, every: int = 8) -> None:
        if every < 1:
            raise ValueError(f"every={every}: a round has at least one batch")
        self._batches = batches
        self._group = group
        self._every = every
        self._held: deque[T] = deque()
        self._granted = 0
        self._last = False
        self._error: BaseException | None = None
        self.rounds = 0
        """Allgathers so far."""
        self.surplus = 0
        """Batches this rank had, or had begun to have, beyond the shortest rank's."""

    def __iter__(self) -> Agreed[T]:
        return self

    def __next__(self) -> T:
        while not self._granted:
            if self._last:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                raise StopIteration
            self._round()
        self._granted -= 1
        return self._held.popleft()

    def _round(self) -> None:
        offers = self._group.allgather(self._offer())
        self.rounds += 1
        verdict = settle([offer for offer in offers if isinstance(offer, Offer)], self._every)
        self._granted = verdict.deliver
        self._last = verdict.last
        if not verdict.last:
            return
        while len(self._held) > verdict.deliver:
            self._held.pop()
            self.surplus += 1
        if self._error is None and verdict.failures:
            ranks = [rank for rank, _ in verdict.failures]
            said = dict(verdict.failures)
            self._error = RankFailed(
                f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} failed:"
                f" {'; '.join(said.values())}"
            )

    def _offer(self) -> Offer:
        """Have ``every`` batches ready, or all there are."""
        failure = None
        try:
            while len(self._held) < self._every and self._error is None:
                self._held.append(next(self._batches))
        except StopIteration:
            pass
        except Exception as error:
            self._error = error
        if self._error is not None:
            failure = f"{type(self._error).__name__}: {self._error}"
        return Offer(len(self._held), failure)

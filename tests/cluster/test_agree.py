"""Agreeing on the number of batches: never a hang, never a batch that only some deliver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.cluster.agree import Agreed, Offer, Verdict, settle
from nogil_loader.cluster.group import Group, RankFailed, Ranks, Solo


class Threads:
    """A group whose ranks are threads of one process."""

    def __init__(self, size: int) -> None:
        self.values: list[object] = [None] * size
        self.barrier = threading.Barrier(size, timeout=20)

    def rank(self, rank: int) -> Group:
        return _Rank(self, Ranks(rank, len(self.values)))


class _Rank:
    def __init__(self, threads: Threads, ranks: Ranks) -> None:
        self.threads, self.ranks = threads, ranks

    def allgather(self, value: object) -> list[object]:
        self.threads.values[self.ranks.rank] = value
        self.barrier()
        values = list(self.threads.values)
        self.barrier()
        return values

    def barrier(self) -> None:
        self.threads.barrier.wait()

    def close(self) -> None:
        return None


def everywhere(
    counts: list[int], every: int, failing: dict[int, Exception] | None = None
) -> list[tuple[list[int], Agreed[int], BaseException | None]]:
    """Let every rank iterate; what each delivered, its iterator, and what it raised."""
    group = Threads(len(counts))
    results: dict[int, tuple[list[int], Agreed[int], BaseException | None]] = {}

    def batches(rank: int) -> Iterator[int]:
        yield from range(counts[rank])
        if failing and rank in failing:
            raise failing[rank]

    def work(rank: int) -> None:
        delivered: list[int] = []
        agreed = Agreed(batches(rank), group.rank(rank), every)
        error = None
        try:
            for batch in agreed:
                delivered.append(batch)
        except (ValueError, RankFailed) as problem:
            error = problem
        results[rank] = delivered, agreed, error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [results[rank] for rank in range(len(counts))]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 9))
def test_every_rank_delivers_what_the_shortest_has(counts: list[int], every: int) -> None:
    shortest = min(counts)
    for delivered, agreed, error in everywhere(counts, every):
        assert delivered == list(range(shortest))
        assert error is None
        assert agreed.rounds == shortest // every + 1


@given(st.lists(st.integers(0, 20), min_size=2, max_size=4), st.integers(1, 6), st.integers(0, 3))
def test_a_failure_ends_all_ranks_at_the_same_batch(
    counts: list[int], every: int, which: int
) -> None:
    failing = which % len(counts)
    error = ValueError("bad sample")
    results = everywhere(counts, every, {failing: error})
    shortest = min(counts)
    in_time = counts[failing] // every <= shortest // every
    for rank, (delivered, _, raised) in enumerate(results):
        assert delivered == list(range(shortest))
        if rank == failing and raised is not None:
            assert raised is error
        elif in_time:
            assert isinstance(raised, RankFailed)
            assert str(raised) == f"rank {failing} failed: ValueError: bad sample"
    assert (results[failing][2] is error) == in_time


def test_what_a_rank_had_beyond_the_shortest_is_counted() -> None:
    results = everywhere([3, 7], every=4)
    assert [agreed.surplus for _, agreed, _ in results] == [0, 1], "7 batches, 4 of them looked at"


def test_an_interrupt_is_not_held_back() -> None:
    def batches() -> Iterator[int]:
        yield 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(Agreed(batches(), Solo(), every=4))


def test_a_round_of_no_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Agreed(iter("a"), Solo(), every=0)


def test_a_full_round_is_not_the_last() -> None:
    assert settle([Offer(4), Offer(4, "later")], 4) == Verdict(4, False)


def test_real_ranks_agree_and_end_together(ranks_say: Callable[..., list[object]]) -> None:
    said = ranks_say(
        3,
        """
        from nogil_loader.cluster import connect
        from nogil_loader.cluster.agree import Agreed
        group = connect().group
        agreed = Agreed(iter(range(100 + 7 * group.ranks.rank)), group, every=8)
        say([sum(1 for _ in agreed), agreed.rounds])
        """,
    )
    assert said == [[100, 13]] * 3

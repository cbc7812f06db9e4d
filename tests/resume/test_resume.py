"""Random chains, cut anywhere and continued with other threads: the same values, none twice.

Every case is a number; a failing one prints the program that runs it again. 2,000 cases, and
100,000 with NOGIL_LOADER_SOAK=1.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

import nogil_loader as nl
from nogil_loader import stages
from nogil_loader.engine.threads import Threads as Pool
from nogil_loader.pipeline import Pipeline
from tests.resume.chains import Chance, double, fragile, length, middle, noise
from tests.resume.laws import (
    code,
    each_once_out_of_order,
    each_once_over_all_ranks,
    ranked,
    read,
    read_whole,
    same_however_cut,
    samples,
    saved,
    start,
)

TIMES = 50 if os.environ.get("NOGIL_LOADER_SOAK") == "1" else 1
CHUNK = 100
CUT, OUT_OF_ORDER, ELASTIC = 1200 * TIMES, 400 * TIMES, 400 * TIMES
"""Cases of each kind."""


def chunks(count: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("begin", range(0, count, CHUNK))


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Threads that stay warm from run to run: starting them is half of what a case costs."""
    with Pool() as threads:
        yield threads


def check(number: int, pool: Pool, law: Callable[..., None], *given: object) -> None:
    """Hold a case to a law; what breaks it says how to run it again."""
    try:
        law(*given, pool)
    except Exception as error:
        error.add_note(code(number, law, *given))
        raise


def drawn(begin: int, pick: Callable[[Chance], object]) -> Iterator[tuple[int, Chance, object]]:
    """As many cases as a chunk has; chains that are refused (test_misuse says why) are not."""
    found, number = 0, begin * 3
    while found < CHUNK:
        chance = Chance(number)
        try:
            chain = pick(chance)
        except ValueError:
            chain = None
        if chain is not None:
            found += 1
            yield number, chance, chain
        number += 1
    assert number < (begin + CHUNK) * 3, "more chains are refused than drawn"


@chunks(CUT)
def test_any_chain_cut_anywhere_continues_bit_by_bit(begin: int, pool: Pool) -> None:
    for number, chance, chain in drawn(begin, Chance.any_chain):
        shares = [chance.random.random() for _ in range(chance.random.randint(1, 3))]
        threads = [chance.threads() for _ in range(4)]
        epoch = chance.random.randint(0, 2)
        check(number, pool, same_however_cut, chain, epoch, shares, threads)


def batched(chance: Chance) -> object:
    """A chain whose values have numbers: there is no state where samples come in any order."""
    chain = chance.any_chain()
    with chain.run(ordered=False) as run:
        try:
            read(run)
            run.state()
        except ValueError:
            return None
    return chain


@chunks(OUT_OF_ORDER)
def test_out_of_order_each_batch_comes_once_over_all_cuts(begin: int, pool: Pool) -> None:
    for number, chance, chain in drawn(begin, batched):
        shares = [chance.random.random() for _ in range(2)]
        threads = [chance.threads() for _ in range(4)]
        check(number, pool, each_once_out_of_order, chain, shares, threads)


@chunks(ELASTIC)
def test_another_world_size_sees_each_sample_of_the_epoch_once(begin: int, pool: Pool) -> None:
    for number, chance, (chain, remainder) in drawn(begin, Chance.elastic_chain):
        random = chance.random
        worlds = [random.randint(1, 4) for _ in range(random.randint(2, 4))]
        cuts = [random.randint(0, 4) for _ in range(7)]
        threads = [chance.threads() for _ in range(3)]
        epoch = random.randint(0, 2)
        law = each_once_over_all_ranks
        check(number, pool, law, chain, epoch, not remainder, worlds, cuts, threads)


@pytest.mark.parametrize("worlds", [(2, 3), (3, 1, 2), (1, 4), (2, 2)])
@pytest.mark.parametrize("cuts", [(0,), (3,), (1, 4, 2)])
def test_ranks_that_stop_at_a_number_share_what_is_left_of_it(
    worlds: tuple[int, ...], cuts: tuple[int, ...]
) -> None:
    """24 batches in all, enough for everything: each rank has as many as the others in the last
    turn, no sample is missing, and those that are repeated are of the epoch."""
    chain = nl.from_sequence(range(70)).shuffle(3).shard(0, 1, batches=24 // worlds[0]).batch(3)
    options: dict[str, object] = {}
    taken, seen = 0, set()
    for turn, world in enumerate(worlds):
        last = turn == len(worlds) - 1
        states, counts = [], []
        for rank in range(world):
            with start(ranked(chain, rank, world), (2, 1, 1), None, **options) as run:
                got = read(run, None if last else cuts[rank % len(cuts)])
                states.append(saved(run.state()))
            counts.append(len(got))
            seen |= set(samples(got))
        taken += sum(counts)
        options = {"resume": saved(nl.merge_states(states))}
    assert len(set(counts)) == 1
    assert 24 <= taken < 24 + sum(worlds)
    assert seen == set(range(70))


@pytest.mark.parametrize(
    ("chain", "cure"),
    [
        (nl.from_sequence(range(40)).shard(0, 1).batch(2).take(9), "take"),
        (nl.from_sequence(range(40)).shard(0, 1).batch(2).skip(1), "skip"),
        (nl.from_sequence(range(40)).shard(0, 1).repeat(2).batch(3), "put it before shard"),
        (nl.from_sequence(range(40)).shard(0, 1).batch(3).repeat(2), "each pass of a rank"),
    ],
    ids=["take", "skip", "repeat after shard", "repeat after batch"],
)
def test_what_counts_for_each_rank_goes_on_with_the_same_ranks_only(
    chain: Pipeline[object], cure: str
) -> None:
    states = []
    for rank in range(2):
        with ranked(chain, rank, 2).run() as run:
            read(run, 3)
            states.append(saved(run.state()))
    with pytest.raises(nl.StateMismatch, match=cure):
        ranked(chain, 0, 3).run(resume=nl.merge_states(states))
    with ranked(chain, 1, 2).run(resume=states[1]) as run:
        assert len(read(run, 2)) == 2


def test_a_batch_whose_rows_are_not_its_samples_is_not_given_to_other_ranks() -> None:
    chain = nl.from_sequence(range(40)).batch(4).map(middle).unbatch()
    with chain.run() as run:
        read(run, 2)
        state = run.state()
    with pytest.raises(nl.StateMismatch, match="rows are not simply its samples"):
        nl.merge_states([state])
    with chain.run(resume=state) as run:
        assert int(next(run)) == 2


@pytest.mark.parametrize("remainder", ["drop", "wrap"])
def test_a_rank_made_short_by_skips_completes_its_batches_with_its_own_good_samples(
    remainder: str,
) -> None:
    chain = nl.from_sequence(range(30)).shuffle(2).shard(0, 1, remainder=remainder)
    chain = chain.map(fragile, on_error="skip").batch(4)
    sizes, shown = [], []
    for rank in range(4):
        got = read_whole(ranked(chain, rank, 4), 0, (2, None, 1), None)
        sizes.append([len(batch[1]) for batch in got])  # type: ignore[index]
        shown.append(samples(got))
    assert sizes == [[4, 3] if remainder == "drop" else [4, 4]] * 4
    good = {n for n in range(30) if n % 7 != 3}
    everywhere = set().union(*shown)
    assert everywhere <= good
    assert len(good - everywhere) <= (3 if remainder == "drop" else 0)
    for one, other in itertools.combinations(shown, 2):
        assert remainder == "wrap" or not set(one) & set(other)


def test_with_padding_what_completes_a_rank_is_masked() -> None:
    rows = [{"n": n} for n in range(7)]
    chain = nl.from_sequence(rows).shard(1, 2, remainder="pad")
    (batch,) = chain.map(fragile, key="n", on_error="skip").batch(9)
    # 1, 3 (skipped), 5, a first one of the epoch for the remainder, and 1 for what was skipped
    assert batch["n"].tolist() == [1, 5, 0, 1]
    assert batch["masked"].tolist() == [False, False, True, True]


def test_a_rank_that_must_skip_everything_is_an_error_and_no_endless_search() -> None:
    chain = nl.from_sequence([3, 10, 17]).shard(0, 1).map(fragile, on_error="skip").batch(2)
    with pytest.raises(RuntimeError, match="all samples of this rank were skipped"):
        list(chain)


def test_an_augmentation_after_shard_and_repeat_is_that_of_the_position() -> None:
    """Whatever the world size, and so different on every rank."""
    numbers = nl.from_sequence(range(6)).shuffle(1)
    alone = [n for b in numbers.repeat(2).map(noise, rng=True).batch(3) for n in b.tolist()]
    shared = [
        n
        for rank in range(2)
        for b in numbers.shard(rank, 2).repeat(2).map(noise, rng=True).batch(3)
        for n in b.tolist()
    ]
    assert sorted(shared) == sorted(alone)


def test_a_case_that_fails_prints_the_program_that_fails(pool: Pool) -> None:
    """A chain that is no function of its data: a law that is broken."""
    chain = nl.from_sequence(range(20)).map(Forgetful()).batch(4)
    with pytest.raises(AssertionError) as caught:
        check(7, pool, same_however_cut, chain, 0, [0.5], [(1, None, 1), (2, 1, 1)])
    (note,) = caught.value.__notes__
    assert note.startswith("case 7; run this again")
    program = note.split("\n", 1)[1]
    with pytest.raises(AssertionError, match="cut at"):
        exec(program, {"Forgetful": Forgetful})


class Forgetful:
    """Never gives the same answer twice."""

    calls = 0

    def __call__(self, value: int) -> int:
        Forgetful.calls += 1
        return Forgetful.calls

    def __repr__(self) -> str:
        return "Forgetful()"


def test_after_resuming_no_op_is_called_for_what_was_accounted_for() -> None:
    calls: list[int] = []

    def op(value: int) -> int:
        calls.append(value)
        return value

    chain = nl.from_sequence(range(1000)).map(op).batch(10).prefetch(1).workers(1, block=1)
    with chain.run() as run:
        read(run, 50)
        state = run.state()
    calls.clear()
    with chain.run(resume=state) as run:
        assert read(run, 1) == [("int64", list(range(500, 510)))]
    assert min(calls) == 500


def test_a_state_of_other_data_or_another_chain_is_refused() -> None:
    chain = nl.from_sequence(range(20)).map(double).batch(4)
    with chain.run() as run:
        next(run)
        state = run.state()
    for other in (
        nl.from_sequence(range(21)).map(double).batch(4),
        nl.from_sequence(range(20)).map(double).batch(5),
        nl.from_sequence(range(20)).map(length).batch(4),
        nl.from_sequence(range(20)).shuffle(seed=1).map(double).batch(4),
    ):
        with pytest.raises(ValueError, match=r"allow_changes|changed|other|differ"):
            other.run(resume=state)
    assert stages.name_of(double) == "double"

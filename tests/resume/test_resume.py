"""Random chains, cut anywhere and continued with other threads: the same values, none twice.

Every case is a number; a failing one prints the program that runs it again. 2,000 cases, and
100,000 with NOGIL_LOADER_SOAK=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

import nogil_loader as nl
from nogil_loader import stages
from nogil_loader.engine.threads import Threads as Pool
from tests.resume.chains import Chance, double, length
from tests.resume.laws import (
    code,
    each_once_out_of_order,
    each_once_over_all_ranks,
    read,
    same_however_cut,
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

"""The rules of docs/rules.md: each has its test, and here are those that have no better place."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader.position.keys import Keyed
from tests.resume.chains import children, double, fragile, noise
from tests.resume.laws import read, saved

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_named_for_a_rule_exists() -> None:
    page = (ROOT / "docs" / "rules.md").read_text()
    rules = [line for line in page.splitlines() if line.startswith("| ") and "| rule" not in line]
    assert len(rules) >= 50
    for rule in rules:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", rule)
        assert named, rule
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def drawn(value: int, position: int, *child: int, seed: int = 5, epoch: int = 2) -> int:
    """What ``noise`` makes of a value there."""
    return noise(value, Keyed(seed, epoch, "noise")(position, *child))


def test_a_draw_is_that_of_seed_epoch_position_and_stage() -> None:
    chain = nl.from_sequence(range(9)).shuffle(3)
    with chain.run(epoch=2) as run:
        values = [int(value) for value in run]
    with chain.map(noise, rng=True).run(epoch=2, seed=5) as run:
        assert list(run) == [drawn(value, at) for at, value in enumerate(values)]


def test_a_child_adds_its_number() -> None:
    with (
        nl.from_sequence(range(5))
        .flat_map(children)
        .map(noise, rng=True)
        .run(epoch=2, seed=5) as run
    ):
        got = list(run)
    expected = [drawn(c, at, k) for at in range(5) for k, c in enumerate(children(at))]
    assert got == expected


def shaken(batch: np.ndarray, rng: np.random.Generator) -> list[int]:
    return [int(rng.integers(1000))]


def test_a_batch_draws_by_its_first_position() -> None:
    with nl.from_sequence(range(7)).batch(3).map(shaken, rng=True).run(epoch=2, seed=5) as run:
        got = list(run)
    keyed = Keyed(5, 2, "shaken")
    assert got == [[int(keyed(first).integers(1000))] for first in (0, 3, 6)]


def test_an_inserted_stage_reseeds_no_other() -> None:
    plain = nl.from_sequence(range(9)).map(noise, rng=True)
    more = nl.from_sequence(range(9)).map(abs).map(noise, rng=True).map(abs)
    assert list(more) == list(plain)


def test_the_seed_of_a_run_leaves_the_order_alone() -> None:
    chain = nl.from_sequence(range(50)).shuffle(3)
    with chain.run(seed=1) as one, chain.run(seed=2) as other:
        assert list(one) == list(other) == list(chain)


def test_where_time_decides_there_is_no_state() -> None:
    with nl.from_sequence(range(9)).batch(2, max_wait=5.0).run() as run:
        next(run)
        with pytest.raises(ValueError, match="time decide"):
            run.state()


def test_take_between_shard_and_batch_is_refused_with_the_cure() -> None:
    sharded = nl.from_sequence(range(9)).shard(0, 2)
    for change in (sharded.take, sharded.skip):
        with pytest.raises(ValueError, match=r"before shard\(\) .* or after batch\(\)"):
            change(3)


def test_what_was_copied_ahead_is_not_delivered() -> None:
    chain = nl.from_sequence(range(40)).map(double).batch(4).prefetch(4).to_device("host")
    with chain.run() as run:
        read(run, 2)
        state = saved(run.state())
    with chain.run(resume=state) as run:
        assert [int(batch[0]) for batch in run] == list(range(16, 80, 8))


def test_skips_before_a_cut_count_after_it() -> None:
    chain = nl.from_sequence(range(30)).map(fragile, on_error="skip", max_skips=2).batch(2)
    with chain.run() as run:
        read(run, 6)
        state = saved(run.state())
    with pytest.raises(ExceptionGroup, match="3 of"), chain.run(resume=state) as run:
        read(run)


def test_epochs_go_on_in_the_middle_of_one() -> None:
    chain = nl.from_sequence(range(12)).shuffle(1).batch(3)
    with chain.run(epoch=1) as run:
        read(run, 3)
        state = saved(run.state())
    assert [len(read(run)) for run in chain.epochs(4, resume=state)] == [1, 4, 4]


def test_a_shuffle_after_an_endless_repeat_is_refused() -> None:
    with pytest.raises(ValueError, match=r"put shuffle before repeat\(\)"):
        nl.from_sequence(range(5)).repeat().shuffle(1)

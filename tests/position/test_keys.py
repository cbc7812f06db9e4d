"""Randomness by place: reproducible, independent, and cheap to re-key."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.position.keys import Keyed, stage_key
from tests.position.laws import law

places = st.integers(0, 2**62)
children = st.lists(st.integers(0, 2**31), max_size=4).map(tuple)
few = st.lists(st.integers(0, 1), max_size=5).map(tuple)
"""Of which two drawn ones often differ in one number only."""


@law
@given(st.integers(0, 2**64), st.integers(0, 9), st.text(max_size=9), places, children)
def test_what_is_drawn_depends_on_the_place_alone(
    seed: int, epoch: int, stage: str, place: int, children: tuple[int, ...]
) -> None:
    one = Keyed(seed, epoch, stage)
    first = one(place, *children).integers(2**63, size=3).tolist()
    one(place + 1).normal(size=3)
    one(place + 2).integers(2, size=1, dtype=np.uint32)  # leaves half a word in the buffer
    assert one(place, *children).integers(2**63, size=3).tolist() == first
    assert Keyed(seed, epoch, stage)(place, *children).integers(2**63, size=3).tolist() == first


def test_half_words_start_anew_at_every_place() -> None:
    keyed = Keyed(0, 0, "augment")
    draws = [int(keyed(place).integers(2**32, dtype=np.uint32)) for place in range(1000)]
    assert len(set(draws)) == 1000
    assert keyed(5).integers(2**32, size=3, dtype=np.uint32)[0] == draws[5]


@law
@given(places, children | few, places, children | few)
def test_other_places_give_other_draws(
    one: int, one_children: tuple[int, ...], two: int, two_children: tuple[int, ...]
) -> None:
    keyed = Keyed(1, 2, "augment")
    first = keyed(one, *one_children).integers(2**63, size=2).tolist()
    second = keyed(two, *two_children).integers(2**63, size=2).tolist()
    assert (first == second) == ((one, one_children) == (two, two_children))


def test_no_two_descendants_of_a_sample_draw_the_same() -> None:
    keyed = Keyed(1, 2, "augment")
    tree = [path for depth in range(5) for path in product(range(3), repeat=depth)]
    draws = {keyed(7, *path).integers(2**63, size=2).tobytes() for path in tree}
    assert len(draws) == len(tree) == 1 + 3 + 9 + 27 + 81


def test_seed_epoch_and_stage_each_change_the_key() -> None:
    keys = {stage_key(s, e, n) for s in range(20) for e in range(20) for n in ("a", "b", "a ")}
    assert len(keys) == 20 * 20 * 3


def test_the_key_and_the_draws_are_pinned() -> None:
    assert stage_key(0, 0, "augment") == (14953477591210042721, 7179523144685895157)
    keyed = Keyed(0, 0, "augment")
    assert keyed(7, 1).integers(1000, size=4).tolist() == [261, 916, 396, 472]
    assert keyed(7, 1, 2).integers(1000, size=4).tolist() == [881, 841, 780, 178]
    assert keyed(7, 1, 2, 3).integers(1000, size=4).tolist() == [123, 143, 864, 721]


@pytest.mark.parametrize("neighbour", ["position", "child", "stage", "epoch", "seed"])
def test_neighbours_are_uncorrelated(neighbour: str) -> None:
    count = 20_000
    base = Keyed(3, 0, "augment")
    others = {
        "position": (base, 1, ()),
        "child": (base, 0, (0,)),
        "stage": (Keyed(3, 0, "augment2"), 0, ()),
        "epoch": (Keyed(3, 1, "augment"), 0, ()),
        "seed": (Keyed(4, 0, "augment"), 0, ()),
    }
    other, shift, below = others[neighbour]
    one = np.array([base(place).random(2) for place in range(count)])
    two = np.array([other(place + shift, *below).random(2) for place in range(count)])
    for left in (0, 1):
        for right in (0, 1):
            correlation = np.corrcoef(one[:, left], two[:, right])[0, 1]
            assert abs(correlation) * np.sqrt(count) < 4.5


def test_first_draws_over_positions_are_uniform() -> None:
    keyed = Keyed(0, 0, "crop")
    draws = np.array([keyed(place).random() for place in range(50_000)])
    counts = np.bincount((draws * 100).astype(int), minlength=100)
    statistic = float(((counts - 500) ** 2 / 500).sum())
    assert 50 < statistic < 160  # chi-square of 99 degrees of freedom

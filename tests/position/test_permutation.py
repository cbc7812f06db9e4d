"""The permutation is a bijection, the same everywhere, and looks random."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import factorial, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.position.permutation import LONGEST, SHORT, Permutation, derive, permute
from tests.position.laws import law


def test_is_a_bijection_for_every_length_up_to_2000() -> None:
    for length in range(2001):
        images = Permutation(length, seed=length, epoch=1)(np.arange(length))
        assert np.array_equal(np.sort(images), np.arange(length))


@law
@given(st.integers(1, LONGEST), st.integers(0, 2**64), st.integers(0, 1000), st.data())
def test_images_are_distinct_and_inside_at_any_length(
    length: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, length - 1), unique=True, max_size=50))
    images = Permutation(length, seed, epoch)(np.array(chosen, np.int64))
    assert len(set(images.tolist())) == len(chosen)
    assert all(0 <= image < length for image in images.tolist())


@law
@given(st.integers(1, 5000), st.integers(0, 2**32), st.data())
def test_how_positions_are_cut_into_blocks_does_not_matter(
    length: int, seed: int, data: st.DataObject
) -> None:
    shuffle = Permutation(length, seed)
    cut = data.draw(st.integers(0, length))
    whole = shuffle(np.arange(length))
    parts = np.concatenate([shuffle(np.arange(cut)), shuffle(np.arange(cut, length))])
    assert np.array_equal(whole, parts)


@law
@given(st.sampled_from([1, 2, 5, SHORT, SHORT + 1, 1000, 10**9]), st.integers(0, 2**32))
def test_one_key_for_each_position_agrees_with_one_key_for_all(length: int, seed: int) -> None:
    positions = np.linspace(0, length - 1, 40).astype(np.int64)
    keys = derive(np.array([seed], np.uint64), np.arange(40) % 3)
    together = permute(positions, length, keys)
    alone = [permute(positions[[i]], length, keys[[i]])[0] for i in range(40)]
    assert together.tolist() == alone


def test_the_order_is_pinned_so_that_old_checkpoints_keep_their_meaning() -> None:
    assert Permutation(5, 17)(np.arange(5)).tolist() == [2, 3, 1, 0, 4]
    assert Permutation(1000, 17, 3)(np.arange(5)).tolist() == [733, 691, 296, 947, 743]
    long = [433637897106135, 469068599334197, 647374351399608]
    assert Permutation(10**15, 2**63)(np.arange(3)).tolist() == long


def test_positions_outside_are_refused() -> None:
    for outside in (-1, 7):
        with pytest.raises(IndexError, match=r"range\(7\)"):
            Permutation(7, 0)(np.array([outside]))
    with pytest.raises(ValueError, match="2\\*\\*62"):
        Permutation(LONGEST + 1, 0)


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_a_short_length_are_equally_likely(length: int) -> None:
    times = 500 * factorial(length)
    keys = derive(np.array([length], np.uint64), np.arange(times))
    rows = np.stack([permute(np.full(times, at), length, keys) for at in range(length)], axis=1)
    seen = Counter(map(tuple, rows.tolist()))
    assert set(seen) == set(permutations(range(length)))
    statistic = sum((count - 500) ** 2 / 500 for count in seen.values())
    assert abs(_normal_of_chi_square(statistic, factorial(length) - 1)) < 4


@pytest.mark.parametrize("length", [65, 100, 257, 1000, 4096, 100_000])
def test_statistics_over_1000_seeds_are_those_of_a_true_shuffle(length: int) -> None:
    """Kolmogorov-Smirnov: the statistics of our shuffles and of NumPy's are one distribution.

    Of each seed's shuffle: chi-square of where its first half goes and of pairs of
    neighbours, serial correlations, runs, and correlation with the identity. Comparing
    with a true shuffle spares the approximations that p-values of short lengths need.
    """
    ours = np.array([_statistics(_ours(length, seed), length) for seed in range(1000)])
    true = np.array([_statistics(_true(length, seed), length) for seed in range(1000)])
    for column in range(ours.shape[1]):
        assert _two_sample_distance(ours[:, column], true[:, column]) < 0.0872  # alpha .001


def _ours(length: int, seed: int) -> np.ndarray:
    return Permutation(length, seed)(np.arange(min(length, 2000)))


def _true(length: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if length <= 4096:
        return rng.permutation(length)[: min(length, 2000)]
    return rng.choice(length, 2000, replace=False)


def _statistics(images: np.ndarray, length: int) -> tuple[float, ...]:
    part = images[: max(20, images.size // 2)]
    counts = np.bincount(part * 10 // length, minlength=10)
    spread = float(((counts - part.size / 10) ** 2).sum())
    serial = [float(np.corrcoef(images[:-lag], images[lag:])[0, 1]) for lag in (1, 2, 7)]
    rising = float(np.count_nonzero(np.diff(images) > 0))
    fixed = float(np.corrcoef(images, np.arange(images.size))[0, 1])
    cells = np.bincount((images[:-1] * 5 // length) * 5 + images[1:] * 5 // length, minlength=25)
    return spread, *serial, rising, fixed, float((cells.astype(float) ** 2).sum())


@pytest.mark.parametrize("length", [65, 1000, 100_000])
def test_two_seeds_and_two_epochs_are_unrelated(length: int) -> None:
    values = []
    places = np.arange(min(length, 2000))
    for seed in range(300):
        one = Permutation(length, seed, 0)(places)
        for other in (Permutation(length, seed, 1), Permutation(length, seed + 1, 0)):
            values.append(np.corrcoef(one, other(places))[0, 1] * sqrt(places.size - 1))
    assert abs(np.mean(values)) < 4 / sqrt(len(values))
    assert abs(np.std(values) - 1) < 0.15


def _two_sample_distance(one: np.ndarray, other: np.ndarray) -> float:
    """The Kolmogorov-Smirnov distance between two samples."""
    values = np.concatenate([one, other])
    below_one = np.searchsorted(np.sort(one), values, side="right") / one.size
    below_other = np.searchsorted(np.sort(other), values, side="right") / other.size
    return float(np.abs(below_one - below_other).max())


def _normal_of_chi_square(statistic: float, freedom: int) -> float:
    """Wilson and Hilferty's cube-root transform to a standard normal."""
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / sqrt(spread))

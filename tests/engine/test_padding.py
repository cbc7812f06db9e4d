"""Padded and packed batches are what a loop over single values makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.engine.errors import CollateError
from nogil_loader.engine.padding import Measure, Packing, Padding
from nogil_loader.position.packing import Algorithm, packs
from tests.position.laws import law

lengths = st.lists(st.integers(0, 9), min_size=1, max_size=6)
algorithms = st.sampled_from(["first_fit", "best_fit", "concat"])


def counting(length: int, axis: int, start: int) -> np.ndarray:
    """An array of (length, 2) or (2, length) in which no value is like another."""
    values = np.arange(start, start + 2 * length, dtype=np.int32)
    return values.reshape((length, 2) if axis == 0 else (2, length))


def padded(array: np.ndarray, target: int, axis: int, value: int) -> np.ndarray:
    widths = [(0, 0), (0, 0)]
    widths[axis] = (0, target - array.shape[axis])
    return np.pad(array, widths, constant_values=value)


@law
@given(lengths, st.integers(0, 1), st.integers(-1, 1), st.integers(1, 4), st.booleans())
def test_padding_is_that_of_numpy_to_the_longest_or_to_what_was_said(
    some: list[int], axis: int, value: int, multiple: int, told: bool
) -> None:
    arrays = [counting(length, axis, 100 * n + 1) for n, length in enumerate(some)]
    target = 9 if told else next(n for n in range(13) if n >= max(some) and n % multiple == 0)
    padding = Padding(axis=axis, value=value, multiple=multiple)
    got = padding.pad_all(arrays, 9 if told else None)
    wanted = [padded(array, target, axis, value) for array in arrays]
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)  # type: ignore[arg-type]


@law
@given(lengths, st.sampled_from([None, "words", ("words",), ["words", "marks"]]), st.booleans())
def test_of_a_dict_the_stated_fields_are_padded_and_their_lengths_kept(
    some: list[int], key: object, keep: bool
) -> None:
    samples = [
        {"name": str(n), "words": np.arange(n, n + size), "marks": np.ones(2 * size), "one": 1}
        for n, size in enumerate(some)
    ]
    before = [dict(sample) for sample in samples]
    got = Padding(key=key, lengths="lengths" if keep else None).pad_all(samples, None)
    assert samples == before, "the samples themselves are not touched"
    both = key is None or "marks" in key  # type: ignore[operator]
    for sample, size, out in zip(samples, some, got, strict=True):
        assert isinstance(out, dict)
        assert out.pop("lengths", None) == (size if keep else None)
        assert out.keys() == sample.keys()
        assert (out["name"], out["one"]) == (sample["name"], 1)
        words, marks = sample["words"], sample["marks"]
        assert isinstance(words, np.ndarray)
        assert isinstance(marks, np.ndarray)
        assert out["words"].tolist() == words.tolist() + [0] * (max(some) - size)
        assert len(out["marks"]) == (2 * max(some) if both else 2 * size)


@law
@given(st.integers(0, 12), st.integers(0, 12))
def test_what_is_longer_is_refused_and_nothing_is_cut(length: int, to: int) -> None:
    padding = Padding(to=to)
    if length > to:
        with pytest.raises(CollateError, match=f"length {length} does not fit pad.to={to}"):
            padding(np.zeros(length))
    else:
        assert np.shape(padding(np.zeros(length))) == (to,)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [3, [1, 2], np.float32(1), np.zeros(())])
def test_what_has_no_such_axis_is_refused_with_the_cure(wrong: object) -> None:
    with pytest.raises(CollateError, match=r"name the fields to pad"):
        Padding(to=3)(wrong)


@law
@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(1, 3), algorithms)
def test_each_token_of_a_packed_batch_is_where_its_segment_says(
    sizes: list[int], rows: int, algorithm: Algorithm
) -> None:
    grouper = packs(20, rows, algorithm)
    samples = [
        {"text": np.arange(n * 100 + 1, n * 100 + 1 + size, dtype=np.int16), "name": n}
        for n, size in enumerate(sizes)
    ]
    for group in grouper.push(len(sizes), sizes) + grouper.flush():
        inside = [samples[at] for at in group.items]
        batch = Packing(20, "text")(inside, group.layout)
        assert isinstance(batch, dict)
        assert isinstance(group.layout, tuple)
        height = max(segment.row for segment in group.layout) + 1
        tokens, ids, places = np.zeros((3, height, 20), np.int32)
        seen = [0] * height
        for segment in group.layout:
            seen[segment.row] += 1
            for n in range(segment.length):
                at = segment.row, segment.offset + n
                tokens[at] = inside[segment.item]["text"][segment.start + n]  # type: ignore[index]
                ids[at] = seen[segment.row]
                places[at] = segment.start + n
        assert batch.keys() == {"text", "segment_ids", "positions", "name"}
        np.testing.assert_array_equal(batch["text"], tokens.astype(np.int16), strict=True)
        np.testing.assert_array_equal(batch["segment_ids"], ids, strict=True)
        np.testing.assert_array_equal(batch["positions"], places, strict=True)
        assert batch["name"] == [inside[segment.item]["name"] for segment in group.layout]


def test_plain_sequences_are_packed_under_the_name_of_tokens() -> None:
    grouper = packs(4, 1, "first_fit")
    (group,) = grouper.push(1, [4])
    batch = Packing(4)([np.arange(4)], group.layout)
    assert isinstance(batch, dict)
    assert batch["tokens"].tolist() == [[0, 1, 2, 3]]


def test_what_is_no_sequence_or_of_another_dtype_is_refused() -> None:
    grouper = packs(8, 1, "first_fit")
    (group,) = grouper.push(2, [2, 2]) + grouper.flush()
    with pytest.raises(CollateError, match="one-dimensional"):
        Packing(8)([np.zeros((2, 2)), np.zeros(2)], group.layout)
    with pytest.raises(CollateError, match="float64 and int64"):
        Packing(8)([np.zeros(2), np.zeros(2, np.int64)], group.layout)


@law
@given(st.integers(-2, 12), st.none() | st.integers(0, 9))
def test_a_size_is_measured_and_one_that_no_group_can_hold_is_refused(
    size: int, largest: int | None
) -> None:
    measure = Measure(int, "pack", largest, "cut it in a map")
    if size < 0 or (largest is not None and size > largest):
        with pytest.raises(ValueError, match=f"pack: a length of {size} .*; cut it in a map"):
            measure(size)
    else:
        assert measure(size) == (size, size)

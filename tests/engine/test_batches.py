"""Batch buffers: the structure of samples, whichever row is written first, and nothing cast."""

from __future__ import annotations

import re
from collections import OrderedDict, namedtuple
from concurrent.futures import Future
from enum import IntEnum
from random import Random
from threading import Lock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nogil_loader.engine.batches import BatchBuffer, sizeof, stack_plain
from nogil_loader.engine.errors import CollateError, UndeclaredFuture

Pair = namedtuple("Pair", ["left", "right"])


class Colour(IntEnum):
    RED = 1


def name(row: int) -> str:
    return f"<{row}>"


def write(samples: list[object], pieces: list[tuple[int, int]]) -> object:
    """Through a buffer, in pieces (begin, end) of rows; an error as a value."""
    buffer = BatchBuffer(len(samples), np.empty, Lock())
    for begin, end in pieces:
        buffer.write(begin, samples[begin:end])
    return buffer.explain(len(samples), name) if buffer.misfit else buffer.result(len(samples))


def rows_named(error: object) -> list[str]:
    return re.findall(r"<\d+>", str(error))


def pieces(count: int, random: Random) -> list[tuple[int, int]]:
    cuts = sorted(random.sample(range(1, count), random.randint(0, count - 1))) if count > 1 else []
    parts = list(zip([0, *cuts], [*cuts, count], strict=True))
    random.shuffle(parts)
    return parts


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return type(one) is type(other) and all(map(same, one, other))
    if isinstance(one, Exception):
        return type(one) is type(other) and rows_named(one) == rows_named(other)
    return type(one) is type(other) and one == other


leaves = st.one_of(
    st.integers(-5, 5),
    st.booleans(),
    st.sampled_from([1.5, "text", b"bytes", None, np.float32(2), np.int64(3), 1 << 70]),
    hnp.arrays(st.sampled_from([np.uint8, np.float32]), st.sampled_from([(), (2,), (3,), (2, 2)])),
)
samples = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"a": inner, "b": inner}),
        st.fixed_dictionaries({"b": inner, "a": inner}),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(samples, min_size=1, max_size=6), st.integers(0, 1 << 20), st.booleans())
def test_order_and_size_of_pieces_change_neither_batch_nor_error(
    drawn: list[object], seed: int, alike: bool
) -> None:
    if alike:
        drawn = [drawn[0]] * len(drawn)
    random = Random(seed)
    whole = write(drawn, [(0, len(drawn))])
    for _ in range(3):
        assert same(write(drawn, pieces(len(drawn), random)), whole)


@given(st.lists(samples, min_size=1, max_size=1), st.integers(1, 5))
def test_a_batch_of_equal_samples_has_their_structure(drawn: list[object], rows: int) -> None:
    sample = drawn[0]
    if any_too_large(sample):
        return
    batch = write([sample] * rows, [(0, rows)])
    check(batch, sample, rows)


def any_too_large(sample: object) -> bool:
    if isinstance(sample, dict):
        return any(map(any_too_large, sample.values()))
    if isinstance(sample, tuple):
        return any(map(any_too_large, sample))
    return isinstance(sample, int) and sample >= 1 << 63


def check(batch: object, sample: object, rows: int) -> None:
    if isinstance(sample, dict):
        assert isinstance(batch, dict)
        assert list(batch) == list(sample)
        for key in sample:
            check(batch[key], sample[key], rows)
    elif isinstance(sample, tuple):
        assert type(batch) is type(sample)
        assert isinstance(batch, tuple)
        for part, item in zip(batch, sample, strict=True):
            check(part, item, rows)
    elif isinstance(sample, (np.ndarray, np.generic, bool, int, float)):
        assert isinstance(batch, np.ndarray)
        assert batch.dtype == np.asarray(sample).dtype
        assert batch.shape == (rows, *np.shape(sample))
        assert batch.tobytes() == np.asarray(sample).tobytes() * rows
    else:
        assert batch == [sample] * rows


MISFITS = {
    "shapes": ([np.zeros(2), np.zeros(3)], "(2,)", "(3,)", "pad(...)"),
    "dtypes": ([np.zeros(2, np.uint8), np.zeros(2)], "uint8", "float64", "cast"),
    "int and float": ([1, 2.5], "type int", "type float", "cast"),
    "float and int": ([2.5, 1], "type float", "type int", "cast"),
    "bool and int": ([True, 1], "type bool", "type int", "cast"),
    "float32 and float": ([np.float32(1), 1.0], "float32", "type float", "cast"),
    "too large an int": ([1, 1 << 64], "type int", "beyond 64 bits", "cast"),
    "array and text": ([np.zeros(2), "text"], "array", "a str", "cast"),
    "number and none": ([1, None], "type int", "NoneType", "cast"),
    "none and number": ([None, 1], "NoneType", "type int", "cast"),
    "a field less": ([{"a": 1, "b": 2}, {"a": 1}], "['a', 'b']", "['a']", "cast"),
    "another field": ([{"a": 1}, {"b": 1}], "['a']", "['b']", "cast"),
    "a field's shape": (
        [{"x": {"y": np.zeros(2)}}, {"x": {"y": np.zeros(4)}}],
        "field ['x']['y']",
        "(4,)",
        "pad(...)",
    ),
    "tuple lengths": ([(1, 2), (1, 2, 3)], "tuple of 2", "tuple of 3", "cast"),
    "tuple and named tuple": ([(1, 2), Pair(1, 2)], "a tuple", "a Pair", "cast"),
    "dict and number": ([{"a": 1}, 1], "a dict", "type int", "cast"),
}


@pytest.mark.parametrize("case", MISFITS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_misfit_is_named_with_both_samples_and_the_cure(case: str, reverse: bool) -> None:
    drawn, first, second, cure = MISFITS[case]
    parts = [(0, 1), (1, 2)]
    error = write(list(drawn), parts[::-1] if reverse else parts)
    assert isinstance(error, CollateError)
    text = str(error)
    assert first in text and second in text and cure in text
    assert text.index("<0>") < text.index("<1>")
    assert "collate=fn" in text


def test_the_lowest_row_that_differs_is_named() -> None:
    drawn: list[object] = [1, 2, "x", 3, 2.5]
    for order in ([(0, 5)], [(4, 5), (3, 4), (2, 3), (1, 2), (0, 1)]):
        error = write(drawn, order)
        assert "<0>" in str(error) and "<2>" in str(error)


def test_one_int_too_large_for_any_array_is_said_so() -> None:
    assert "no array can hold" in str(write([1 << 70], [(0, 1)]))


def test_ints_of_python_and_numpy_are_one_dtype() -> None:
    batch = write([1, np.int64(2), 3], [(0, 3)])
    assert isinstance(batch, np.ndarray)
    assert batch.dtype == np.int64
    assert batch.tolist() == [1, 2, 3]


def test_strings_bytes_none_and_ragged_lists_stay_lists() -> None:
    for drawn in (["a", "bc"], [b"", b"x"], [None, None], [[1], [1, 2]], [None, "a"]):
        assert write(list(drawn), [(0, 2)]) == drawn


def test_masked_arrays_and_enums_are_kept_whole_not_stripped() -> None:
    masked = np.ma.masked_array([1, 2], [True, False])
    batch = write([masked, masked], [(0, 2)])
    assert isinstance(batch, list)
    assert batch[0] is masked
    assert write([Colour.RED, Colour.RED], [(0, 2)]) == [Colour.RED] * 2


def test_dict_keys_are_in_the_order_of_the_first_row() -> None:
    batch = write([{"b": 1, "a": 2}, {"a": 3, "b": 4}], [(1, 2), (0, 1)])
    assert isinstance(batch, dict)
    assert list(batch) == ["b", "a"]
    assert batch["a"].tolist() == [2, 3]
    ordered = write([OrderedDict(x=1), {"x": 2}], [(0, 2)])
    assert isinstance(ordered, dict)


def test_big_endian_and_structured_arrays_keep_their_dtype() -> None:
    for dtype in (">i4", [("x", "u1"), ("y", "f8")], "M8[s]"):
        array = np.zeros(3, dtype)
        batch = stack_plain([array, array])
        assert isinstance(batch, np.ndarray)
        assert batch.dtype == array.dtype


def test_a_future_in_a_batch_is_refused_with_the_cure() -> None:
    buffer = BatchBuffer(1, np.empty, Lock())
    with pytest.raises(UndeclaredFuture, match="in_flight"):
        buffer.write(0, [Future()])


def test_a_row_that_could_not_be_written_is_the_error_whatever_fits() -> None:
    buffer = BatchBuffer(3, np.empty, Lock())
    buffer.write(0, [1, "x"])
    late, early = OSError("late"), OSError("early")
    buffer.spoil(2, late)
    buffer.spoil(1, early)
    assert buffer.explain(3, name) is early


def test_a_short_batch_is_the_rows_that_were_written() -> None:
    buffer = BatchBuffer(4, np.empty, Lock())
    buffer.write(0, [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}])
    batch = buffer.result(2)
    assert isinstance(batch, dict)
    assert batch["x"].tolist() == [1, 2]
    assert batch["y"] == ["a", "b"]


def test_the_bytes_of_arrays_are_told_by_whoever_made_them() -> None:
    buffer = BatchBuffer(4, np.empty, Lock())
    row = {"x": np.zeros(3, np.float32), "n": 1}
    assert buffer.write(2, [row]) == 4 * (12 + 8)
    assert buffer.write(0, [row]) == 0


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (np.zeros(10, np.float32), 40),
        (b"12345", 5),
        ("text", 4),
        (memoryview(b"123"), 3),
        ({"a": b"12", "b": [b"3", (b"4",)]}, 4),
        ((), 0),
    ],
)
def test_size_is_that_of_the_data(value: object, size: int) -> None:
    assert sizeof(value) == size


@given(st.integers(1, 4), st.data())
def test_what_no_array_can_hold_is_named_by_its_lowest_row(rows: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(rows)))
    error = write([1 << 70] * rows, [(row, row + 1) for row in order])
    assert isinstance(error, CollateError)
    assert rows_named(error) == ["<0>", "<1>"][:rows], "the first, and the first beside it"


def test_a_buffer_that_has_or_takes_nothing_keeps_no_bytes() -> None:
    buffer = BatchBuffer(2, np.empty, Lock())
    assert buffer.kept([b"before the first row"]) == 0
    buffer.write(0, ["text", 1])
    assert buffer.misfit
    assert buffer.kept(["text", 1]) == 0

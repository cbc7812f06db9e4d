"""Normalising images, against the formula."""

from __future__ import annotations

import pickle
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nogil_loader.device import normalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

IMAGES = arrays(
    st.sampled_from([np.uint8, np.uint16]),
    st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 4), st.just(3)),
)


@given(IMAGES, st.sampled_from(["float32", "float16"]), st.sampled_from(["NCHW", "NHWC"]))
def test_it_is_the_formula_in_the_layout_asked_for(
    images: np.ndarray,
    dtype: Literal["float32", "float16"],
    layout: Literal["NCHW", "NHWC"],
) -> None:
    before = images.copy()
    out = normalize(MEAN, STD, dtype=dtype, layout=layout)(images)
    wanted = (images.astype(np.float64) / np.iinfo(images.dtype).max - MEAN) / STD
    if layout == "NCHW":
        wanted = wanted.transpose(0, 3, 1, 2)
    assert out.dtype == dtype
    assert out.flags.c_contiguous
    np.testing.assert_allclose(out, wanted, rtol=0, atol=2e-6 if dtype == "float32" else 2e-3)
    np.testing.assert_array_equal(images, before)


def test_floats_are_taken_as_they_are() -> None:
    images = np.full((1, 2, 2, 1), 0.75)
    assert np.allclose(normalize((0.5,), (0.25,))(images), 1.0)


def test_a_view_of_a_larger_batch_is_as_good() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), np.uint8)
    scale = normalize(MEAN, STD)
    np.testing.assert_array_equal(scale(images[:, ::2, 1:5]), scale(images[:, ::2, 1:5].copy()))


def test_a_field_of_a_dict_is_replaced_or_joined() -> None:
    batch = {"image": np.zeros((1, 2, 2, 3), np.uint8), "label": [1]}
    assert normalize(MEAN, STD, key="image")(batch)["image"].shape == (1, 3, 2, 2)
    both = normalize(MEAN, STD, key="image", to="input")(batch)
    assert both["image"] is batch["image"]
    assert both["label"] is batch["label"]
    assert both["input"].shape == (1, 3, 2, 2)


def test_it_prints_as_the_code_that_makes_it_and_pickles() -> None:
    scale = normalize((0.5,), (0.5,), layout="NHWC", key="x")
    assert eval(repr(scale)) == scale
    assert pickle.loads(pickle.dumps(scale)) == scale


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0.5,), (0.5, 0.5)), "mean has 1 channels and std 2"),
        (((), ()), "mean has 0 channels"),
        (((0.5,), (0.0,)), "cannot be divided by 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        normalize(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float64"}, "dtype='float64'"),
        ({"layout": "CHWN"}, "layout='CHWN'"),
        ({"to": "x"}, "say key="),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        normalize(MEAN, STD, **options)


@pytest.mark.parametrize(
    ("batch", "key", "error", "message"),
    [
        (np.zeros((2, 3, 4, 4), np.uint8), None, ValueError, r"shape \(2, 3, 4, 4\); it takes"),
        (np.zeros((4, 4, 3), np.uint8), None, ValueError, r"it takes \[N, H, W, 3\]"),
        (np.zeros((1, 2, 2, 3), np.int32), None, TypeError, "pixels are int32"),
        ({"image": 1}, None, TypeError, r"say key=, one of \['image'\]"),
        ({"image": 1}, "picture", KeyError, "the batch has"),
        ([1], "image", TypeError, "the batch is a list"),
    ],
)
def test_a_batch_it_cannot_take_is_named(
    batch: object, key: str | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        normalize(MEAN, STD, key=key)(batch)

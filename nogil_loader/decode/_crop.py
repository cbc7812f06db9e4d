"""Which part of a picture, and how large it becomes: arithmetic on boxes, no pixels.

Guarantees
- A box is ``(left, top, right, bottom)`` in pixels of the *upright* picture, floats allowed,
  not empty, inside the picture; a size is ``(height, width)``, as arrays have it.
- ``random_crop`` depends on its arguments and the generator it is given, on nothing else.

The EXIF orientations are those of the Exif 2.32 standard, tag 0x0112.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nogil_loader.decode import _describe

Box: TypeAlias = "tuple[float, float, float, float]"
Crop: TypeAlias = "str | float | Box | Callable[[int, int, np.random.Generator | None], Box] | None"


@dataclass(frozen=True, repr=False)
class random_crop:
    """A random part of a picture, for ``decode.image(crop=…)`` in a ``map(…, rng=True)``.

    The area is a share of the picture drawn uniformly from ``scale``, the width over the
    height is drawn log-uniformly from ``ratio``: the crop of the Inception networks
    (Szegedy et al. 2014, arXiv 1409.4842). Where ten draws don't fit into the picture, it is
    the largest centred box whose ratio lies in the range.

    >>> crop = random_crop(scale=(0.25, 0.25), ratio=(1.0, 1.0))
    >>> left, top, right, bottom = crop(100, 100, np.random.default_rng(7))
    >>> right - left, bottom - top
    (50, 50)
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high < math.inf:
                raise ValueError(f"{name} must be 0 < low <= high, not {(low, high)}")
        if self.scale[1] > 1:
            raise ValueError(f"scale is a share of the picture, at most 1, not {self.scale}")

    __repr__ = _describe.call

    def __call__(self, height: int, width: int, rng: np.random.Generator | None) -> Box:
        """A box in a picture of this height and width (pixels)."""
        if rng is None:
            raise TypeError(
                "decode.random_crop needs a generator: write map(decode.image(…), rng=True)"
            )
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = height * width * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                left = int(rng.integers(0, width - w + 1))
                top = int(rng.integers(0, height - h + 1))
                return left, top, left + w, top + h
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        return centred(height, width, ratio, 1.0)


def centred(height: int, width: int, ratio: float, share: float) -> Box:
    """The largest centred box with ``width / height == ratio``, its sides times ``share``."""
    w = min(width, height * ratio) * share
    h = min(height, width / ratio) * share
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def check(crop: Crop) -> None:
    """Refuse a crop that can't be meant, when the decoder is made."""
    if crop is None or crop == "center" or callable(crop):
        return
    if isinstance(crop, float):
        if not 0 < crop <= 1:
            raise ValueError(f"crop={crop}: a share of the centred box lies in (0, 1]")
        return
    if isinstance(crop, tuple) and len(crop) == 4:
        kinds = {type(edge) for edge in crop}
        left, top, right, bottom = crop
        if kinds <= {int, float} and (len(kinds) == 1):
            if not (0 <= left < right and 0 <= top < bottom):
                raise ValueError(f"crop={crop} is empty or negative: (left, top, right, bottom)")
            if kinds == {float} and max(crop) > 1:
                raise ValueError(
                    f"crop={crop}: floats are shares of the picture, at most 1.0; give ints "
                    "for pixels"
                )
            return
    raise ValueError(
        f"crop={crop!r} is none of: None, 'center', a share (float), four ints (pixels) or "
        "four floats (shares) as (left, top, right, bottom), a function (height, width, rng)"
    )


def box_of(
    crop: Crop,
    size: int | tuple[int, int] | None,
    height: int,
    width: int,
    rng: np.random.Generator | None,
) -> Box:
    """The part of a picture of this height and width that ``crop`` means."""
    if crop is None:
        return 0, 0, width, height
    if crop == "center" or isinstance(crop, float):
        ratio = size[1] / size[0] if isinstance(size, tuple) else 1.0
        return centred(height, width, ratio, crop if isinstance(crop, float) else 1.0)
    if isinstance(crop, tuple):
        if isinstance(crop[0], float):
            return crop[0] * width, crop[1] * height, crop[2] * width, crop[3] * height
        return crop
    assert callable(crop)
    return crop(height, width, rng)


def inside(box: Box, height: int, width: int) -> bool:
    """Whether the box has pixels, and only pixels that the picture has."""
    left, top, right, bottom = box
    return 0 <= left < right <= width and 0 <= top < bottom <= height


def output_of(crop: Crop, size: int | tuple[int, int] | None, box: Box) -> tuple[int, int]:
    """Height and width of what the box becomes."""
    if isinstance(size, tuple):
        return size
    width, height = box[2] - box[0], box[3] - box[1]
    if size is None:
        return max(1, round(height)), max(1, round(width))
    if crop is not None:
        return size, size
    scale = size / min(width, height)
    return max(1, round(height * scale)), max(1, round(width * scale))


def stored_box(orientation: int, height: int, width: int, box: Box) -> Box:
    """Where an upright box lies in the stored pixels, which are ``height`` x ``width``."""
    left, top, right, bottom = box
    if orientation in (5, 6, 7, 8):
        left, top, right, bottom = top, left, bottom, right
    if orientation in (2, 3, 7, 8):
        left, right = width - right, width - left
    if orientation in (3, 4, 6, 7):
        top, bottom = height - bottom, height - top
    return left, top, right, bottom

"""Pictures to arrays, on Pillow.

Guarantees
- The result is always ``(height, width, channels)``, upright, with the channels of ``mode``
  and the dtype of ``dtype``, or an error of ``nogil_loader.decode.errors``: never a partly
  grey picture, clipped 16-bit values, inverted CMYK or the colours under transparency.
- No setting of Pillow is changed, and none that a host program changed has an effect.
- A decoder holds no state: any number of threads may use one, and ``bind()`` gives each its
  own copy, which is faster on free-threaded builds. Decoding itself runs without the GIL.
- One pass over the pixels where one is enough: JPEGs are decoded at a reduced scale where
  that is still no smaller than what is asked for, crop and resize are one step, and nothing
  is converted that already is what it should be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode import _crop, _describe, _exif, _input, _modes, _pillow
from nogil_loader.decode._crop import Crop
from nogil_loader.decode._input import Encoded
from nogil_loader.decode.errors import DecodeError, TooLargeError, UnsupportedError

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

Picture: TypeAlias = "NDArray[np.generic]"

_INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
_SCALABLE = ("JPEG", "MPO")


@dataclass(frozen=True, repr=False)
class image:
    """Decode a picture: bytes, a buffer or a path to an array (height, width, channels).

    JPEG, PNG, GIF, BMP, TIFF, WebP, AVIF, JPEG 2000, PNM, QOI and PSD, told apart by
    content; of animations the first frame. EXIF orientation is applied, colour profiles are
    not. The array is read-only: ``np.array(x)`` gives one to write to.

    Parameters
    - ``size``: ``(height, width)`` in pixels of the result, or one int: the shorter side
      with the aspect ratio kept or, with a crop, both sides. None: as large as the crop.
    - ``crop``: the part that is kept, of the upright picture. ``"center"``: the largest
      centred box with the aspect ratio of ``size``. A float: that box with its sides times
      this share, so ``image(224, crop=0.875)`` is what evaluation on ImageNet calls "resize
      to 256, crop to 224". ``(left, top, right, bottom)``: ints are pixels, floats shares.
      A function ``(height, width, rng) -> (left, top, right, bottom)`` in pixels, such as
      ``decode.random_crop()``; give the op ``rng=True`` in ``map``.
    - ``mode``: "RGB", "L" (grey), "RGBA" or "LA" (with alpha, 255 where there is none), None:
      whichever of the four the file needs, or "P": the stored numbers of a picture with a
      palette, or in grey, as label maps have them.
    - ``interpolation``: one of nearest, box, bilinear, hamming, bicubic, lanczos. All but
      nearest average over the pixels they shrink, so that nothing aliases.
    - ``background``: RGB, 0-255: what shows through where ``mode`` has no alpha.
    - ``max_pixels``: larger pictures, and results, are a ``TooLargeError`` and never
      decoded. None: no limit.
    - ``dtype``: "uint8", 0-255: 16-bit grey is scaled, v * 255 / 65535 to the nearest.
      "uint16", 0-65535: 16-bit grey is kept, 8-bit is scaled by 257. None: as stored, which
      is uint8, uint16, int32 or float32.
    - ``draft``: False decodes every JPEG at full scale: slower by a fifth when much is
      shrunk, and within a level or two of the same values.

    Raises ``TruncatedError``, ``TooLargeError``, ``UnsupportedError`` (unknown formats; 32-bit
    pictures without ``dtype=None``; 16-bit colour with ``dtype="uint16"``, of which Pillow
    keeps 8 bits) or ``DecodeError``, all naming the path if there is one.

    CMYK is converted without a profile; a JPEG's is taken as inverted if it has Adobe's
    marker, and as it stands if it has none.

    >>> from nogil_loader import decode
    >>> decode.image(size=(2, 3))(b"P5 4 4 255 " + bytes(16)).shape
    (2, 3, 3)
    >>> decode.image(mode="L")(b"P5 2 1 255 " + bytes([10, 20]))[:, :, 0]
    array([[10, 20]], dtype=uint8)
    """

    size: int | tuple[int, int] | None = None
    _: KW_ONLY
    crop: Crop = None
    mode: str | None = "RGB"
    interpolation: str = "bilinear"
    background: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int | None = 89_478_485
    dtype: str | None = "uint8"
    draft: bool = True

    def __post_init__(self) -> None:
        sides = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        if self.size is not None and (
            len(sides) != 2 or not all(isinstance(n, int) and n > 0 for n in sides)
        ):
            raise ValueError(f"size={self.size!r} is neither an int > 0 nor (height, width)")
        _crop.check(self.crop)
        if self.mode is not None and self.mode not in _modes.CHANNELS:
            raise ValueError(f"mode={self.mode!r} is none of {', '.join(_modes.CHANNELS)}, None")
        if self.interpolation not in _INTERPOLATIONS:
            raise ValueError(
                f"interpolation={self.interpolation!r} is none of {', '.join(_INTERPOLATIONS)}"
            )
        if self.mode == "P" and (self.dtype == "uint16" or self.interpolation != "nearest"):
            raise ValueError(
                'mode="P" gives indices, which have no mean and no range: '
                'it takes interpolation="nearest" and not dtype="uint16"'
            )
        if len(self.background) != 3 or not all(0 <= level <= 255 for level in self.background):
            raise ValueError(f"background={self.background!r} is not (red, green, blue), 0-255")
        if self.max_pixels is not None and self.max_pixels < 1:
            raise ValueError(f"max_pixels={self.max_pixels} lets no picture pass; None is no limit")
        if self.dtype not in ("uint8", "uint16", None):
            raise ValueError(f"dtype={self.dtype!r} is none of 'uint8', 'uint16', None")

    __repr__ = _describe.call

    def bind(self) -> Callable[..., Picture]:
        """This decoder for the calling thread alone: ``value -> array``, or ``(value, rng)``."""
        return partial(_decode, self._plan())

    def __call__(self, value: Encoded, rng: np.random.Generator | None = None) -> Picture:
        """The picture in ``value``: content in memory, or the path of a file."""
        return _decode(self._plan(), value, rng)

    def _plan(self) -> _Plan:
        _pillow.load_plugins()
        from PIL import Image

        return _Plan(
            self.size,
            self.crop,
            self.mode,
            Image.Resampling[self.interpolation.upper()],
            self.background,
            self.max_pixels,
            self.dtype,
            self.draft,
            _turns(),
        )


class _Plan(NamedTuple):
    size: int | tuple[int, int] | None
    crop: Crop
    mode: str | None
    resample: Image.Resampling
    background: tuple[int, int, int]
    max_pixels: int | None
    dtype: str | None
    draft: bool
    turns: dict[int, Image.Transpose]


def _turns() -> dict[int, Image.Transpose]:
    """What brings stored pixels upright, by EXIF orientation."""
    from PIL.Image import Transpose

    return {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }


def _decode(plan: _Plan, value: object, rng: np.random.Generator | None = None) -> Picture:
    data, name = _input.read(value, "decode.image")
    try:
        picture = _pillow.open_picture(data, plan.max_pixels)
        if plan.dtype == "uint16" and not _modes.keeps_all_bits(picture):
            raise UnsupportedError("16-bit colour, of which Pillow keeps 8 bits")
        if picture.format not in _SCALABLE:  # only JPEGs can still change their scale
            picture.load()
        exif = picture.info.get("exif")
        orientation = _exif.orientation(exif) if exif else 1
    except MemoryError:
        raise
    except Exception as error:
        raise _pillow.translate(error, data, name) from error
    # Outside the translation, for the crop may be the user's function.
    width, height = picture.size
    upright = (width, height) if orientation > 4 else (height, width)
    box = _crop.box_of(plan.crop, plan.size, *upright, rng)
    if not _crop.inside(box, *upright):
        raise DecodeError(
            f"{name}the crop {box} is not inside the picture, "
            f"{upright[1]} x {upright[0]} pixels (width x height)"
        )
    output = _crop.output_of(plan.crop, plan.size, box)
    if plan.max_pixels is not None and output[0] * output[1] > plan.max_pixels:
        raise TooLargeError(
            f"{name}the result, {output[1]} x {output[0]} pixels, is more than "
            f"max_pixels={plan.max_pixels}"
        )
    if orientation > 1:
        box = _crop.stored_box(orientation, height, width, box)
        output = output[::-1] if orientation > 4 else output
    try:
        if picture.format in _SCALABLE:
            box = _scaled(picture, plan, box, output)
            picture.load()
        return _pixels(picture, plan, orientation, box, output)
    except MemoryError:
        raise
    except Exception as error:
        raise _pillow.translate(error, data, name) from error


def _scaled(picture: ImageFile, plan: _Plan, box: _crop.Box, output: tuple[int, int]) -> _crop.Box:
    """Let the JPEG decoder shrink by 2, 4 or 8 while that leaves no less than is asked for.

    Grey pictures come straight from the luma, which is what they would be computed from.
    """
    spare = min((box[2] - box[0]) / output[1], (box[3] - box[1]) / output[0])
    scale = 8 if spare >= 8 else 4 if spare >= 4 else 2 if spare >= 2 else 1
    width, height = picture.size
    grey = "L" if plan.mode == "L" else None
    if plan.draft and scale > 1:
        picture.draft(grey, (width // scale, height // scale))
        return box[0] / scale, box[1] / scale, box[2] / scale, box[3] / scale
    if grey:
        picture.draft(grey, None)
    return box


def _pixels(
    picture: Image.Image,
    plan: _Plan,
    orientation: int,
    box: _crop.Box,
    output: tuple[int, int],
) -> Picture:
    mode = plan.mode or _modes.own_mode(picture)
    if picture.mode in _modes.DEEP:
        picture = _modes.deep(picture, mode, plan.background, plan.dtype)
    else:
        picture = _modes.shallow(picture, mode, plan.background)
    size = (output[1], output[0])
    if picture.size != size or box != (0, 0, *size):
        picture = picture.resize(size, plan.resample, box)
    if orientation > 1:
        picture = picture.transpose(plan.turns[orientation])
    if picture.mode in _modes.DEEP:
        return _modes.deep_array(np.asarray(picture), mode, plan.dtype)
    if picture.mode != mode and mode != "P":
        picture = picture.convert(mode)
    array: NDArray[np.uint8] = np.asarray(picture)
    if array.ndim == 2:
        array = array[:, :, None]
    return array if plan.dtype != "uint16" else array.astype(np.uint16) * np.uint16(257)

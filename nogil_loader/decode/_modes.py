"""From the modes Pillow opens to those that a decoder gives: L, LA, RGB, RGBA, or indices.

Guarantees
- Transparency, in any of the ways a file can say it, ends as an alpha channel or composited
  on the stated background; the colours stored under it never show.
- 16-bit and 32-bit values are scaled as documented or refused, never clipped.
- What already has the right mode is passed through untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode.errors import UnsupportedError

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "P": 1}
DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
"""The modes with more than 8 bits a channel; all of them grey."""

_GREY = ("1", "L", "LA", "La", *DEEP)


def own_mode(picture: Image.Image) -> str:
    """Which mode holds all the colours and alpha that the picture has."""
    grey, clear = picture.mode in _GREY, picture.has_transparency_data
    return ("LA" if clear else "L") if grey else ("RGBA" if clear else "RGB")


def shallow(picture: Image.Image, mode: str, background: tuple[int, int, int]) -> Image.Image:
    """Ready to be resized: free of palettes, inks and unwanted alpha.

    From grey to colour is left for after the resize, when there are fewer pixels.
    """
    if picture.mode == mode and "transparency" not in picture.info:
        return picture
    if mode == "P":
        return _indices(picture)
    if picture.mode == "LAB":
        raise UnsupportedError("Lab colour, which Pillow only converts with a colour profile")
    if picture.mode == "CMYK":
        picture = _inks(picture).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        if mode in ("LA", "RGBA"):
            return picture
        canvas = _new("RGB", picture.size, background)
        canvas.paste(picture, mask=picture)
        picture = canvas
    elif picture.mode == "1":
        picture = picture.convert("L")
    elif picture.mode not in ("L", "RGB"):
        picture = picture.convert("RGB")
    return picture.convert("L") if mode == "L" and picture.mode != "L" else picture


def _indices(picture: Image.Image) -> Image.Image:
    """The numbers that are stored: into a palette, or grey levels."""
    if picture.mode == "1":
        return picture.point([0] * 255 + [1], "L")
    if picture.mode not in ("P", "L"):
        raise UnsupportedError(f'mode="P" takes palettes and grey; this picture is {picture.mode}')
    return picture


def _new(mode: str, size: tuple[int, int], colour: tuple[int, int, int]) -> Image.Image:
    from PIL import Image

    return Image.new(mode, size, colour)


def _inks(picture: Image.Image) -> Image.Image:
    """CMYK with 255 for full ink. Pillow inverts every JPEG; only Adobe's are inverted."""
    if getattr(picture, "format", None) != "JPEG" or "adobe" in picture.info:
        return picture
    from PIL import ImageChops

    return ImageChops.invert(picture)


def keeps_all_bits(picture: ImageFile) -> bool:
    """False for 16-bit colour, of which Pillow keeps 8 bits. Asked before ``load``."""
    for tile in picture.tile:
        args = tile.args if isinstance(tile.args, tuple) else (tile.args,)
        if isinstance(args[0], str) and ";16" in args[0] and picture.mode not in DEEP:
            return False
        if tile.codec_name.startswith("ppm") and args[-1] not in (None, "RGB", "L"):
            return picture.mode in DEEP or int(args[-1]) <= 255
    return True


def deep(
    picture: Image.Image, mode: str, background: tuple[int, int, int], dtype: str | None
) -> Image.Image:
    """Grey with more than 8 bits, ready to be resized; refused where it has no 0-65535."""
    if mode == "P":
        raise UnsupportedError('mode="P" gives 8 bits; take mode="L", dtype="uint16" for more')
    if picture.mode == "I" and picture.format == "PPM":  # Pillow scales these to 16 bits
        return picture.convert("I;16")
    if picture.mode in ("I", "F"):
        if dtype is not None:
            raise UnsupportedError(
                f"32-bit values have no range to scale to {dtype}; dtype=None gives them as stored"
            )
        return picture
    clear = picture.info.get("transparency")
    if clear is None:
        return picture
    if mode in ("LA", "RGBA"):
        raise UnsupportedError("16-bit grey with a transparent level; take a mode without alpha")
    from PIL import Image

    level = round(257 * (0.299 * background[0] + 0.587 * background[1] + 0.114 * background[2]))
    values = np.array(picture, np.uint16)
    values[values == clear] = level
    return Image.fromarray(values)


def deep_array(values: NDArray[np.generic], mode: str, dtype: str | None) -> NDArray[np.generic]:
    """The result for one grey plane of 16 or 32 bits: channels added, scaled to ``dtype``."""
    if values.dtype.kind == "u":
        values = values.astype(np.uint16, copy=False)
        if dtype == "uint8":  # the nearest to v * 255 / 65535, in integers
            values = ((values.astype(np.uint32) * 255 + 32895) >> 16).astype(np.uint8)
    channels = CHANNELS[mode]
    if channels == 1:
        return values[:, :, None]
    result = np.empty((*values.shape, channels), values.dtype)
    result[:] = values[:, :, None]
    if mode in ("LA", "RGBA"):
        result[:, :, -1] = 1 if values.dtype.kind == "f" else np.iinfo(values.dtype.name).max
    return result

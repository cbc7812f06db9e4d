"""Broken and odd pictures, made with Pillow: the part of ``broken`` that needs it.

Guarantees
- Every picture that can be read holds ``PATTERN``, upright, as ``decode.image()`` gives it:
  smooth, so that lossy formats stay within the margin, and unlike any of its turns.
- Hidden colours, inks and deep values are such that a careless reader gets them wrong by far.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nogil_loader.decode.errors import (
    DecodeError,
    TooLargeError,
    TruncatedError,
    UnsupportedError,
)
from nogil_loader.testing.broken import CUTS, Case

WHITE = (255, 255, 255)


def pattern(height: int = 48, width: int = 64) -> NDArray[np.uint8]:
    """Brighter to the right in red, downwards in green, dark blue: (height, width, 3)."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    planes = (30 + 200 * x, 40 + 160 * y, 60 + 20 * x)
    return np.stack(planes, axis=-1).round().astype(np.uint8)


PATTERN = pattern()


def encode(picture: Image.Image, form: str, **options: object) -> bytes:
    """The picture as a file of this format of Pillow's."""
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def pictures() -> Iterator[Case]:
    """All kinds, for ``decode.image()`` as it is by default (RGB, 8 bits, white behind)."""
    yield from _formats()
    yield from _turned()
    yield from _transparent()
    yield from _inked()
    yield from _deep()
    yield from _huge()
    yield from _strange()


def _formats() -> Iterator[Case]:
    picture = Image.fromarray(PATTERN)
    lossy = {"JPEG": 12, "WEBP": 12, "JPEG2000": 12, "AVIF": 12}
    for form in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "QOI", "JPEG2000", "AVIF"):
        source = picture.quantize(256) if form == "GIF" else picture
        value = np.asarray(source.convert("RGB"))
        data = encode(source, form)
        margin = lossy.get(form, 0)
        yield Case(f"{form}", data, value=value, margin=margin)
        yield Case(f"{form} with bytes behind it", data + b"tail", value=value, margin=margin)
        yield Case(f"{form}, the first byte lost", data[1:], DecodeError)
        for share in CUTS:
            if form == "JPEG2000" and share > 0.5:
                continue  # its codec takes what is there for a smaller quality
            yield Case(f"{form} cut to {share:.0%}", data[: int(len(data) * share)], DecodeError)
    for name in ("tiff_lzw", "tiff_deflate", "packbits"):
        yield Case(f"TIFF, {name}", encode(picture, "TIFF", compression=name), value=PATTERN)
    progressive = encode(picture, "JPEG", progressive=True)
    yield Case("JPEG, progressive", progressive, value=PATTERN, margin=12)
    yield Case("JPEG, progressive, cut", progressive[: len(progressive) // 2], TruncatedError)
    one = picture.convert("1")
    grey = picture.convert("L")
    for name, source in {"1 bit": one, "grey": grey}.items():
        value = np.asarray(source.convert("RGB"))
        for form in ("PNG", "TIFF", "BMP", "PPM"):
            yield Case(f"{form}, {name}", encode(source, form), value=value)


def _turned() -> Iterator[Case]:
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,  # what is stored; shown, it is turned back
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    for orientation, turn in turns.items():
        stored = Image.fromarray(PATTERN).transpose(turn)
        exif = Image.Exif()
        exif[0x0112] = orientation
        for form in ("JPEG", "PNG", "WEBP", "TIFF"):
            options = {"lossless": True} if form == "WEBP" else {}
            margin = 12 if form == "JPEG" else 0
            data = encode(stored, form, exif=exif, **options)
            yield Case(f"{form}, orientation {orientation}", data, value=PATTERN, margin=margin)
    for name, value in {"0": 0, "9": 9}.items():
        exif = Image.Exif()
        exif[0x0112] = value
        data = encode(Image.fromarray(PATTERN), "PNG", exif=exif)
        yield Case(f"PNG, orientation {name}", data, value=PATTERN)


def _transparent() -> Iterator[Case]:
    """The left half is transparent and hides red."""
    half = PATTERN.shape[1] // 2
    shown = PATTERN.copy()
    shown[:, :half] = WHITE
    rgba = np.dstack([PATTERN, np.full(PATTERN.shape[:2], 255, np.uint8)])
    rgba[:, :half] = (255, 0, 0, 0)
    picture = Image.fromarray(rgba)
    for form in ("PNG", "TIFF", "WEBP", "QOI"):
        options = {"lossless": True, "exact": True} if form == "WEBP" else {}
        yield Case(f"{form}, transparent", encode(picture, form, **options), value=shown)
    grey = Image.fromarray(rgba[:, :, 1]).convert("LA")
    grey.putalpha(picture.getchannel("A"))
    value = np.repeat(np.where(rgba[:, :, 3:] == 0, 255, rgba[:, :, 1:2]), 3, axis=2)
    yield Case("PNG, grey and transparent", encode(grey, "PNG"), value=value)
    palette = Image.fromarray((np.arange(48 * 64).reshape(48, 64) % 3).astype(np.uint8), "P")
    palette.putpalette([255, 0, 0, 10, 20, 30, 40, 50, 60])
    colours = np.array([WHITE, (10, 20, 30), (40, 50, 60)], np.uint8)
    value = colours[np.asarray(palette)]
    for form in ("PNG", "GIF"):
        data = encode(palette, form, transparency=0)
        yield Case(f"{form}, a transparent palette entry", data, value=value)
    masked = np.where(np.arange(64)[None, :, None] < half, 7, PATTERN + 0).astype(np.uint8)
    value = masked.copy()
    value[:, :half] = WHITE
    data = encode(Image.fromarray(masked), "PNG", transparency=(7, 7, 7))
    yield Case("PNG, a transparent colour", data, value=value)


def _inked() -> Iterator[Case]:
    inks = Image.fromarray(PATTERN).convert("CMYK")
    value = np.asarray(inks.convert("RGB"))
    yield Case("TIFF, CMYK", encode(inks, "TIFF"), value=value)
    adobe = encode(inks, "JPEG", quality=95)
    yield Case("JPEG, CMYK, Adobe's marker", adobe, value=value, margin=12)
    upside = encode(Image.fromarray(255 - np.asarray(inks), "CMYK"), "JPEG", quality=95)
    plain = without_segment(upside, 0xEE)
    yield Case("JPEG, CMYK, no marker", plain, value=value, margin=12)
    # YCCK: the first three inks as YCbCr. Pillow inverts what it writes, so what stands for
    # them is inverted here and comes out as it should.
    values = np.asarray(inks)
    ycc = np.asarray(Image.fromarray(values[:, :, :3].copy()).convert("YCbCr"))
    given = Image.fromarray(np.dstack([255 - ycc, values[:, :, 3]]), "CMYK")
    raw = encode(given, "JPEG", quality=95, subsampling=0)
    at = raw.index(b"Adobe") + 11  # the byte that names the transform
    yield Case("JPEG, YCCK", raw[:at] + b"\2" + raw[at + 1 :], value=value, margin=16)


def without_segment(data: bytes, marker: int) -> bytes:
    """A JPEG file without its first segment of this kind."""
    at = data.index(bytes([0xFF, marker]))
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    return data[:at] + data[at + 2 + length :]


def _deep() -> Iterator[Case]:
    """16-bit grey that clipping would turn white, wider values that no range is known for."""
    deep = np.linspace(0, 65535, 48 * 64).reshape(48, 64).astype(np.uint16)
    value = np.repeat(((deep.astype(np.uint32) * 255 + 32767) // 65535)[:, :, None], 3, axis=2)
    value = value.astype(np.uint8)
    big = Image.frombytes("I;16B", (64, 48), deep.astype(">u2").tobytes())
    yield Case("PNG, 16-bit grey", encode(Image.fromarray(deep), "PNG"), value=value)
    yield Case("TIFF, 16-bit grey", encode(Image.fromarray(deep), "TIFF"), value=value)
    yield Case("TIFF, 16-bit grey, big-endian", encode(big, "TIFF"), value=value)
    pgm = b"P5 64 48 65535\n" + deep.astype(">u2").tobytes()
    yield Case("PGM, 16-bit grey", pgm, value=value)
    yield Case("PNG, 16-bit colour", png(np.repeat(deep[:, :, None], 3, axis=2), 16, 2))
    for wide in (deep.astype(np.int32) * 9, deep.astype(np.float32) / 65535):
        name = f"TIFF, 32-bit {wide.dtype.name}"
        yield Case(name, encode(Image.fromarray(wide), "TIFF"), UnsupportedError)


def png(pixels: NDArray[np.generic], depth: int, colour: int) -> bytes:
    """A PNG file by hand, for what Pillow doesn't write; see RFC 2083 for the numbers."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(">u2" if depth == 16 else "u1"))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def _huge() -> Iterator[Case]:
    """Headers that announce more pixels than memory should be spent on."""
    data = bytearray(png(np.zeros((1, 1), np.uint8), 8, 0))
    data[16:24] = struct.pack(">II", 100_000, 100_000)
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    yield Case("PNG of 10**10 pixels", bytes(data), TooLargeError)
    jpeg = bytearray(encode(Image.fromarray(PATTERN), "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 65_000, 65_000)
    yield Case("JPEG of 4 * 10**9 pixels", bytes(jpeg), TooLargeError)
    bmp = bytearray(encode(Image.fromarray(PATTERN), "BMP"))
    bmp[18:26] = struct.pack("<ii", 30_000, 30_000)
    yield Case("BMP of 9 * 10**8 pixels", bytes(bmp), TooLargeError)
    gif = bytearray(encode(Image.fromarray(PATTERN), "GIF"))
    gif[6:10] = struct.pack("<HH", 60_000, 60_000)
    yield Case("GIF of 4 * 10**9 pixels", bytes(gif), TooLargeError)
    yield Case("PPM of 10**12 pixels", b"P6 1000000 1000000 255\n" + bytes(99), TooLargeError)


def _strange() -> Iterator[Case]:
    """Animations, and what isn't a picture or none that is read."""
    first = Image.fromarray(PATTERN)
    later = [Image.new("RGB", first.size, "red"), Image.new("RGB", first.size, "blue")]
    film: dict[str, object] = {"save_all": True, "append_images": later}
    yield Case("WebP, animated", encode(first, "WEBP", lossless=True, **film), value=PATTERN)
    yield Case("PNG, animated", encode(first, "PNG", **film), value=PATTERN)
    shown = first.quantize(64)
    value = np.asarray(shown.convert("RGB"))
    yield Case("GIF, animated", encode(shown, "GIF", **film), value=value)
    yield Case("TIFF of three pages", encode(first, "TIFF", **film), value=PATTERN)
    yield Case("a picture of no bytes", b"", TruncatedError)
    yield Case("PostScript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", UnsupportedError)
    yield Case("SVG", b'<svg xmlns="http://www.w3.org/2000/svg"/>', UnsupportedError)
    yield Case("HTML of an error page", b"<!DOCTYPE html><title>404</title>", UnsupportedError)
    yield Case("an icon, with a picture of any size in it", encode(first, "ICO"), UnsupportedError)
    yield Case("zeros", bytes(4096), UnsupportedError)
    yield Case("HEIC without its plugin", b"\0\0\0\x18ftypheic" + bytes(64), UnsupportedError)

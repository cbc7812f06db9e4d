"""Opening pictures with Pillow without its process-wide settings.

Guarantees
- The format is found from the first bytes, never from a name, and only that codec sees the
  data. Formats that run other programs (EPS), that any data would fit (TGA) or whose header
  doesn't tell how large the picture inside is (ICO) are not tried.
- Pillow's ``MAX_IMAGE_PIXELS`` and ``LOAD_TRUNCATED_IMAGES`` are neither changed nor obeyed:
  the limit is the caller's, truncated data is always an error.
- What Pillow raises about the data becomes a ``DecodeError`` here, and nowhere else.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from nogil_loader.decode._input import Buffer
from nogil_loader.decode.errors import (
    DecodeError,
    TooLargeError,
    TruncatedError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG2000"),
    (b"\xff\x4f\xff\x51", "JPEG2000"),
    (b"qoif", "QOI"),
    (b"8BPS", "PSD"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "JXL"),
    (b"\xff\x0a", "JXL"),
)
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
_PLUGINS = {"HEIF": "pillow-heif", "JXL": "pillow-jxl-plugin"}


def load_plugins() -> None:
    """Import Pillow and its codecs; once, before threads need them. Idempotent."""
    try:
        from PIL import Image
    except ImportError as missing:
        raise ImportError(
            'decode.image needs Pillow: pip install "nogil_loader[image]"'
        ) from missing
    Image.init()


def format_of(start: bytes) -> str:
    """The name Pillow has for the format of a picture that starts so; "" if none is known."""
    for signature, name in _SIGNATURES:
        if start.startswith(signature):
            return name
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "WEBP"
    if start[4:8] == b"ftyp":
        if start[8:12] in (b"avif", b"avis") or b"avif" in start[16:32]:
            return "AVIF"
        if start[8:12] in _HEIF_BRANDS:
            return "HEIF"
    if start[:1] == b"P" and start[1:2] in b"123456Ff" and start[2:3].isspace():
        return "PPM"
    return ""


def open_picture(data: Buffer, max_pixels: int | None) -> ImageFile:
    """The opened, not yet loaded picture."""
    from PIL import Image

    start = bytes(data[:32])
    name = format_of(start)
    if not name:
        what = f"it starts with {start[:12]!r}" if start else "it is empty"
        kind = UnsupportedError if start else TruncatedError
        raise kind(f"no picture of a known format: {what}")
    try:
        factory, accept = Image.OPEN[name]
    except KeyError:
        cure = f"register {_PLUGINS[name]}" if name in _PLUGINS else "this Pillow can't read it"
        raise UnsupportedError(f"a {name} picture: {cure}") from None
    if accept and isinstance(reason := accept(start[:16]), str):
        raise UnsupportedError(f"a {name} picture: {reason}")
    # The codec itself and not Image.open, which warns and raises by the global pixel limit.
    picture = factory(_strict(data), "")
    width, height = picture.size
    if max_pixels is not None and width * height > max_pixels:
        raise TooLargeError(f"{width} x {height} pixels are more than max_pixels={max_pixels}")
    return picture


class _StrictBytes(io.BytesIO):
    """Ends with an EOFError where a host program asked Pillow to make up missing pixels."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data and size != 0:
            raise EOFError("the data ends before the picture does")
        return data


def _strict(data: Buffer) -> io.BytesIO:
    from PIL import ImageFile

    return (_StrictBytes if ImageFile.LOAD_TRUNCATED_IMAGES else io.BytesIO)(data)


def translate(error: Exception, data: Buffer, name: str) -> DecodeError:
    """What a codec's own exception means to the caller; ``name`` goes before the message."""
    from PIL import Image

    if isinstance(error, DecodeError):
        return type(error)(f"{name}{error}")
    text = str(error) or type(error).__name__
    kind: type[DecodeError] = DecodeError
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        kind = TooLargeError
    elif "not available" in text:
        kind = UnsupportedError
    elif _cut_short(error, text, data):
        kind, text = TruncatedError, f"the data ends before the picture does ({text})"
    start = format_of(bytes(data[:32])) or "picture"
    return kind(f"{name}{start}: {text}")


def _cut_short(error: Exception, text: str, data: Buffer) -> bool:
    if isinstance(error, EOFError) or "runcated" in text:
        return True
    # WebP and AVIF decoders only say that they failed; the container knows how long it is.
    if bytes(data[:4]) == b"RIFF":
        return int.from_bytes(data[4:8], "little") + 8 > len(data)
    return False

"""The commonest sound there is, 16-bit WAV, by NumPy instead of libsndfile.

Guarantees
- The same samples as libsndfile's, bit for bit, in every dtype, for a fifth of its time.
- Only plain files are taken: RIFF, little-endian, PCM, the format in the first chunk and
  consistent in itself. ``layout_of`` and ``open_pcm`` answer None for any other, which
  libsndfile then judges.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode._containers import Peek, Span
from nogil_loader.decode._input import Buffer

_FORMAT = Struct("<4s4xHHIIHH")
_PLAIN = Struct("<4s4x14sHI4xHH4sI")
_PLAIN_FORM = b"WAVEfmt \x10\0\0\0\1\0"  # a format chunk of 16 bytes that says PCM
_PCM, _BITS = 1, 16
_MOST_CHANNELS = 1024  # as many as libsndfile takes

LEVEL = np.dtype("<i2")
"""How a level is stored."""

HEADER = _PLAIN.size
"""Bytes of header before the samples of the form that most files have."""

_FACTORS: dict[str, np.float32 | np.float64 | np.int16 | np.int32] = {
    "f": np.float32(2.0**-15),
    "d": np.float64(2.0**-15),
    "h": np.int16(1),
    "i": np.int32(1 << 16),
}
"""What a level is multiplied by, by the letter of the dtype; the product has that dtype."""


class Layout(NamedTuple):
    """What follows a header of 44 bytes: levels of this shape, and nothing of their chunk."""

    shape: tuple[int, int]
    rate: int
    length: int
    """Bytes of levels."""


def layout_of(head: Buffer) -> Layout | None:
    """What the header says that the content begins with, if it is of the commonest form."""
    if len(head) < HEADER:
        return None
    riff, form, channels, rate, width, bits, data, length = _PLAIN.unpack_from(head)
    if riff != b"RIFF" or form != _PLAIN_FORM or data != b"data" or bits != _BITS:
        return None
    if width != 2 * channels or not (1 <= channels <= _MOST_CHANNELS and rate and length):
        return None
    return None if length % width else Layout((length // width, channels), rate, length)


def scaled(levels: NDArray[np.int16], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Stored levels as new samples of one of the four dtypes."""
    samples: NDArray[np.generic] = np.multiply(levels, _FACTORS[dtype.char])
    return samples


class _Pcm:
    """A ``Sound`` on samples that lie in the file as they are."""

    floating = False

    def __init__(self, peek: Peek, span: Span, rate: int, channels: int) -> None:
        self._peek, self._at = peek, span.at
        self._next = 0
        self.rate, self.channels = rate, channels
        self.frames = span.length // (2 * channels)

    def seek(self, frame: int) -> bool:
        self._next = frame
        return True

    def read(self, out: NDArray[np.generic]) -> int:
        width = 2 * self.channels
        data = self._peek(self._at + self._next * width, len(out) * width)
        levels = np.frombuffer(data, "<i2", len(data) // width * self.channels)
        levels = levels.reshape(-1, self.channels)
        count = len(levels)
        self._next += count
        np.multiply(levels, _FACTORS[out.dtype.char], out=out[:count])
        return count

    def close(self) -> None:
        """Nothing is held."""


def open_pcm(peek: Peek, span: Span) -> _Pcm | None:
    """The sound whose samples are this part of the content; None if it isn't plain PCM."""
    head = peek(12, _FORMAT.size)
    if peek(0, 4) != b"RIFF" or len(head) < _FORMAT.size:
        return None
    kind, tag, channels, rate, _, width, bits = _FORMAT.unpack(head)
    if kind != b"fmt " or tag != _PCM or bits != _BITS or width != 2 * channels:
        return None
    if not (1 <= channels <= _MOST_CHANNELS and rate):
        return None
    return _Pcm(peek, span, rate, channels)

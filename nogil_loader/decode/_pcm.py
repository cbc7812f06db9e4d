"""The commonest sound there is, 16-bit WAV, by NumPy instead of libsndfile.

Guarantees
- The same samples as libsndfile's, bit for bit, in every dtype, for a fifth of its time.
- Only plain files are taken: RIFF, little-endian, PCM, the format in the first chunk and
  consistent in itself. ``open_pcm`` answers None for any other, which libsndfile then judges.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode._containers import Peek, Span

_FORMAT = Struct("<4s4xHHIIHH")
_PLAIN = Struct("<4s4x4s4sIHHIIHH4sI")
_PLAIN_START = (b"RIFF", b"WAVE", b"fmt ", 16, 1)
_PCM, _BITS = 1, 16
_MOST_CHANNELS = 1024  # as many as libsndfile takes


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
        rows = out[:count]
        if out.dtype.kind == "f":
            np.multiply(levels, out.dtype.type(2.0**-15), out=rows)
        elif out.dtype.itemsize == 2:
            rows[:] = levels
        else:
            np.multiply(levels, np.int32(1 << 16), out=rows)
        return count

    def close(self) -> None:
        """Nothing is held."""


def open_plain(peek: Peek, size: int) -> _Pcm | None:
    """The sound in the form most have: 44 bytes of header and then its samples, all of them.

    ``open_pcm`` opens it just the same, after a walk over the chunks.
    """
    head = peek(0, _PLAIN.size)
    if len(head) < _PLAIN.size:
        return None
    *start, channels, rate, _, width, bits, data, length = _PLAIN.unpack(head)
    if tuple(start) != _PLAIN_START or data != b"data" or bits != _BITS or width != 2 * channels:
        return None
    if not (1 <= channels <= _MOST_CHANNELS and rate and 0 < length <= size - _PLAIN.size):
        return None
    return _Pcm(peek, Span(_PLAIN.size, length), rate, channels)


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

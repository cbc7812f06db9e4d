"""Sounds at another rate, and with other channels.

Guarantees
- Frame k of the result stands for the moment k / rate, whatever part of a sound was read: a
  part resampled alone equals that part of the whole sound resampled.
- Floats in, floats of the same width out, filtered so that nothing aliases.

The rate is changed by ``scipy.signal.resample_poly``: a polyphase windowed-sinc filter of
10 periods a side, Kaiser window with beta 5 (about 60 dB).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode.errors import UnsupportedError

_PERIODS = 10


@dataclass(frozen=True)
class Ratio:
    """``up`` frames of the result for ``down`` frames of the source, in lowest terms."""

    up: int
    down: int

    @classmethod
    def of(cls, source_rate: int, rate: int) -> Ratio:
        """What takes ``source_rate`` to ``rate``, both in frames a second."""
        common = math.gcd(source_rate, rate)
        return cls(rate // common, source_rate // common)

    def length(self, frames: int) -> int:
        """How many frames of the result a sound of this many frames has."""
        return -(-frames * self.up // self.down)

    def source(self, offset: int, frames: int) -> tuple[int, int, int]:
        """What to read for ``frames`` of the result from ``offset`` on.

        ``(start, count, skip)``: count source frames from start, and then how many frames
        of what they become stand before ``offset``. Start is a multiple of ``down``, so that
        both grids meet there, and far enough ahead that the filter sees all it reaches.
        """
        reach = _PERIODS * max(self.up, self.down) // self.up + 1
        block = max(0, offset * self.down // self.up - reach) // self.down
        start = block * self.down
        stop = -(-(offset + frames) * self.down // self.up) + reach
        return start, stop - start, offset - block * self.up


SAME = Ratio(1, 1)
"""A rate that stays as it is."""


def resampled(samples: NDArray[np.floating], ratio: Ratio) -> NDArray[np.floating]:
    """The sound at the other rate, ``ratio.length(len(samples))`` frames."""
    try:
        from scipy.signal import resample_poly
    except ImportError as missing:
        raise ImportError(
            "decode.audio(rate=…) needs SciPy to change the rate of a sound: "
            'pip install "nogil_loader[resample]"'
        ) from missing
    if not len(samples):
        return samples
    result: NDArray[np.floating] = resample_poly(samples, ratio.up, ratio.down, axis=0)
    return result


def with_channels(samples: NDArray[np.floating], channels: int) -> NDArray[np.floating]:
    """One channel is the mean of all; one can become many; nothing else has one meaning."""
    there = samples.shape[1]
    if channels == there:
        return samples
    if channels == 1:
        mean: NDArray[np.floating] = samples.mean(axis=1, keepdims=True)
        return mean
    if there == 1:
        return np.repeat(samples, channels, axis=1)
    raise UnsupportedError(f"{there} channels can become 1 or stay {there}, but not {channels}")

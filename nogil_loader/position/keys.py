"""Randomness by place: a generator for (seed, epoch, stage, position, children).

Guarantees
- What a generator yields is a function of those five alone: not of threads, blocks, ranks
  or the other stages of the pipeline.
- Streams of different positions, or of different children of a position, never overlap:
  each is a segment of 2**64 draws of one counter-based generator. Streams of different
  seeds, epochs or stages use unrelated keys.

Source: Philox4x64-10, Salmon, Moraes, Dror and Shaw, *Parallel Random Numbers: As Easy as
1, 2, 3*, SC 2011, as NumPy ships it. The 128-bit key is a BLAKE2b digest (RFC 7693) of
seed, epoch and stage name; the 256-bit counter is (draw, position, child, deeper children).
"""

from __future__ import annotations

from hashlib import blake2b
from json import dumps

import numpy as np

_WORD = (1 << 64) - 1


def stage_key(seed: int, epoch: int, stage: str) -> tuple[int, int]:
    """The two 64-bit words that name the randomness of a stage in an epoch.

    >>> stage_key(0, 0, "augment") == stage_key(0, 1, "augment")
    False
    """
    digest = blake2b(dumps([seed, epoch, stage]).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


class Keyed:
    """Generators for the samples of one stage; re-keys a single one, once per sample.

    Belongs to one thread: the generator that a call returns is valid until the next call.
    Build one per worker, stage and epoch (about 30 us); a call costs 1 to 2 us.

    >>> rng = Keyed(seed=0, epoch=3, stage="augment")
    >>> first = rng(41).random()
    >>> rng(42).random() == first, rng(41).random() == first
    (False, True)
    >>> rng(41, 0).random() == rng(41, 1).random()  # two children of one parent
    False
    """

    __slots__ = ("_bits", "_counter", "_generator", "_state")

    def __init__(self, seed: int, epoch: int, stage: str) -> None:
        self._bits = np.random.Philox(key=0)
        self._generator = np.random.Generator(self._bits)
        self._counter = [0, 0, 0, 0]  # NumPy reads it and never writes: draws start at 0
        self._state = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": list(stage_key(seed, epoch, stage))},
            "buffer": [0, 0, 0, 0],
            "buffer_pos": 4,  # the buffer is used up: the next draw computes a new one
            "has_uint32": 0,
            "uinteger": 0,
        }

    def __call__(self, position: int, *children: int) -> np.random.Generator:
        """The generator of a position, or of a child (of a child ...) of its sample."""
        counter = self._counter
        counter[1] = position
        counter[2] = children[0] + 1 if children else 0
        counter[3] = _deeper(children) if len(children) > 1 else 0
        self._bits.state = self._state  # type: ignore[assignment]  # the stub wants arrays
        return self._generator


def _deeper(children: tuple[int, ...]) -> int:
    """One word for the child numbers below the first: itself for one, a digest for more."""
    if len(children) == 2:
        return children[1] + 1
    digest = blake2b(dumps(children[1:]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & _WORD

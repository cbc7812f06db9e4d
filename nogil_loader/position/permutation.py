"""Permutations of any length, computed position by position in constant memory.

Guarantees
- ``permute`` and ``Permutation`` are bijections of ``range(length)`` for every length up
  to 2**62, and functions of (length, key) alone: not of a platform, a NumPy version or
  the way positions are cut into blocks.
- Memory is proportional to the positions asked for, never to ``length``.
- Everything here is immutable: any number of threads may call at once.

How. Up to ``SHORT`` elements the permutation is a true shuffle: the order of ``length``
keyed random words, so every order is equally likely. Above, it is a Feistel network on a
``rows x columns`` rectangle that just covers ``range(length)``; the few results that fall
outside are sent through again ("cycle walking") until they land inside, which keeps it a
bijection. Sources: Black and Rogaway, *Ciphers with Arbitrary Finite Domains*, CT-RSA
2002 (generalised Feistel, cycle walking); Steele, Lea and Flood, *Fast Splittable
Pseudorandom Number Generators*, OOPSLA 2014, with the constants of Stafford's variant 13
(the mixer). It is a shuffle for statistics, not encryption.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt

import numpy as np
from numpy.typing import NDArray

LONGEST = 1 << 62
"""The longest permutation there is."""

SHORT = 64
"""Up to this length a permutation is a shuffled table."""

ROUNDS = 8
_ROUND_NUMBERS = np.arange(ROUNDS, dtype=np.int64)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STAFFORD = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (27, 30, 31, 32))
_WORD = (1 << 64) - 1

Words = NDArray[np.uint64]
Positions = NDArray[np.int64]


def mix(words: Words) -> Words:
    """Scramble 64-bit words in place: a bijection in which every input bit moves every
    output bit with probability near one half (the finaliser of splitmix64)."""
    words ^= words >> _S30
    words *= _STAFFORD[0]
    words ^= words >> _S27
    words *= _STAFFORD[1]
    words ^= words >> _S31
    return words


def key_of(purpose: str, seed: int, epochs: int | Positions) -> Words:
    """The keys of a seed in some epochs, for one purpose.

    ``epochs`` is a number (the result has one word) or an array (one word each). Purposes
    (``"shuffle"``, ``"mix"``) with the same seed get unrelated keys.

    >>> import numpy as np
    >>> key_of("shuffle", 7, 0) == key_of("shuffle", 7, np.array([0, 1]))
    array([ True, False])
    """
    start = int.from_bytes(purpose.encode()[:8].ljust(8), "little")
    words = mix(np.array([start], np.uint64))
    words ^= np.uint64(seed & _WORD)
    mix(words)
    words ^= np.uint64(seed >> 64 & _WORD)  # zero for the usual seeds, so no extra mixing
    return derive(mix(words), epochs)


def derive(keys: Words, numbers: int | Positions) -> Words:
    """Keys for numbered things (epochs, windows, rounds) below ``keys``, which broadcast.

    ``derive(key, 0), derive(key, 1), ...`` is the stream of a splitmix64 generator whose
    state is ``key``.
    """
    steps = np.atleast_1d(np.asarray(numbers, np.int64)).astype(np.uint64)
    steps += np.uint64(1)
    steps *= _GOLDEN
    return mix(keys + steps)


def tables(length: int, keys: Words) -> Positions:
    """Whole shuffles of ``range(length)``, one row a key; int64 of (keys, length).

    Row ``i`` is the order of ``length`` random words: all orders are equally likely.
    """
    words = derive(keys[:, None], np.arange(length, dtype=np.int64)[None, :])
    shuffled: Positions = np.argsort(words, axis=1, kind="stable")
    return shuffled


def permute(positions: Positions, length: int, keys: Words) -> Positions:
    """Where ``positions`` go in the permutations of ``range(length)`` named by ``keys``.

    ``positions`` is int64 of any one-dimensional shape, each in ``0 <= p < length`` (the
    caller's duty; ``Permutation`` checks). ``keys`` holds one word for all of them, or one
    for each: then every position goes through a permutation of its own.
    """
    if length <= SHORT:
        distinct, row = np.unique(keys, return_inverse=True)
        images: Positions = tables(length, distinct)[row, positions]
        return images
    rows = isqrt(length - 1) + 1
    columns = -(-length // rows)
    if keys.size == 1:
        round_keys = list(derive(keys, _ROUND_NUMBERS)[:, None])
    else:
        round_keys = [derive(keys, number) for number in range(ROUNDS)]
    words = _feistel(positions.astype(np.uint64), rows, columns, round_keys)
    outside = np.flatnonzero(words >= np.uint64(length))
    while outside.size:
        own = round_keys if keys.size == 1 else [each[outside] for each in round_keys]
        again = _feistel(words[outside], rows, columns, own)
        words[outside] = again
        outside = outside[again >= np.uint64(length)]
    return words.astype(np.int64)


def _feistel(words: Words, rows: int, columns: int, round_keys: list[Words]) -> Words:
    """One pass through the network: a bijection of ``range(rows * columns)``."""
    width = np.uint64(columns)
    left = words // width
    right = words - left * width
    scratch = np.empty_like(words)
    for number, key in enumerate(round_keys):
        # One half moves by a keyed hash of the other, modulo its own size.
        moved, held, size = (left, right, rows) if number % 2 == 0 else (right, left, columns)
        size_word = np.uint64(size)
        hashed = held ^ key
        for shift, factor in ((_S30, _STAFFORD[0]), (_S27, _STAFFORD[1])):
            np.right_shift(hashed, shift, out=scratch)
            np.bitwise_xor(hashed, scratch, out=hashed)
            np.multiply(hashed, factor, out=hashed)
        # The upper 32 bits, scaled to range(size) by a multiplication instead of a division.
        np.right_shift(hashed, _S32, out=hashed)
        np.multiply(hashed, size_word, out=hashed)
        np.right_shift(hashed, _S32, out=hashed)
        np.add(moved, hashed, out=moved)
        # moved - size wraps to a huge number where moved < size, so the minimum is the rest.
        np.subtract(moved, size_word, out=scratch)
        np.minimum(moved, scratch, out=moved)
    left *= width
    left += right
    return left


@dataclass(frozen=True, slots=True)
class Permutation:
    """A shuffle of ``range(length)`` for one seed and epoch, one position at a time.

    >>> import numpy as np
    >>> shuffle = Permutation(10, seed=17, epoch=0)
    >>> sorted(shuffle(np.arange(10)).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> int(Permutation(10**18, seed=17)(np.array([10**17]))[0]) < 10**18
    True

    Raises ``ValueError`` for a length outside ``0..2**62`` and ``IndexError`` for a
    position outside ``range(length)``.
    """

    length: int
    seed: int
    epoch: int = 0
    _key: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.length <= LONGEST:
            raise ValueError(f"a permutation has 0 to 2**62 elements, not {self.length}")
        object.__setattr__(self, "_key", key_of("shuffle", self.seed, self.epoch))

    def __call__(self, positions: Positions) -> Positions:
        """The images of ``positions`` (int64, one-dimensional), as int64 of that shape."""
        if positions.size == 0:
            return np.empty(0, np.int64)
        if positions.min() < 0 or positions.max() >= self.length:
            raise IndexError(f"a position is outside range({self.length})")
        return permute(positions, self.length, self._key)

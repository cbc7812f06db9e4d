"""Fixed windows of consecutive positions, each permuted by its own key.

The last window of a finite order is shorter when the window does not divide the length:
it is permuted within what it has, so no position leaves its window.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nogil_loader.position.permutation import Positions, Words, permute

Chosen = slice | NDArray[np.bool_]


def windows_by_size(
    starts: Positions, window: int, length: int | None
) -> Iterator[tuple[Chosen, int]]:
    """Which units lie in full windows and which in the short last one, with its size.

    ``starts`` holds the start of each unit's window.
    """
    if length is None or not (short := starts > length - window).any():
        yield slice(None), window
        return
    yield ~short, window
    yield short, length % window


def keys_of(keys: Words, chosen: Chosen) -> Words:
    """The keys of some units, where ``keys`` is one word for all or one each."""
    return keys if keys.size == 1 else keys[chosen]


def permute_windows(
    slots: Positions, starts: Positions, window: int, length: int | None, keys: Words
) -> Positions:
    """Where ``slots`` (places within windows that begin at ``starts``) go in their windows."""
    if slots.size and (starts == starts[0]).all() and (keys == keys[0]).all():
        keys = keys[:1]  # one window has one key, which is the fast way
    out = np.empty_like(slots)
    for chosen, size in windows_by_size(starts, window, length):
        out[chosen] = permute(slots[chosen], size, keys_of(keys, chosen))
    return out

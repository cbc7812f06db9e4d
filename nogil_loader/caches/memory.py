"""Samples kept in memory, up to a number of bytes.

Guarantees
- ``get`` and ``put`` may be called by any thread; a sample is stored once.
- When the bytes are used up nothing more is inserted, and nothing is thrown out.
- What a hit returns is shared by all hits: arrays in it are read-only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np


class MemoryCache:
    """See the top of this module. ``sizeof`` tells the bytes of a sample.

    >>> cache = MemoryCache(8, sizeof=len)
    >>> cache.put(0, b"abcd"), cache.put(1, b"abcdefgh")
    (None, None)
    >>> cache.get(0), cache.get(1)
    ((True, b'abcd'), (False, None))
    """

    def __init__(self, max_bytes: int | None, sizeof: Callable[[object], int]) -> None:
        self._max = max_bytes
        self._sizeof = sizeof
        self._lock = threading.Lock()
        self._samples: dict[int, object] = {}
        self.bytes = 0

    def get(self, index: int) -> tuple[bool, object]:
        """Whether sample ``index`` is kept, and the sample (a dict is copied, not its values)."""
        try:
            sample = self._samples[index]
        except KeyError:
            return False, None
        return True, dict(sample) if isinstance(sample, dict) else sample

    def put(self, index: int, sample: object) -> None:
        """Keep the sample if there is room."""
        size = self._sizeof(sample)
        with self._lock:
            if self._max is not None and self.bytes + size > self._max:
                return
            if index in self._samples:
                return
            self.bytes += size
            self._samples[index] = _frozen(sample)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._samples = {}
            self.bytes = 0


def _frozen(sample: object) -> object:
    """A copy whose arrays cannot be written, of containers that nobody else holds."""
    if isinstance(sample, np.ndarray):
        kept = sample.copy()
        kept.flags.writeable = False
        return kept
    if isinstance(sample, dict):
        return {key: _frozen(value) for key, value in sample.items()}
    if isinstance(sample, tuple):
        make = getattr(type(sample), "_make", tuple)
        return make([_frozen(value) for value in sample])
    if isinstance(sample, list):
        return [_frozen(value) for value in sample]
    return sample

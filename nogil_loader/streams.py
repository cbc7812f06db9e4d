"""A stream as an order stage leaves it: shuffled in windows, sharded, cut.

Guarantees: samples are read in order, by one thread, no further ahead than a window; the
numbers of samples are those that ``position.order`` gives them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from nogil_loader import stages
from nogil_loader.position.order import Sequential, WindowShuffled
from nogil_loader.sources.base import JSON, Sample, StreamReader


class StreamView:
    """A stream reader behind order stages."""

    def __init__(
        self,
        reader: StreamReader,
        orders: Sequence[stages.Stage],
        rank: tuple[int, int] | None,
        epoch: int = 0,
    ) -> None:
        self._reader = reader
        self._orders = orders
        self._rank = rank
        self._epoch = epoch

    def __iter__(self) -> Iterator[Sample]:
        samples = iter(self._reader)
        for stage in self._orders:
            samples = self._through(stage, samples)
        return samples

    def _through(self, stage: stages.Stage, samples: Iterator[Sample]) -> Iterator[Sample]:
        if isinstance(stage, stages.Take):
            return islice(samples, stage.count)
        if isinstance(stage, stages.Skip):
            return islice(samples, stage.count, None)
        if isinstance(stage, stages.Shard):
            rank, world = self._rank or (0, 1)
            return islice(samples, rank, None, world)
        assert isinstance(stage, stages.Shuffle) and stage.window is not None
        return _windows(samples, stage.window, stage.seed, self._epoch)

    def snapshot(self) -> JSON:
        """None: a cut stream is resumed by reading it again."""
        return None

    def ref(self, number: int) -> object:
        return self._reader.ref(number)

    def fingerprint(self) -> str:
        return self._reader.fingerprint()

    def interrupt(self) -> None:
        self._reader.interrupt()

    def close(self) -> None:
        self._reader.close()


def _windows(samples: Iterator[Sample], window: int, seed: int, epoch: int) -> Iterator[Sample]:
    """Each window of consecutive samples in the order that positions give it."""
    order = WindowShuffled(Sequential(None), window, seed)
    start = 0
    while held := list(islice(samples, window)):
        units = np.arange(start, start + window, dtype=np.int64)
        for index in (order.locate(units, epoch).indices - start).tolist():
            if index < len(held):
                yield held[index]
        start += window

"""Buckets: batches of outputs of similar size, so that padding them wastes little.

Guarantees (besides those of ``grouping``)
- An output of size s goes to the first bucket whose boundary is at least s; a bucket gives
  a batch as soon as it holds its batch size. Within a bucket outputs keep their order.
- At the end of the data the buckets that hold something give short batches, the one with
  the oldest output first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from nogil_loader.position.grouping import Group, check_size
from nogil_loader.position.parse import JSON


class Buckets:
    """One batch in the making for each range of sizes.

    ``boundaries`` are the largest sizes of the buckets, ascending. ``batch_sizes`` is one
    number for all buckets, or one for each; with one more than there are boundaries, or
    one number for all, a last bucket takes whatever is larger. ``layout`` of a group is
    the boundary of its bucket (what to pad to), None for that last one.

    >>> from nogil_loader.position.bucketing import Buckets
    >>> buckets = Buckets([10, 20], batch_sizes=[3, 2])
    >>> [(group.items, group.layout) for group in buckets.push(4, [5, 15, 7, 20])]
    [((1, 3), 20)]
    """

    needs_size = True
    done = False

    def __init__(
        self,
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        drop_last: bool = False,
    ) -> None:
        self._boundaries = tuple(boundaries)
        if not self._boundaries or any(low >= high for low, high in pairwise(self._boundaries)):
            raise ValueError(
                f"bucket(boundaries={list(boundaries)}): give at least one, strictly ascending"
            )
        count = len(self._boundaries)
        if isinstance(batch_sizes, int):
            batch_sizes = [batch_sizes] * (count + 1)
        if len(batch_sizes) not in (count, count + 1) or min(batch_sizes) < 1:
            raise ValueError(
                f"bucket(batch_sizes={list(batch_sizes)}): give one number of at least 1 for each "
                f"of the {count} boundaries, and one more to accept what is larger than all"
            )
        self._sizes = tuple(batch_sizes)
        self._drop_last = drop_last
        self._open: list[list[int]] = [[] for _ in self._sizes]
        self._pushed = 0
        self.largest = None if len(self._sizes) > count else self._boundaries[-1]

    def push(self, count: int, sizes: Sequence[int] | None = None) -> list[Group]:
        if sizes is None or len(sizes) != count:
            raise ValueError("a bucket needs one size for each output")
        groups = []
        for size in sizes:
            ordinal = self._pushed
            check_size(size, ordinal, self.largest, "give one more batch size than boundaries")
            self._pushed = ordinal + 1
            number = bisect_left(self._boundaries, size)
            bucket = self._open[number]
            bucket.append(ordinal)
            if len(bucket) == self._sizes[number]:
                groups.append(self._close(number))
        return groups

    def flush(self) -> list[Group]:
        waiting = sorted(
            [(bucket[0], number) for number, bucket in enumerate(self._open) if bucket]
        )
        groups = [self._close(number) for _, number in waiting]
        return [] if self._drop_last else groups

    boundary = flush

    def restore(self, memo: JSON, pending: int) -> None:
        """Nothing to restore: pushed again, the pending outputs find their buckets."""

    def _close(self, number: int) -> Group:
        items = tuple(self._open[number])
        self._open[number] = []
        pending = sorted([ordinal for bucket in self._open for ordinal in bucket])
        layout = self._boundaries[number] if number < len(self._boundaries) else None
        return Group(items, layout, tuple(pending), None, self._pushed)

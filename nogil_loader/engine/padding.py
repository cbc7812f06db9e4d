"""Batches of samples that differ in length: padded to one length, or packed into rows.

Guarantees
- Only the stated axis is padded; any other difference is a ``CollateError`` as ever.
- No value is cut, and the lengths before padding can be kept beside the arrays.
- A packed batch says for each token which sequence it belongs to and where in it it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nogil_loader.engine.errors import CollateError
from nogil_loader.position.packing import Segment

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Padding:
    """How the arrays of samples are made equally long.

    ``to``: the length; None for that of the bucket, or the longest of the batch. ``key``: the
    fields to pad (a name or several); None for every array that has the axis. ``multiple``:
    round the longest up. ``lengths``: the field that keeps the lengths before padding.
    """

    to: int | None = None
    key: object = None
    axis: int = 0
    value: object = 0
    multiple: int = 1
    lengths: str | None = None

    def __call__(self, sample: object) -> object:
        """One sample, padded to ``to``."""
        assert self.to is not None
        return self.pad_all([sample], self.to)[0]

    def pad_all(self, samples: Sequence[object], bound: int | None) -> list[object]:
        """Samples padded to ``bound``, or to the longest among them."""
        first = samples[0]
        if not isinstance(first, dict):
            lengths = [self._length(sample) for sample in samples]
            target = self._target(lengths, bound)
            return [self._padded(s, target) for s in samples]
        out: list[dict[object, object]] = [dict(s) for s in samples]  # type: ignore[call-overload]
        for number, key in enumerate(self._keys(first)):
            arrays = [sample[key] for sample in out]
            lengths = [self._length(array) for array in arrays]
            target = self._target(lengths, bound)
            for sample, array, length in zip(out, arrays, lengths, strict=True):
                sample[key] = self._padded(array, target)
                if self.lengths is not None and number == 0:
                    sample[self.lengths] = length
        return list(out)

    def _keys(self, sample: dict[object, object]) -> list[object]:
        if isinstance(self.key, (tuple, list)):
            return list(self.key)
        if self.key is not None:
            return [self.key]
        return [k for k, v in sample.items() if isinstance(v, np.ndarray) and v.ndim > self.axis]

    def _length(self, array: object) -> int:
        if not isinstance(array, np.ndarray) or array.ndim <= self.axis:
            raise CollateError(
                f"pad needs arrays with an axis {self.axis}, not {type(array).__name__}; "
                f"name the fields to pad: pad(key=...)"
            )
        return int(array.shape[self.axis])

    def _target(self, lengths: Sequence[int], bound: int | None) -> int:
        longest = max(lengths)
        if bound is not None:
            if longest > bound:
                raise CollateError(
                    f"an array of length {longest} does not fit pad(to={bound}): nothing is cut; "
                    f"cut it in a map, or pad to more"
                )
            return bound
        return -(-longest // self.multiple) * self.multiple

    def _padded(self, array: object, target: int) -> object:
        assert isinstance(array, np.ndarray)
        missing = target - array.shape[self.axis]
        if missing == 0:
            return array
        shape = list(array.shape)
        shape[self.axis] = target
        out = np.full(shape, self.value, array.dtype)
        out[(slice(None),) * self.axis + (slice(0, target - missing),)] = array
        return out


@dataclass(frozen=True)
class Packing:
    """Token sequences laid into rows of ``length``; the layout comes from the grouper.

    A batch is a dict: ``key`` (``"tokens"`` where samples are plain arrays), shape (rows,
    length), the dtype of the first sequence, 0 where there is padding; ``"segment_ids"``,
    int32 of that shape, 0 for padding and 1, 2, … for the sequences of a row;
    ``"positions"``, int32, the place of each token in its own sequence. Other fields of the
    samples become lists, a value for each run of tokens, in the order of the rows.
    """

    length: int
    key: object = None

    def tokens(self, sample: object) -> Array:
        """The token sequence of a sample: a one-dimensional array."""
        value: object = sample if self.key is None else sample[self.key]  # type: ignore[index]
        array = np.asarray(value)
        if array.ndim != 1:
            raise CollateError(f"pack needs one-dimensional arrays, not shape {array.shape}")
        return array

    def __call__(self, samples: Sequence[object], layout: object) -> object:
        """The batch of a group of packs."""
        segments: Sequence[Segment] = layout  # type: ignore[assignment]
        rows = 1 + max([segment.row for segment in segments])
        arrays = [self.tokens(sample) for sample in samples]
        dtype = arrays[0].dtype
        tokens = np.zeros((rows, self.length), dtype)
        segment_ids = np.zeros((rows, self.length), np.int32)
        positions = np.zeros((rows, self.length), np.int32)
        seen = [0] * rows
        for item, row, offset, start, length in segments:
            array = arrays[item]
            if array.dtype != dtype:
                raise CollateError(f"pack: dtypes {dtype} and {array.dtype}; cast them in a map")
            seen[row] += 1
            place = slice(offset, offset + length)
            tokens[row, place] = array[start : start + length]
            segment_ids[row, place] = seen[row]
            positions[row, place] = np.arange(start, start + length)
        batch: dict[object, object] = {
            "tokens" if self.key is None else self.key: tokens,
            "segment_ids": segment_ids,
            "positions": positions,
        }
        if self.key is not None:
            first: dict[object, object] = samples[0]  # type: ignore[assignment]
            for field in first:
                if field != self.key:
                    batch[field] = [samples[segment.item][field] for segment in segments]  # type: ignore[index]
        return batch


@dataclass(frozen=True)
class Measure:
    """The size by which samples are grouped, beside the sample: ``(size, sample)``.

    ``largest``: what a group can hold, or None; ``cure``: what to do about larger ones.
    """

    size: object
    what: str
    largest: int | None = None
    cure: str = ""

    def __call__(self, sample: object) -> tuple[int, object]:
        size = int(self.size(sample))  # type: ignore[operator]
        if size < 0 or (self.largest is not None and size > self.largest):
            raise ValueError(
                f"{self.what}: a length of {size} is beyond {self.largest}; {self.cure}"
            )
        return size, sample

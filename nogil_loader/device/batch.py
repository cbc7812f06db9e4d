"""The structure of a batch, and its way into other frameworks.

Guarantees
- Structure is kept: dict -> dict, tuple -> tuple (named ones too), list -> list, nested to
  any depth; everything else is a leaf.
- ``export`` copies nothing: the framework's arrays show the same memory, and keep it from
  being reused for as long as they live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np

Batch = object
"""A dict, tuple or list of arrays (and of anything), nested at will, or one array."""


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array that can be handed to any framework (the DLPack protocol, array API 2022)."""

    def __dlpack__(self, *, stream: int | None = None) -> object:
        """A capsule; on a GPU, the data is ready for work issued to ``stream``."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind of device (1 CPU, 2 CUDA, 3 CUDA pinned memory) and its number."""
        ...


def map_leaves(fn: Callable[[object], object], batch: Batch) -> Batch:
    """The batch with ``fn`` applied to every leaf.

    >>> map_leaves(str, {"a": (1, [2, 3])})
    {'a': ('1', ['2', '3'])}
    """
    if isinstance(batch, dict):
        return {key: map_leaves(fn, value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        values = (map_leaves(fn, value) for value in batch)
        if hasattr(batch, "_make"):
            return batch._make(values)
        return tuple(values)
    if isinstance(batch, list):
        return [map_leaves(fn, value) for value in batch]
    return fn(batch)


def leaves(batch: Batch) -> Iterator[object]:
    """The leaves in the order of the structure.

    >>> list(leaves({"a": (1, [2]), "b": 3}))
    [1, 2, 3]
    """
    if isinstance(batch, dict):
        for value in batch.values():
            yield from leaves(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from leaves(value)
    else:
        yield batch


def numeric(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bool:
    """Are the elements bool, int, float or complex? Others stay on the host."""
    return array.dtype.kind in "biufc"


def export(batch: Batch, from_dlpack: Callable[[SupportsDLPack], object]) -> Batch:
    """The batch as another framework's arrays, without a copy.

    ``from_dlpack`` is that framework's own function: ``torch.from_dlpack``,
    ``jax.dlpack.from_dlpack``, ``cupy.from_dlpack``, ``np.from_dlpack``. It is called for
    every numeric array; strings, None and other leaves stay as they are. On a GPU the
    framework names the stream it will read on, and the memory is reused only after what
    that stream had been given by the time the last view of it was dropped.

    >>> batch = {"image": np.zeros((2, 3), np.uint8), "path": ["a.jpg", "b.jpg"]}
    >>> view = export(batch, np.from_dlpack)
    >>> view["path"], np.shares_memory(view["image"], batch["image"])
    (['a.jpg', 'b.jpg'], True)
    """

    def view(leaf: object) -> object:
        if isinstance(leaf, np.ndarray) and not numeric(leaf):
            return leaf
        if isinstance(leaf, np.generic) or not isinstance(leaf, SupportsDLPack):
            return leaf
        return from_dlpack(leaf)

    return map_leaves(view, batch)

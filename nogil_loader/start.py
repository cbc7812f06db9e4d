"""The functions that begin a pipeline: one for each kind of source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from nogil_loader.pipeline import Pipeline
from nogil_loader.sources.files import Files, Labels
from nogil_loader.sources.iterable import Iterable_
from nogil_loader.sources.sequence import Data, Sequence_

Sample = dict[str, object]


def from_sequence(data: Data) -> Pipeline[object]:
    """Anything with ``len`` and ``[]``: sample ``i`` is ``data[i]``.

    >>> import nogil_loader as nl
    >>> list(nl.from_sequence("abc"))
    ['a', 'b', 'c']
    """
    return Pipeline(Sequence_(data))


def from_iterable(items: Iterable[object] | Callable[[], Iterable[object]]) -> Pipeline[object]:
    """What can only be read in order: an iterable, or a function that returns a fresh one.

    >>> import nogil_loader as nl
    >>> [batch.tolist() for batch in nl.from_iterable(lambda: iter(range(5))).batch(2)]
    [[0, 1], [2, 3], [4]]
    """
    return Pipeline(Iterable_(items))


def from_files(
    root: str | os.PathLike[str],
    pattern: str = "**/*",
    *,
    labels: Labels = None,
    extensions: tuple[str, ...] | None = None,
) -> Pipeline[Sample]:
    """The files below a folder: samples are ``{"path": str}``, with ``labels`` also ``"label"``.

    ``pattern``: ``*``, ``?``, ``[…]`` within a component, ``**`` for any number of folders.
    ``labels``: ``"folder"`` numbers the first folder below the root, a function is called with
    the path below it. ``extensions``: only names that end in one of these, in any case.
    """
    return Pipeline(Files(root, pattern, labels, extensions))

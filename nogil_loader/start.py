"""The functions that begin a pipeline: one for each kind of source.

Each imports its source when it is called: what a program does not read costs it nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from nogil_loader.mixture import Mixture
from nogil_loader.pipeline import Pipeline
from nogil_loader.sources.base import StreamSource

if TYPE_CHECKING:
    from nogil_loader.sources.arrays import Column
    from nogil_loader.sources.files import Labels
    from nogil_loader.sources.http import Patience
    from nogil_loader.sources.locations import Location
    from nogil_loader.sources.queue import Gettable
    from nogil_loader.sources.saved import Keep
    from nogil_loader.sources.sequence import Data

Sample = dict[str, object]
T = TypeVar("T")


def from_sequence(data: Data) -> Pipeline[object]:
    """Anything with ``len`` and ``[]``: sample ``i`` is ``data[i]``.

    >>> import nogil_loader as nl
    >>> list(nl.from_sequence("abc"))
    ['a', 'b', 'c']
    """
    from nogil_loader.sources.sequence import Sequence_

    return Pipeline(Sequence_(data))


def from_iterable(items: Iterable[object] | Callable[[], Iterable[object]]) -> Pipeline[object]:
    """What can only be read in order: an iterable, or a function that returns a fresh one.

    >>> import nogil_loader as nl
    >>> [batch.tolist() for batch in nl.from_iterable(lambda: iter(range(5))).batch(2)]
    [[0, 1], [2, 3], [4]]
    """
    from nogil_loader.sources.iterable import Iterable_

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
    from nogil_loader.sources.files import Files

    return Pipeline(Files(root, pattern, labels, extensions))


def from_arrays(
    data: Mapping[str, Column] | Column,
    *,
    window: int | None = None,
    stride: int | None = None,
) -> Pipeline[object]:
    """Rows (or windows of rows) of arrays: npy and npz files, memory-mapped, or arrays.

    ``data``: an array or a path, or a dict of them with equally many rows; samples are rows,
    or dicts of rows. ``window``: that many consecutive rows as one sample, beginning every
    ``stride`` rows.

    >>> import numpy as np
    >>> import nogil_loader as nl
    >>> list(nl.from_arrays({"x": np.arange(4) * 2}))[3]["x"]
    np.int64(6)
    """
    from nogil_loader.sources.arrays import Arrays

    return Pipeline(Arrays(data, window, stride))


def from_lines(
    files: Location | Sequence[Location],
    *,
    threads: int | None = None,
    keep_index: Keep = "cache",
    scratch: str | None = None,
) -> Pipeline[object]:
    """The lines of text files, plain or compressed, each found by an index: samples are bytes.

    ``keep_index``: ``"cache"`` (a folder of the user's cache), ``"beside"`` each file,
    ``"memory"``, or a folder. ``scratch``: the folder for unpacked copies of compressed files.
    """
    from nogil_loader.sources.lines import Lines

    return Pipeline(Lines(files, threads, keep_index, scratch))


def from_tar(
    shards: Location | Sequence[Location],
    *,
    fields: Sequence[str] | None = None,
    truncated: Literal["raise", "keep"] = "raise",
    duplicates: Literal["raise", "last"] = "raise",
    threads: int | None = None,
    keep_index: Keep = "cache",
    stream: bool = False,
) -> Pipeline[object]:
    """Tar shards in the naming of WebDataset: members with one stem are one sample.

    Samples are dicts of bytes by extension, with ``"__key__"``. An index makes any sample
    reachable from any thread, so that ``shuffle`` is global. ``fields``: only these.
    ``truncated="keep"``: the whole samples of a shard that was cut short. ``duplicates="last"``:
    the later of two members with one name. ``keep_index``: ``"cache"`` (a folder of the user's
    cache), ``"beside"`` each shard, ``"memory"``, or a folder.
    ``stream``: read from front to back, for pipes and what cannot be indexed.
    """
    if stream:
        if truncated != "raise" or threads is not None or keep_index != "cache":
            raise ValueError(
                "from_tar(stream=True) has no index and one reader: leave out truncated, threads "
                "and keep_index, or read by index without stream"
            )
        from nogil_loader.sources.tar_stream import TarStream

        return Pipeline(TarStream(shards, fields, duplicates))
    from nogil_loader.sources.tar import Tar

    return Pipeline(Tar(shards, fields, truncated, duplicates, threads, keep_index))


def from_parquet(
    files: Location | Sequence[Location],
    *,
    columns: Sequence[str] | None = None,
    keep_groups: int = 8,
    threads: int | None = None,
) -> Pipeline[object]:
    """The rows of Parquet files: dicts with one entry a column. Needs ``nogil_loader[parquet]``.

    ``columns``: the names to read; all unless given. ``keep_groups``: how many decoded row
    groups are kept for all threads: a global shuffle over large groups decodes one for nearly
    every row, ``shuffle(window=...)`` does not.
    """
    from nogil_loader.sources.parquet import Parquet

    return Pipeline(Parquet(files, columns, keep_groups, threads))


def from_zip(
    archives: Location | Sequence[Location],
    *,
    labels: Literal["folder"] | None = None,
    extensions: Sequence[str] | None = None,
    threads: int | None = None,
    keep_index: Keep = "cache",
) -> Pipeline[object]:
    """The files in zip archives, in the order of their directories.

    Samples are dicts with ``"path"`` and ``"bytes"``, with ``labels`` also ``"label"``.
    ``keep_index``: ``"cache"`` (a folder of the user's cache), ``"beside"`` each archive,
    ``"memory"``, or a folder.
    """
    from nogil_loader.sources.zip import Zip

    return Pipeline(Zip(archives, labels, extensions, threads, keep_index))


def from_store(
    where: str | Sequence[str],
    *,
    extensions: Sequence[str] | None = None,
    threads: int | None = None,
    options: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    patience: Patience | None = None,
) -> Pipeline[object]:
    """The objects below an address: ``s3://``, ``gs://``, ``az://``, ``file://``; or a list of
    the objects' own addresses, ``http://`` and ``https://`` too.

    Samples are dicts with ``"path"`` and ``"bytes"``. Reading has ``threads`` (32) of its own,
    each with one request in flight. Plain HTTP(S) needs no extra; the others need
    ``nogil_loader[store]``. ``options``: obstore's, as ``{"region": "eu-central-1"}``; what is
    not given comes from the environment (``AWS_ACCESS_KEY_ID`` …), where credentials belong.
    ``patience``: how long to try, a ``sources.http.Patience``.
    """
    from nogil_loader.sources.http import USUAL
    from nogil_loader.sources.store import STORE_THREADS, Store

    threads = STORE_THREADS if threads is None else threads
    return Pipeline(Store(where, extensions, threads, options, patience or USUAL))


def from_queue(queue: Gettable, *, sentinel: object = None) -> Pipeline[object]:
    """Live data: what comes out of a ``queue.Queue`` or ``SimpleQueue``.

    It ends at the ``sentinel``, or when the queue is shut down. ``batch(n, max_wait=s)`` bounds
    how long a sample waits for its batch.
    """
    from nogil_loader.sources.queue import Queue_

    return Pipeline(Queue_(queue, sentinel))


def mix(
    pipelines: Sequence[Pipeline[T]],
    weights: Sequence[float],
    *,
    seed: int = 0,
    stop: str = "first",
) -> Pipeline[T]:
    """Several pipelines' data as one, in exact long-run proportions.

    ``pipelines``: data with nothing but order stages (``shuffle``, ``take``, ``skip``,
    ``repeat``); what is done with the samples comes after the mix. ``weights``: one positive
    number each. ``stop``: ``"first"`` ends where a source has no more, ``"all"`` when each was
    seen whole, ``"never"`` starts them again without end.

    >>> import nogil_loader as nl
    >>> both = nl.mix([nl.from_sequence("aaaaaa"), nl.from_sequence("bb")], weights=[3, 1])
    >>> sorted(both)
    ['a', 'a', 'a', 'a', 'a', 'a', 'b', 'b']
    """
    children = []
    for pipeline in pipelines:
        if isinstance(pipeline.source, (StreamSource, Mixture)):
            raise TypeError("mix needs data with random access: no streams, and no mixes of mixes")
        children.append((pipeline.source, pipeline.chain))
    return Pipeline(Mixture(tuple(children), tuple(weights), seed, stop))


def zip_sources(*pipelines: Pipeline[Sample]) -> Pipeline[Sample]:
    """Sample ``i`` of every pipeline as one: dicts merged, anything else a tuple.

    The pipelines are bare data of equal length; order and ops come after the zip.

    >>> import nogil_loader as nl
    >>> left, right = nl.from_sequence([{"x": 1}]), nl.from_sequence([{"y": 2}])
    >>> list(nl.zip_sources(left, right))
    [{'x': 1, 'y': 2}]
    """
    sources = []
    for pipeline in pipelines:
        if pipeline.chain or isinstance(pipeline.source, (StreamSource, Mixture)):
            raise TypeError("zip_sources takes bare data with random access: no stages, no streams")
        sources.append(pipeline.source)
    from nogil_loader.sources.combine import Zipped

    return Pipeline(Zipped(tuple(sources)))

"""How each peer is asked to do a job: the same function, the same batches, as many workers.

``loader(name)(work, workers)`` gives the passes over a ``Work``, each an iterator of batches.

Guarantees
- All call the same ``Work``: by the sample, with its ``collate``, where the peer's documentation
  does so, and by the batch where that is the peer's better way. ``SPDL io`` alone brings its own
  decoders.
- A peer that can stay warm from one pass to the next does: workers persist, and one that knows
  endless streams is given one, which is cut into passes here.
- What a peer started ends with the generator of its passes.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

Passes: TypeAlias = "Generator[Iterator[object], None, None]"


class Work(Protocol):
    """A job, sample by sample, and as what the peers call a data set. Pickles."""

    batch: int

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> object:
        """The result for one sample."""
        ...

    def collate(self, results: Sequence[object]) -> object:
        """A batch of results."""
        ...

    def load(self, indices: Sequence[int]) -> object:
        """A batch at once, as the loop written by hand makes it."""
        ...


def _cut(work: Work, stream: Iterator[object]) -> Passes:
    """Passes of an endless stream. Takes a work whose samples fill its batches."""
    if len(work) % work.batch:
        raise ValueError(f"{len(work)} samples do not fill batches of {work.batch}")
    while True:
        yield itertools.islice(stream, len(work) // work.batch)


def _indices(work: Work) -> Iterator[int]:
    return itertools.cycle(range(len(work)))


def _batches(work: Work) -> Iterator[list[int]]:
    total, batch = len(work), work.batch
    rows = [list(range(start, min(total, start + batch))) for start in range(0, total, batch)]
    return itertools.cycle(rows)


def spdl(work: Work, workers: int) -> Passes:
    """SPDL as its documentation builds pipelines: samples, then batches of them."""
    from spdl.pipeline import PipelineBuilder

    load: Callable[[int], object] = work.__getitem__
    pipeline = (
        PipelineBuilder[int, object]()
        .add_source(_indices(work))
        .pipe(load, concurrency=workers)
        .aggregate(work.batch)
        .pipe(work.collate)
        .add_sink(2)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from _cut(work, iter(pipeline))


def spdl_by_batch(work: Work, workers: int) -> Passes:
    """SPDL with one call for a batch, so that its engine is paid once a batch."""
    yield from _spdl_batches(work, work.load, workers)


def spdl_io(work: Work, workers: int) -> Passes:
    """SPDL with its own decoders, a batch a call: those of ``OWN_DECODERS``."""
    name: str = work.name  # type: ignore[attr-defined]
    own, samples = OWN_DECODERS[name], work.samples  # type: ignore[attr-defined]

    def load(indices: Sequence[int]) -> object:
        return own([samples[index] for index in indices])

    yield from _spdl_batches(work, load, workers)


def _spdl_batches(work: Work, load: Callable[[Sequence[int]], object], workers: int) -> Passes:
    from spdl.pipeline import PipelineBuilder

    pipeline = (
        PipelineBuilder[Sequence[int], object]()
        .add_source(_batches(work))
        .pipe(load, concurrency=workers)
        .add_sink(2)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from _cut(work, iter(pipeline))


def _spdl_pictures(paths: Sequence[str]) -> object:
    import spdl.io

    return spdl.io.to_numpy(spdl.io.load_image_batch(paths, width=224, height=224))


def _spdl_wav(paths: Sequence[str]) -> object:
    import spdl.io

    clips = [np.asarray(spdl.io.load_wav(Path(path).read_bytes())) for path in paths]
    return np.stack(clips) * np.float32(1 / 32768)


def _spdl_flac(paths: Sequence[str]) -> object:
    import spdl.io

    form = spdl.io.get_audio_filter_desc(sample_fmt="flt")
    clips = [spdl.io.to_numpy(spdl.io.load_audio(path, filter_desc=form)) for path in paths]
    return np.stack(clips)


def _spdl_npy(paths: Sequence[str]) -> object:
    import spdl.io

    return np.stack([spdl.io.load_npy(Path(path).read_bytes()) for path in paths])


def _spdl_npz(paths: Sequence[str]) -> object:
    import spdl.io

    return np.stack([spdl.io.load_npz(Path(path).read_bytes())["x"] for path in paths])


OWN_DECODERS: dict[str, Callable[[Sequence[str]], object]] = {
    "pictures": _spdl_pictures,
    "wav": _spdl_wav,
    "flac": _spdl_flac,
    "npy": _spdl_npy,
    "npz": _spdl_npz,
}


def dataloader_rs(work: Work, workers: int) -> Passes:
    """dataloader-rs, by its interface like torch's."""
    from dataloader_rs import PyDataloader, PyDataset

    class Rows(PyDataset):  # type: ignore[misc,unused-ignore]
        def __len__(self) -> int:
            return len(work)

        def __getitem__(self, index: int) -> object:
            return work[index]

    loader = PyDataloader(
        Rows(), batch_size=work.batch, num_workers=workers, collate_fn=work.collate
    )
    while True:
        yield iter(loader)


def torch(work: Work, workers: int) -> Passes:
    """torch's DataLoader, whose worker processes stay from one pass to the next."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        work,
        batch_size=work.batch,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=work.collate,
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )
    while True:
        yield iter(loader)


def torchdata(work: Work, workers: int) -> Passes:
    """torchdata's nodes with threads: indices, batches of them, a parallel mapper."""
    from torchdata import nodes

    indices = nodes.SamplerWrapper(range(len(work)))
    batches = nodes.Batcher(indices, work.batch, drop_last=False)
    loaded = nodes.ParallelMapper(batches, work.load, num_workers=workers, method="thread")
    loader = nodes.Loader(nodes.Prefetcher(loaded, 2))
    while True:
        yield iter(loader)


def webdataset(work: Work, workers: int) -> Passes:
    """WebDataset over the shards, in the worker processes of torch's DataLoader."""
    import webdataset

    from nogil_loader.cli.workloads.base import files_in
    from nogil_loader.cli.workloads.byhand import as_it_is
    from nogil_loader.cli.workloads.pictures import SIZE, decode_into

    into = decode_into()

    def load(sample: dict[str, bytes]) -> object:
        row = np.empty((1, *SIZE, 3), np.uint8)
        into(row, 0, sample["jpg"])
        return row[0]

    shards = files_in(work.folder)  # type: ignore[attr-defined]
    data = webdataset.WebDataset(shards, shardshuffle=False).map(load)
    data = data.batched(work.batch, collation_fn=work.collate)
    loader = webdataset.WebLoader(
        data,
        batch_size=None,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=as_it_is,  # else it makes tensors of arrays
    )
    while True:
        yield iter(loader)


def grain(work: Work, workers: int) -> Passes:
    """Grain's data set with prefetching worker processes, each making whole batches."""
    import grain as g
    from absl import flags

    flags.FLAGS([sys.argv[0]])  # its worker processes want the flags parsed
    data = g.MapDataset.source(work).batch(work.batch, batch_fn=work.collate).repeat()
    stream = data.to_iter_dataset(g.ReadOptions(num_threads=1, prefetch_buffer_size=2))
    options = g.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    with closing(iter(stream.mp_prefetch(options))) as batches:
        yield from _cut(work, batches)


def tf_data(work: Work, workers: int) -> Passes:
    """tf.data, whose threads call the same Python function."""
    import tensorflow as tf

    first = work[0]
    keys = list(first) if isinstance(first, dict) else []
    shown = [np.asarray(value) for value in (first.values() if keys else [first])]  # type: ignore[attr-defined]
    kinds = [array.dtype for array in shown]

    def call(index: np.int64) -> list[object]:
        made = work[int(index)]
        return list(made.values()) if isinstance(made, dict) else [made]

    def load(index: object) -> object:
        made = tf.numpy_function(call, [index], kinds)
        for tensor, array in zip(made, shown, strict=True):
            tensor.set_shape(array.shape)
        return tuple(made)

    data = tf.data.Dataset.range(len(work)).repeat().map(load, num_parallel_calls=workers)
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    data = data.batch(work.batch).prefetch(2).with_options(options)

    def batches() -> Iterator[object]:
        for batch in data.as_numpy_iterator():
            yield dict(zip(keys, batch, strict=True)) if keys else batch[0]

    yield from _cut(work, batches())


LOADERS: dict[str, tuple[str, Callable[[Work, int], Passes]]] = {
    "SPDL": ("spdl.pipeline", spdl),
    "SPDL by batch": ("spdl.pipeline", spdl_by_batch),
    "SPDL, GIL": ("spdl.pipeline", spdl),
    "SPDL by batch, GIL": ("spdl.pipeline", spdl_by_batch),
    "SPDL io": ("spdl.io", spdl_io),
    "dataloader-rs": ("dataloader_rs", dataloader_rs),
    "dataloader-rs, GIL": ("dataloader_rs", dataloader_rs),
    "torch": ("torch.utils.data", torch),
    "torchdata": ("torchdata.nodes", torchdata),
    "WebDataset": ("webdataset", webdataset),
    "Grain": ("grain", grain),
    "tf.data": ("tensorflow", tf_data),
}
"""By name: what to import, and the passes."""


def loader(name: str) -> Callable[[Work, int], Passes]:
    """The passes of that peer, which is imported: nobody's first batch waits for an import."""
    module, passes = LOADERS[name]
    importlib.import_module(module)
    return passes

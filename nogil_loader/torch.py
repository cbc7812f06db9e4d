"""A drop-in for ``torch.utils.data.DataLoader`` whose workers are threads.

Change the import, keep the arguments::

    from nogil_loader.torch import DataLoader

Guarantees
- The same batches in the same order as torch's, for the same dataset, sampler and generator.
- ``num_workers`` threads fetch and collate batches; with 0 the consumer's own thread does.
- Map-style datasets are copied once for every thread (arrays, tensors, bytes and strings are
  shared), so that open files and handles are not shared by surprise; ``share_dataset=True``
  shares the object. An ``IterableDataset`` is read by one thread, once.
- ``state_dict`` and ``load_state_dict`` continue with the very next batch, without fetching
  what was delivered.

What differs from torch is in one table, in ``docs/torch.md``. torch is imported here only.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar, cast

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from nogil_loader.engine.run import Run
from nogil_loader.start import from_iterable

T = TypeVar("T")
State = dict[str, object]


class DataLoader(Generic[T]):
    """The signature of ``torch.utils.data.DataLoader``; see there, and the top of this module.

    ``multiprocessing_context`` and ``persistent_workers`` are accepted and mean nothing:
    threads need neither. ``share_dataset``: the threads share the dataset object itself.
    """

    def __init__(
        self,
        dataset: object,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[object] | None = None,
        batch_sampler: Iterable[Sequence[object]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[object]], T] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: object = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        share_dataset: bool = False,
    ) -> None:
        iterable = isinstance(dataset, IterableDataset)
        _check(num_workers, timeout, prefetch_factor, iterable, shuffle, sampler, batch_sampler)
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
            raise ValueError(
                "batch_sampler excludes batch_size, shuffle, sampler and drop_last: it decides them"
            )
        if batch_size is None and (shuffle or drop_last) and batch_sampler is None:
            raise ValueError("batch_size=None loads samples one by one: leave out drop_last")
        if sampler is not None and shuffle:
            raise ValueError(
                "sampler and shuffle exclude each other: the sampler decides the order"
            )
        self.dataset = dataset
        self.num_workers = num_workers
        self.batch_size = None if batch_sampler is not None else batch_size
        self.drop_last = drop_last
        self.generator = generator
        self.timeout = timeout
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.persistent_workers = persistent_workers
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.in_order = in_order
        self.share_dataset = share_dataset
        self.sampler = sampler
        if sampler is None and not iterable:
            self.sampler = _sampler(dataset, bool(shuffle), generator)
        self.batch_sampler = batch_sampler
        if batch_sampler is None and batch_size is not None and not iterable:
            assert self.sampler is not None
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        batched = self.batch_sampler is not None or (iterable and batch_size is not None)
        plain = default_collate if batched else default_convert
        self.collate_fn: Callable[..., object] = plain if collate_fn is None else collate_fn
        self._lock = threading.Lock()
        self._copies: dict[int, object] = {}
        self._resume: State | None = None
        self._epoch: _Pass[T] | None = None

    def __iter__(self) -> Iterator[T]:
        """A pass from the start, or from where ``load_state_dict`` says."""
        if self._epoch is not None:
            self._epoch.close()
        resume, self._resume = self._resume, None
        self._epoch = _Pass(self, resume)
        return self._epoch

    def __len__(self) -> int:
        """Batches of one pass. ``TypeError`` for an ``IterableDataset`` without a length."""
        if isinstance(self.dataset, IterableDataset):
            count = len(self.dataset)
            if self.batch_size is None:
                return count
            return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
        return len(self._indices)  # type: ignore[arg-type]

    def copy_for(self, worker: int) -> object:
        """The dataset of a worker thread: copied once, and kept over passes."""
        with self._lock:
            if worker not in self._copies:
                self._copies[worker] = copy_of(self.dataset)
            return self._copies[worker]

    @property
    def _indices(self) -> Iterable[object]:
        """What is fetched: batches of indices, or single ones."""
        chosen = self.batch_sampler if self.batch_sampler is not None else self.sampler
        assert chosen is not None
        return chosen

    def state_dict(self) -> State:
        """Where the pass stands: batches delivered, and the generator at its beginning."""
        if self._epoch is None:
            return {} if self._resume is None else dict(self._resume)
        return {"delivered": self._epoch.delivered, "random": self._epoch.random}

    def load_state_dict(self, state: State) -> None:
        """The next ``iter()`` continues there."""
        self._resume = dict(state) if state else None
        if self._epoch is not None:
            self._epoch.close()
        self._epoch = None


class _Pass(Generic[T]):
    """One iteration over a loader."""

    def __init__(self, loader: DataLoader[T], resume: State | None) -> None:
        self._timeout = loader.timeout or None
        self.delivered = 0
        source = loader.generator
        if resume is not None:
            self.delivered = int(resume["delivered"])  # type: ignore[call-overload]
            _restore(source, resume["random"])
        self.random = (source.get_state() if source is not None else torch.get_rng_state()).tolist()
        # torch draws the seed of its workers before the sampler draws anything.
        torch.empty((), dtype=torch.int64).random_(generator=source)
        work = _work_of(loader, self.delivered)
        fetch = _Fetch(loader)
        self._run: Run[object] | None = None
        self._plain: Iterator[object] | None = None
        if loader.num_workers == 0:
            self._plain = map(fetch.bind(), work)
            return
        pipeline = from_iterable(_Once(work)).map(fetch, name="fetch")
        ahead = loader.prefetch_factor * loader.num_workers
        self._run = (
            pipeline.workers(loader.num_workers, block=1)
            .prefetch(ahead)
            .run(ordered=loader.in_order)
        )

    def __iter__(self) -> _Pass[T]:
        return self

    def __next__(self) -> T:
        if self._run is None:
            assert self._plain is not None
            batch = next(self._plain)
        else:
            try:
                batch = self._run.next(self._timeout)
            except TimeoutError as late:
                told = f"DataLoader timed out after {self._timeout} seconds"
                raise RuntimeError(told) from late
        self.delivered += 1
        return batch  # type: ignore[return-value]

    def close(self) -> None:
        """Let the threads go."""
        if self._run is not None:
            self._run.close()


class _Once:
    """An iterable over work that is given out once."""

    def __init__(self, work: Iterator[object]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[object]:
        return self._work


def _work_of(loader: DataLoader[T], passed: int) -> Iterator[object]:
    """What the workers are given: indices, or the samples of an iterable dataset."""
    if not isinstance(loader.dataset, IterableDataset):
        return islice(iter(loader._indices), passed, None)
    samples: Iterator[object] = iter(loader.dataset)
    if loader.batch_size is None:
        return islice(samples, passed, None)
    return _batches(samples, loader.batch_size, loader.drop_last, passed)


def _batches(
    samples: Iterator[object], size: int, drop_last: bool, passed: int
) -> Iterator[object]:
    for _ in islice(samples, passed * size):
        pass
    while batch := list(islice(samples, size)):
        if len(batch) < size and drop_last:
            return
        yield batch


class _Fetch:
    """The op: indices (or samples) to a batch. Every thread binds its own."""

    def __init__(self, loader: DataLoader[T]) -> None:
        self._loader = loader
        self._lock = threading.Lock()
        self._bound = 0

    def __call__(self, work: object) -> object:
        return self.bind()(work)

    def bind(self) -> Callable[[object], object]:
        """For the calling thread: its copy of the dataset, its worker number."""
        loader = self._loader
        dataset, collate = loader.dataset, loader.collate_fn
        pin = _pinning(loader.pin_memory)
        if loader.num_workers:
            with self._lock:
                number, self._bound = self._bound, self._bound + 1
            if loader.worker_init_fn is not None:
                loader.worker_init_fn(number)
        if isinstance(dataset, IterableDataset):
            return lambda samples: pin(collate(samples))
        if loader.num_workers and not loader.share_dataset:
            dataset = loader.copy_for(number)
        get = cast("Callable[[object], object]", dataset.__getitem__)  # type: ignore[index]
        many = getattr(dataset, "__getitems__", None)
        if loader.batch_sampler is None:
            return lambda index: pin(collate(get(index)))
        if callable(many):
            return lambda indices: pin(collate(many(indices)))
        return lambda indices: pin(collate([get(index) for index in indices]))  # type: ignore[attr-defined]


class _Sharing(pickle.Pickler):
    """Pickles a structure, but hands arrays, tensors, bytes and strings on as they are."""

    def __init__(self, file: io.BytesIO, shared: list[object]) -> None:
        super().__init__(file, protocol=5)
        self._shared = shared

    def persistent_id(self, obj: object) -> int | None:
        if isinstance(obj, (np.ndarray, torch.Tensor, bytes, str)) or callable(obj):
            self._shared.append(obj)
            return len(self._shared) - 1
        return None


class _Joining(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, number: int) -> object:
        return self._shared[number]


def copy_of(dataset: object) -> object:
    """A dataset of one's own that shares arrays, tensors, bytes and strings with the original.

    Raises ``TypeError`` naming the remedy for what cannot be copied (open files, locks).
    """
    shared: list[object] = []
    file = io.BytesIO()
    try:
        state = getattr(dataset, "__dict__", None)
        if type(dataset).__reduce_ex__ is object.__reduce_ex__ and isinstance(state, dict):
            _Sharing(file, shared).dump(state)
            made: object = object.__new__(type(dataset))
            made.__dict__.update(_Joining(io.BytesIO(file.getvalue()), shared).load())
            return made
        _Sharing(file, shared).dump(dataset)
        return _Joining(io.BytesIO(file.getvalue()), shared).load()
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise TypeError(
            f"the dataset cannot be copied for each worker thread ({error}): open files in "
            f"__getitem__ or worker_init_fn, or say share_dataset=True if its __getitem__ may be "
            f"called by many threads at once"
        ) from error


def _pinning(wanted: bool) -> Callable[[object], object]:
    if not wanted or not torch.cuda.is_available():
        return lambda batch: batch
    from torch.utils.data._utils.pin_memory import pin_memory

    return pin_memory  # type: ignore[no-any-return]


def _restore(source: torch.Generator | None, state: object) -> None:
    saved = torch.tensor(state, dtype=torch.uint8)
    if source is not None:
        source.set_state(saved)
    else:
        torch.set_rng_state(saved)


def _sampler(dataset: object, shuffle: bool, generator: torch.Generator | None) -> Sampler[int]:
    if shuffle:
        return RandomSampler(dataset, generator=generator)
    return SequentialSampler(dataset)


def _check(
    num_workers: int,
    timeout: float,
    prefetch_factor: int | None,
    iterable: bool,
    shuffle: bool | None,
    sampler: object,
    batch_sampler: object,
) -> None:
    if num_workers < 0:
        raise ValueError(f"num_workers={num_workers}: 0, or the number of threads")
    if timeout < 0:
        raise ValueError(f"timeout={timeout}: 0, or seconds")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError("prefetch_factor needs num_workers > 0")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor={prefetch_factor}: at least 1")
    if iterable and (shuffle or sampler is not None or batch_sampler is not None):
        raise ValueError("an IterableDataset decides its own order: no shuffle and no samplers")

"""Pipelines: immutable chains that users write.

Guarantees
- A ``Pipeline`` is a value: it holds no thread, file or state, can be iterated any number of
  times, copied, compared, and printed as code.
- Every ``for`` over it is the same pass again, from the start.
- What is wrong with a chain is said when it is built, naming the call that fixes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass
from typing import Generic, Literal, TypeVar, cast, overload

from nogil_loader import plan, stages
from nogil_loader.engine.run import Run
from nogil_loader.epochs import Epochs
from nogil_loader.isolated import IsolatedRun
from nogil_loader.mixture import Mixture
from nogil_loader.session import AnySource, Session, is_stream, open_source, rank_of
from nogil_loader.sources.base import JSON, StreamSource
from nogil_loader.sources.combine import Zipped

T = TypeVar("T")
Fn = Callable[..., object]


@dataclass(frozen=True, repr=False)
class Pipeline(Generic[T]):
    """A source and what is done with its samples. Made by the ``from_*`` functions.

    Iterating yields batches (or samples, where nothing is batched). Every method returns a
    new pipeline and leaves this one as it is.

    >>> import nogil_loader as nl
    >>> squares = nl.from_sequence(range(5)).map(lambda n: n * n).batch(2)
    >>> [batch.tolist() for batch in squares]
    [[0, 1], [4, 9], [16]]
    """

    source: AnySource
    chain: tuple[stages.Stage, ...] = ()

    def __post_init__(self) -> None:
        plan.lay_out(self.chain, is_stream(self.source))

    def _with(self, stage: stages.Stage) -> Pipeline[T]:
        return Pipeline(self.source, (*self.chain, stage))

    # Order ------------------------------------------------------------------------------

    def shuffle(self, seed: int = 0, *, window: int | None = None) -> Pipeline[T]:
        """Permute the whole data set, differently in each epoch, in O(1) memory.

        ``window``: permute only within consecutive windows of that many samples, which is
        what a stream can have.
        """
        return self._with(stages.Shuffle(seed, window))

    def shard(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        remainder: str = "drop",
        batches: int | None = None,
        uneven: str | None = None,
    ) -> Pipeline[T]:
        """This rank's part: every ``world_size``-th position from ``rank`` on.

        Without arguments rank and world size are found when the run starts (torchrun, a SLURM
        job step, MPI). ``remainder``: ``"drop"``, ``"pad"`` or ``"wrap"`` what does not divide
        evenly, so that all ranks have equally many batches. ``batches``: stop every rank at so
        many. ``uneven``: ``"agree"`` or ``"allow"`` where stages after it change counts.
        """
        return self._with(stages.Shard(rank, world_size, remainder, batches, uneven))

    def repeat(self, times: int | None = None) -> Pipeline[T]:
        """``times`` passes, or without end; each pass is shuffled anew.

        Before ``batch``, batches span the passes; right after it, they end with each pass.
        """
        return self._with(stages.Repeat(times))

    def take(self, count: int) -> Pipeline[T]:
        """The first ``count`` samples (after ``batch``: batches of this rank)."""
        return self._with(stages.Take(count))

    def skip(self, count: int) -> Pipeline[T]:
        """All but the first ``count`` samples (after ``batch``: batches of this rank)."""
        return self._with(stages.Skip(count))

    # Ops --------------------------------------------------------------------------------

    def map(
        self,
        fn: Fn,
        *,
        key: object = None,
        to: object = None,
        threads: int | str | None = None,
        limit: int | None = None,
        serial: bool = False,
        in_flight: int | None = None,
        rng: bool = False,
        on_error: stages.OnError = "raise",
        max_skips: int | float | None = None,
        timeout: float | None = None,
        gil_fallback: str = "thread",
        name: str | None = None,
    ) -> Pipeline[T]:
        """``fn`` of each sample, or with ``key=`` of one field of it.

        ``to``: the name that the result takes in place of the field. ``threads``: a set of
        threads of its own, for work that blocks. ``limit``: at most so many workers inside at
        once. ``serial``: one at a time and in order. ``in_flight``: ``fn`` may return
        ``concurrent.futures.Future``s, at most so many unsettled at once. ``rng``: call
        ``fn(value, rng)`` with a NumPy generator keyed by (seed, epoch, position, stage).
        ``on_error``: ``"raise"``, ``"skip"`` (dropped, counted and listed in the report; more
        than ``max_skips``, a count or a share, end the run), ``Retry(...)``, or
        ``fn(sample_ref, exception)`` that returns a substitute. ``timeout``: seconds for one
        call. ``gil_fallback``: ``"process"`` runs the stage in worker processes on GIL builds.
        """
        return self._with(
            stages.Map(
                fn, key, to, threads, limit, serial, in_flight, rng, on_error, max_skips, timeout,
                gil_fallback, name,
            )
        )  # fmt: skip

    def filter(
        self,
        fn: Fn,
        *,
        key: object = None,
        threads: int | str | None = None,
        limit: int | None = None,
        serial: bool = False,
        rng: bool = False,
        on_error: stages.OnError = "raise",
        max_skips: int | float | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Pipeline[T]:
        """Keep the samples (or those with a field) for which ``fn`` is true.

        The options are those of ``map``.
        """
        return self._with(
            stages.Filter(
                fn, key, None, threads, limit, serial, None, rng, on_error, max_skips, timeout,
                "thread", name,
            )
        )  # fmt: skip

    def flat_map(
        self,
        fn: Fn,
        *,
        key: object = None,
        to: object = None,
        threads: int | str | None = None,
        limit: int | None = None,
        serial: bool = False,
        rng: bool = False,
        on_error: stages.OnError = "raise",
        max_skips: int | float | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Pipeline[T]:
        """Any number of samples for each: those of the iterable that ``fn`` returns.

        The options are those of ``map``. With ``rng``, ops further down are keyed by the
        number of the child, too.
        """
        return self._with(
            stages.FlatMap(
                fn, key, to, threads, limit, serial, None, rng, on_error, max_skips, timeout,
                "thread", name,
            )
        )  # fmt: skip

    # Groups -----------------------------------------------------------------------------

    def batch(
        self,
        n: int,
        *,
        drop_last: bool = False,
        collate: Fn | None = None,
        max_wait: float | None = None,
    ) -> Pipeline[T]:
        """``n`` consecutive samples as one: arrays and numbers stacked, the rest in lists.

        ``collate``: ``fn(list_of_samples)`` makes the batch instead. ``max_wait``: seconds
        after which a batch closes short (live data; such a run cannot be resumed).
        """
        return self._with(stages.Batch(n, drop_last, collate, max_wait))

    def bucket(
        self,
        length: Fn,
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        drop_last: bool = False,
        collate: Fn | None = None,
    ) -> Pipeline[T]:
        """Batches of samples of similar length, so that padding them wastes little.

        ``length``: ``fn(sample) -> int``. ``boundaries``: the largest length of each bucket,
        ascending. ``batch_sizes``: one for all, or one for each (one more takes what is longer
        than all). Put ``pad()`` before it to pad each batch to its bucket's boundary.
        """
        sizes = batch_sizes if isinstance(batch_sizes, int) else tuple(batch_sizes)
        return self._with(stages.Bucket(length, tuple(boundaries), sizes, drop_last, collate))

    def pad(
        self,
        to: int | None = None,
        *,
        key: object = None,
        axis: int = 0,
        value: object = 0,
        multiple: int = 1,
        lengths: str | None = None,
    ) -> Pipeline[T]:
        """Make arrays equally long along ``axis``, with ``value`` at the end.

        ``to``: that length, for every sample. Without it, the arrays of the batch that follows
        get the length of their bucket, or of the longest among them rounded up to a
        ``multiple``. ``key``: the field or fields to pad (all arrays by default).
        ``lengths``: a field that keeps the lengths before padding.
        """
        return self._with(stages.Pad(to, key, axis, value, multiple, lengths))

    def pack(
        self,
        length: int,
        *,
        algorithm: str = "best_fit",
        key: object = None,
        rows: int = 1,
        open_packs: int | None = None,
        drop_last: bool = False,
    ) -> Pipeline[T]:
        """Lay token sequences into batches of ``rows`` rows of ``length`` tokens.

        ``algorithm``: ``"first_fit"`` and ``"best_fit"`` never cut a sequence, ``"concat"``
        fills every row and cuts. ``key``: the field with the tokens (one-dimensional). Batches
        are dicts: the tokens (rows, length), ``"segment_ids"`` and ``"positions"``, int32.
        """
        return self._with(stages.Pack(length, algorithm, key, rows, open_packs, drop_last))

    def cache(
        self,
        where: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        version: str = "",
        freeze_rng: bool = False,
    ) -> Pipeline[T]:
        """Keep the samples as they are at this place: in ``"memory"``, or in a folder.

        Keyed by the data's fingerprint, the index of the sample and ``version``: change the
        version when the stages above change. Memory is kept over ``epochs()``; a folder over
        runs and processes. When ``max_bytes`` are used nothing more is inserted. Arrays from
        memory are read-only.
        """
        return self._with(stages.Cache(os.fspath(where), max_bytes, version, freeze_rng))

    def unbatch(self) -> Pipeline[T]:
        """The rows of each batch as samples again."""
        return self._with(stages.Unbatch())

    def to_device(
        self,
        device: str = "auto",
        *,
        transform: Fn | None = None,
        stream: object = None,
    ) -> Pipeline[T]:
        """Batches on an accelerator, the end of the chain: ``"cuda:0"``, ``"host"``, ``"auto"``.

        They are assembled in pinned memory, copied on a side stream while the consumer
        computes, and handed over in order with the consumer's stream (``stream=``, or the one
        that is current where the batch is taken). ``transform``: ``fn(batch)`` on the side
        stream. Needs ``nogil_loader[gpu]``; ``"auto"`` stays on the host without it.
        """
        return self._with(stages.ToDevice(device, transform, stream))

    # How it runs ------------------------------------------------------------------------

    def prefetch(self, batches: int) -> Pipeline[T]:
        """Make so many batches ahead of the consumer (2 unless told)."""
        return self._with(stages.Prefetch(batches))

    def workers(
        self, count: int | None = None, *, share: float | None = None, block: int | None = None
    ) -> Pipeline[T]:
        """How many threads do the CPU work: ``count``, or a ``share`` of the usable cores.

        ``block``: samples that travel together, instead of as many as are about 1 ms of work;
        for measurements.
        """
        return self._with(stages.Workers(count, share, block))

    def memory(self, limit: int) -> Pipeline[T]:
        """At most ``limit`` bytes in flight (and the largest sample for each worker)."""
        return self._with(stages.Memory(limit))

    # Running ----------------------------------------------------------------------------

    @overload
    def run(
        self,
        *,
        epoch: int = 0,
        seed: int = 0,
        resume: Mapping[str, JSON] | None = None,
        ordered: bool = True,
        executor: Executor | None = None,
        trace: str | os.PathLike[str] | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        isolate: Literal[False] = False,
        allow_changes: bool = False,
    ) -> Run[T]: ...

    @overload
    def run(
        self,
        *,
        epoch: int = 0,
        seed: int = 0,
        resume: Mapping[str, JSON] | None = None,
        ordered: bool = True,
        trace: str | os.PathLike[str] | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        isolate: Literal[True],
        allow_changes: bool = False,
    ) -> IsolatedRun[T]: ...

    def run(
        self,
        *,
        epoch: int = 0,
        seed: int = 0,
        resume: Mapping[str, JSON] | None = None,
        ordered: bool = True,
        executor: Executor | None = None,
        trace: str | os.PathLike[str] | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        isolate: bool = False,
        allow_changes: bool = False,
    ) -> Run[T] | IsolatedRun[T]:
        """Start: threads, files and all. Use the result in a ``with`` block.

        ``epoch``: which shuffle. ``seed``: of the randomness that ops with ``rng`` get.
        ``resume``: a ``Run.state()`` (or ``merge_states`` of all ranks): go on with the very
        next batch, in the state's epoch and seed; a state of another pipeline or other data is
        refused unless ``allow_changes``. ``ordered=False``: the same batches, as they
        complete. ``executor``: the host program's own threads for the CPU work. ``trace``: a
        file that gets a timeline of every thread, for https://ui.perfetto.dev. ``quarantine``:
        a file to which each sample that ``on_error="skip"`` drops is added as it happens: a
        JSON object a line, with ``position``, ``sample``, ``stage``, ``type`` and ``message``
        of the exception, and ``epoch``. ``isolate``: do it all in one child process, for
        consumers whose own Python must not be disturbed; the pipeline must then consist of
        what can be pickled.
        """
        if isolate:
            if executor is not None:
                raise ValueError("run(isolate=True) has threads of its own: leave out executor=")
            options: dict[str, object] = {
                "epoch": epoch,
                "seed": seed,
                "resume": resume,
                "allow_changes": allow_changes,
                "ordered": ordered,
                "trace": trace,
                "quarantine": quarantine,
            }
            return IsolatedRun(self.source, self.chain, options)
        session = Session(self.source, self.chain)
        try:
            run = session.start(
                epoch=epoch,
                seed=seed,
                resume=resume,
                allow_changes=allow_changes,
                ordered=ordered,
                executor=executor,
                trace=trace,
                quarantine=quarantine,
            )
        except BaseException:
            session.close()
            raise
        return cast("Run[T]", run)

    def __iter__(self) -> Iterator[T]:
        """One pass over epoch 0."""
        return self.run()

    def epochs(
        self,
        count: int,
        *,
        seed: int = 0,
        resume: Mapping[str, JSON] | None = None,
        ordered: bool = True,
        quarantine: str | os.PathLike[str] | None = None,
        allow_changes: bool = False,
    ) -> Iterator[Run[T]]:
        """Runs of the epochs 0 … ``count - 1``, on threads that stay warm.

        The next epoch begins while the last batches of this one are consumed. ``resume``: a
        state; the first run goes on where it was taken, the others follow. ``quarantine``: as
        of ``run``, one file for all epochs.
        """
        # A generator: nothing is opened or started before the first epoch is asked for.
        yield from Epochs[T](
            self.source, self.chain, count, seed, ordered, resume, allow_changes, quarantine
        )

    def __len__(self) -> int:
        """Batches (or samples) of one pass; ``TypeError`` where only running would tell."""
        if isinstance(self.source, StreamSource):
            raise TypeError("the length of a stream is not known")
        reader, base = open_source(self.source)
        with closing(reader):
            count = plan.length_of(self.chain, base, rank_of(shard_of(self.chain)))
        if count is None:
            raise TypeError("the length is known only after filter, flat_map or repeat() have run")
        return count

    def __repr__(self) -> str:
        return ".".join([show_source(self.source), *map(stages.describe, self.chain)])


_BEGINNINGS = {
    "Arrays": "from_arrays",
    "Files": "from_files",
    "Iterable_": "from_iterable",
    "Lines": "from_lines",
    "Parquet": "from_parquet",
    "Queue_": "from_queue",
    "Sequence_": "from_sequence",
    "Store": "from_store",
    "Tar": "from_tar",
    "TarStream": "from_tar",
    "Zip": "from_zip",
}


def show_source(source: object) -> str:
    """The ``nl.from_*`` (or ``mix``, ``zip_sources``) call that makes the source."""
    if isinstance(source, Mixture):
        children = [repr(Pipeline(child, chain)) for child, chain in source.children]
        told = f"nl.mix([{', '.join(children)}], {list(source.weights)}"
        told += f", seed={source.seed}" if source.seed else ""
        return told + (f", stop={source.stop!r})" if source.stop != "first" else ")")
    if isinstance(source, Zipped):
        return f"nl.zip_sources({', '.join(map(show_source, source.sources))})"
    kind = type(source).__name__
    if kind not in _BEGINNINGS or not is_dataclass(source):
        return repr(source)
    arguments = ["stream=True"] if kind == "TarStream" else []
    for number, field in enumerate(fields(source)):
        value: object = getattr(source, field.name)
        if not field.init or (number and value == field.default):
            continue
        text = stages.show(value)
        arguments.append(f"{field.name}={text}" if number else text)
    return f"nl.{_BEGINNINGS[kind]}({', '.join(sorted(arguments, key=_named))})"


def _named(argument: str) -> bool:
    """Positional arguments first."""
    return "=" in argument.split("(")[0].split("'")[0]


def shard_of(chain: Sequence[stages.Stage]) -> stages.Shard | None:
    """The shard stage of a chain, if any."""
    return next((stage for stage in chain if isinstance(stage, stages.Shard)), None)

"""A session: the opened data and everything else that the runs over it share.

Guarantees
- One run has a session of its own and ends it; ``epochs`` has one for all its runs.
- Whatever a session opened (data, cache, the way to a device) is closed once, when the last
  thread that uses it is gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields, replace
from functools import partial
from typing import cast

from nogil_loader import plan, runtime, stages
from nogil_loader.caches.folder import FolderCache
from nogil_loader.caches.memory import MemoryCache
from nogil_loader.cluster.agree import Agreed
from nogil_loader.cluster.cores import workers_of
from nogil_loader.cluster.detect import connect, find
from nogil_loader.device.transfer import Transfer, open_transfer
from nogil_loader.engine.batches import sizeof
from nogil_loader.engine.cached import Store
from nogil_loader.engine.core import Point, RunStart
from nogil_loader.engine.origin import Origin, point_of
from nogil_loader.engine.program import AnyReader
from nogil_loader.engine.run import Run
from nogil_loader.engine.threads import Threads
from nogil_loader.engine.warm import Warm
from nogil_loader.engine.workers import Engine
from nogil_loader.mixture import Mixture
from nogil_loader.position.order import Order, Sequential
from nogil_loader.position.parse import StateMismatch
from nogil_loader.position.rest import Rest
from nogil_loader.position.state import Fingerprint, Resumed, State
from nogil_loader.sources.base import JSON, Source, StreamReader, StreamSource
from nogil_loader.streams import StreamView

AnySource = Source | StreamSource | Mixture


class Session:
    """See the top of this module."""

    def __init__(self, source: AnySource, chain: Sequence[stages.Stage]) -> None:
        self._source = source
        self._chain = tuple(chain)
        self._layout = plan.lay_out(self._chain, is_stream(source))
        self.rank = rank_of(self._layout.shard)
        self._warm = Warm()
        self._closed = threading.Lock()
        self._asking = threading.Lock()
        self._known: Fingerprint | None = None
        self._transfer = transfer_of(self._layout.device)
        self._reader: AnyReader | None = None
        self._base: Order = Sequential(None)
        if not isinstance(source, StreamSource):
            self._reader, self._base = open_source(source)
        self._store = self._make_store()

    def _make_store(self) -> Store | None:
        cache = next((s for s in self._chain if isinstance(s, stages.Cache)), None)
        if cache is None or self._reader is None:
            return None
        if cache.where == "memory":
            return MemoryCache(cache.max_bytes, sizeof)
        key = f"{self._reader.fingerprint()}-{cache.version}"
        return FolderCache(cache.where, cache.max_bytes, key)

    def start(
        self,
        *,
        epoch: int = 0,
        seed: int = 0,
        ordered: bool = True,
        resume: Mapping[str, JSON] | None = None,
        allow_changes: bool = False,
        executor: Executor | None = None,
        trace: str | os.PathLike[str] | None = None,
        quarantine: str | os.PathLike[str] | None = None,
        pool: Threads | None = None,
        exhausted: Callable[[], None] | None = None,
        last: bool = True,
    ) -> Run[object]:
        """Begin a run. ``last``: the session ends with it."""
        runtime.guard()
        state = None if resume is None else State.from_json(resume)
        if state is not None:
            epoch, seed = state.epoch, state.seed
        rank, world = self.rank or (0, 1)
        resumed = None if state is None else state.resume(rank, world)
        point = None if resumed is None else point_of(resumed.levels, resumed.samples)
        if resumed is not None and not resumed.levels and self._layout.fixed is not None:
            raise StateMismatch(
                f"{self._layout.fixed}: only the same number of ranks can go on from here, each "
                "from its own state"
            )
        batches = None if self._layout.shard is None else self._layout.shard.batches
        if resumed is not None and resumed.batches is not None and not allow_changes:
            batches = resumed.batches  # other ranks may have begun the epoch
        reader, passed = self._open(state, 0 if point is None else _bottom(point).begin)
        rest = Rest() if resumed is None else resumed.rest
        program = plan.compose(
            self._chain,
            reader,
            self._base,
            epoch=epoch,
            seed=seed,
            ordered=ordered,
            rank=self.rank,
            rest=rest.order,
            batches=batches,
            cores=self._cores(),
            processes=processes_wanted(),
        )
        stream = isinstance(reader, StreamReader)
        program = replace(
            program,
            warm=self._warm,
            store=self._store,
            marks=self._layout.shard is not None and self._layout.shard.remainder == "pad",
            keepers=(self.close,) if last else (),
        )
        if self._transfer is not None:
            allocate = self._transfer.allocator()
            program = replace(program, transfer=self._transfer, allocate=allocate)
        whole = plan.arrange(self._layout, self._base)
        origin = Origin(
            fingerprint=partial(self._fingerprint, reader),
            seed=seed,
            epoch=epoch,
            length=None if stream else whole.length,
            rank=rank,
            world=world,
            rest=rest,
            point=point,
            beyond=() if resumed is None else resumed.beyond,
            batches=batches,
            levels=len(program.core.levels),
            refusal=self._refusal(),
        )
        if state is not None:
            state.check(origin.fingerprint(), allow_changes=allow_changes)
        engine = Engine(
            program, self._run_start(program.order, stream, passed, point, resumed),
            pool, executor, exhausted, trace, quarantine,
        )  # fmt: skip
        run: Run[object] = Run(engine, origin)
        if self._layout.shard is not None and self._layout.shard.uneven == "agree":
            group = connect().group
            assert group is not None
            run.agree(partial(Agreed, group=group))
        engine.start()
        return run

    def _open(self, state: State | None, unit: int) -> tuple[AnyReader, int]:
        """The reader, and how many samples of a stream to pass over first."""
        if self._reader is not None:
            return self._reader, 0
        assert isinstance(self._source, StreamSource)
        snapshot = state.snapshot if state is not None else None
        if snapshot is not None and snapshot[0] <= unit:
            return self._view(self._source.open(snapshot[1])), unit - snapshot[0]
        return self._view(self._source.open()), unit

    def _view(self, reader: StreamReader) -> StreamReader:
        if not self._layout.orders:
            return reader
        return StreamView(reader, self._layout.orders, self.rank)

    @staticmethod
    def _run_start(
        order: Order | None,
        stream: bool,
        passed: int,
        point: Point | None,
        resumed: Resumed | None,
    ) -> RunStart:
        start = RunStart(
            length=None if stream or order is None else order.length,
            stream=stream,
            passed=passed,
            point=point,
        )
        if resumed is None:
            return start
        return replace(start, beyond=frozenset(resumed.beyond), partial=resumed.partial)

    def _cores(self) -> int:
        """Cores for this process: where ranks share a node, its part of them."""
        shard = self._layout.shard
        if shard is None or shard.rank is not None:
            return runtime.usable_cores()
        return workers_of(find().ranks)

    def _fingerprint(self, reader: AnyReader) -> Fingerprint:
        """What a state must agree with; made once."""
        with self._asking:
            if self._known is None:
                data = reader.fingerprint()
                self._known = {"data": data, "pipeline": describe(self._chain)}
            return self._known

    def _refusal(self) -> str | None:
        if self._layout.timed_batches:
            return "batch(max_wait=...) lets time decide what is in a batch: there is no state"
        return None

    def close(self) -> None:
        """Give back everything. Idempotent, from any thread."""
        if not self._closed.acquire(blocking=False):
            return
        if self._transfer is not None:
            self._transfer.close()
        self._warm.close()
        if self._store is not None:
            self._store.close()
        if self._reader is not None:
            self._reader.close()


def transfer_of(device: stages.ToDevice | None) -> Transfer[object] | None:
    """The way to the device on which batches end, if they do."""
    if device is None:
        return None
    opened = open_transfer(device.device, transform=device.transform, stream=device.stream)
    return cast("Transfer[object]", opened)


def processes_wanted() -> bool:
    """Whether stages with ``gil_fallback="process"`` run in worker processes here.

    On GIL builds they do; ``NOGIL_LOADER_FALLBACK=thread`` or ``=process`` decides for the
    whole program.
    """
    told = os.environ.get("NOGIL_LOADER_FALLBACK", "")
    if told not in ("", "thread", "process"):
        raise ValueError(f"NOGIL_LOADER_FALLBACK={told!r}: 'thread' or 'process'")
    return told == "process" or (told == "" and not runtime.free_threaded())


def is_stream(source: AnySource) -> bool:
    """Whether the source only comes in order."""
    return bool(getattr(source, "stream", False))


def open_source(source: Source | Mixture) -> tuple[AnyReader, Order]:
    """The opened data, and its order as it lies."""
    if isinstance(source, Mixture):
        mixed = source.open()
        return mixed, source.order(mixed)
    reader = source.open()
    return reader, Sequential(len(reader))


def rank_of(shard: stages.Shard | None) -> tuple[int, int] | None:
    """This process's part, where the chain asks for one."""
    if shard is None:
        return None
    ranks = find(shard.rank, shard.world_size).ranks
    return ranks.rank, ranks.world_size


def describe(chain: Sequence[stages.Stage]) -> list[str]:
    """What of a chain decides the stream of batches; threads and budgets do not."""
    told = []
    for stage in chain:
        if isinstance(stage, (stages.Workers, stages.Memory, stages.Prefetch, stages.ToDevice)):
            continue
        if isinstance(stage, stages.Op):
            stage = replace(
                stage, threads=None, limit=None, serial=False, in_flight=None, timeout=None,
                gil_fallback="thread", name=stage.title,
            )  # fmt: skip
        if isinstance(stage, stages.Shard):
            stage = replace(stage, rank=None, world_size=None)
        told.append(_plainly(stage))
    return told


def _plainly(stage: stages.Stage) -> str:
    """The stage with functions by name only: where their code lies may change."""
    parts = []
    for field in fields(stage):
        value: object = getattr(stage, field.name)
        if value != field.default:
            parts.append(f"{field.name}={stages.name_of(value) if callable(value) else value!r}")
    return f"{type(stage).__name__.lower()}({', '.join(parts)})"


def _bottom(point: Point) -> Point:
    while point.below is not None:
        point = point.below
    return point

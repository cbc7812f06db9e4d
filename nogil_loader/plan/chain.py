"""Down the chain once: levels, segments, and everything that can be refused at once.

Guarantees: nothing is read or opened; a chain that is wrong in itself is refused with the call
that fixes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from nogil_loader import stages
from nogil_loader.engine.core import OpSpec, Policy, SegmentSpec
from nogil_loader.engine.ops import FILTER, FLAT_MAP, KEEP, MAP, MEASURE, SEND, Op
from nogil_loader.engine.padding import Measure, Packing, Padding
from nogil_loader.engine.program import Collate
from nogil_loader.fallback.remote import Remote
from nogil_loader.plan.collating import Collating, Length, only, rows_of
from nogil_loader.plan.layout import Layout, Level
from nogil_loader.position.bucketing import Buckets
from nogil_loader.position.grouping import Batches, Grouper
from nogil_loader.position.packing import packs
from nogil_loader.position.stretch import Stretch

_CPU = 0
_AUTO_THREADS = 64
"""At most so many threads where the number is found out."""


_SETTINGS = (stages.Prefetch, stages.Workers, stages.Memory)


class Walk:
    """Goes down the chain once."""

    def __init__(self, chain: Sequence[stages.Stage], stream: bool, processes: int = 0) -> None:
        self.stream = stream
        self.processes = processes
        """Worker processes for stages that ask for them; 0: they run on threads."""
        self.levels = [Level()]
        self.orders: list[stages.Stage] = []
        self.threads: list[int] = []
        self.kinds = ["workers"]
        self.prefetch = 2
        self.workers = stages.Workers()
        self.memory: int | None = None
        self.group_size = 1
        self.shard: stages.Shard | None = None
        self.endless = False
        self.repeat_after_batch: int | None = None
        self.timed_batches = False
        self.fixed: str | None = None
        """Why another number of ranks cannot go on, if so."""
        self.padding: Padding | None = None
        """What a pad() asked of the next batch."""
        self.cache: stages.Cache | None = None
        self.process_stage = False
        """Whether an op runs in worker processes where there is a GIL."""
        self.device: stages.ToDevice | None = None
        self.names: set[str] = set()
        for stage in chain:
            self.visit(stage)
        self._check_shard(chain)

    @property
    def level(self) -> Level:
        return self.levels[-1]

    def visit(self, stage: stages.Stage) -> None:
        if self.device is not None and not isinstance(stage, _SETTINGS):
            raise ValueError(f"{stage} after to_device: batches on a device are the end of a chain")
        if isinstance(stage, stages.Op):
            self._op(stage)
        elif isinstance(stage, stages.Batch):
            self._batch(stage)
        elif isinstance(stage, stages.Bucket):
            self._bucket(stage)
        elif isinstance(stage, stages.Pack):
            self._pack(stage)
        elif isinstance(stage, stages.Pad):
            self._pad(stage)
        elif isinstance(stage, stages.Cache):
            self._cache(stage)
        elif isinstance(stage, stages.ToDevice):
            self._to_device(stage)
        elif isinstance(stage, stages.Unbatch):
            self._unbatch()
        elif isinstance(stage, stages.Prefetch):
            self.prefetch = stage.batches
        elif isinstance(stage, stages.Workers):
            self.workers = stage
        elif isinstance(stage, stages.Memory):
            self.memory = stage.limit
        elif isinstance(stage, (stages.Shuffle, stages.Shard, stages.Repeat)):
            self._order(stage)
        elif isinstance(stage, (stages.Take, stages.Skip)):
            self._stretch(stage)
        else:
            raise TypeError(f"{stage!r} is not a stage of a pipeline")

    # Order ------------------------------------------------------------------------------

    @property
    def _plain(self) -> bool:
        """Whether only one-to-one stages came so far: order is still arithmetic."""
        return len(self.levels) == 1 and self.level.one_to_one

    def _order(self, stage: stages.Stage) -> None:
        if isinstance(stage, stages.Repeat):
            self._repeat(stage)
            return
        word = str(stage)
        if not self._plain:
            raise ValueError(
                f"{word} comes after a stage that drops, multiplies or groups samples, where "
                f"positions are not known beforehand: put it before filter, flat_map and batch"
            )
        if isinstance(stage, stages.Shuffle):
            if self.shard is not None:
                raise ValueError(
                    f"{word} after shard would shuffle each rank's part alone: put it before"
                )
            if stage.window is None and self.stream:
                raise ValueError(
                    f"{word}: a stream has no length to permute: use shuffle(seed, window=...)"
                )
            if stage.window is None and self.endless:
                raise ValueError(
                    f"{word} after an endless repeat() has no length to permute: "
                    f"put shuffle before repeat()"
                )
        if isinstance(stage, stages.Shard):
            if self.shard is not None:
                raise ValueError("shard() twice: a rank has one part of the data")
            self.shard = stage
        self.orders.append(stage)

    def _repeat(self, stage: stages.Repeat) -> None:
        if self.endless:
            raise ValueError("repeat() after an endless repeat(): one is enough")
        if self.stream:
            raise ValueError(
                "repeat() of a stream: give from_iterable a function that makes the passes"
            )
        self.endless = stage.times is None
        if len(self.levels) > 1:
            self.fixed = f"{stage} after batch ends batches with each pass of a rank"
        elif self.shard is not None:
            self.fixed = f"{stage} after shard repeats the part of a rank: put it before shard"
        if len(self.levels) == 2 and not self.levels[1].ops and self.repeat_after_batch is None:
            self.repeat_after_batch = len(self.orders)
            self.orders.append(stage)
        elif len(self.levels) == 1:
            self.orders.append(stage)
        else:
            raise ValueError("repeat() this far down: put it before batch(), or right after it")

    def _stretch(self, stage: stages.Take | stages.Skip) -> None:
        word = str(stage)
        if self._plain:
            if self.shard is not None:
                raise ValueError(
                    f"{word} between shard and batch would give ranks different lengths: put it "
                    f"before shard() to count samples, or after batch() to count batches"
                )
            self.orders.append(stage)
            return
        count = stage.count
        self.fixed = f"{word} counts what each rank delivers"
        begin, length = (0, count) if isinstance(stage, stages.Take) else (count, None)
        self._close(partial(Stretch, begin, length), only)

    # Ops --------------------------------------------------------------------------------

    def _op(self, stage: stages.Op) -> None:
        level = self.level
        name = self._unique(stage.title)
        policy, substitute = _policy(stage)
        if len(self.levels) > 1 and policy.then == "skip":
            raise ValueError(
                f"{name}: on_error='skip' after batch would lose whole batches: use 'raise', "
                f"Retry(...) or a function that returns a substitute"
            )
        kind = {stages.Map: MAP, stages.Filter: FILTER, stages.FlatMap: FLAT_MAP}[type(stage)]
        if kind != MAP and stage.in_flight is not None:
            raise ValueError(f"{name}: in_flight= is for map")
        self.process_stage = self.process_stage or stage.gil_fallback == "process"
        remote = stage.gil_fallback == "process" and self.processes > 0
        op = Op(
            kind=kind,
            fn=Remote(stage.fn, name, stage.timeout) if remote else stage.fn,
            name=name,
            key=stage.key,
            to=stage.to,
            rng=stage.rng,
            timed=stage.timeout is not None and stage.in_flight is None and not remote,
            future=stage.in_flight is not None,
            substitute=substitute,
            remote=remote,
        )
        if kind != MAP or policy.then == "skip":
            level.one_to_one = False
        if policy.then == "skip" and self.shard is not None:
            level.complete = self.shard.batches is None and self.shard.uneven is None
        timeout = None if remote else stage.timeout  # the driver of the process keeps the time
        threads = self.processes if remote else None
        self.add(op, OpSpec(name, policy, timeout), stage, threads)

    def add(
        self, op: Op, spec: OpSpec, stage: stages.Op | None, threads: int | None = None
    ) -> None:
        """Append an op to the segment that is open, or begin one."""
        level = self.level
        number = len(level.ops)
        level.ops.append(op)
        level.specs.append(spec)
        if stage is not None and stage.threads is not None:
            threads = _AUTO_THREADS if isinstance(stage.threads, str) else stage.threads
        serial = stage is not None and stage.serial
        limit = stage.limit if stage is not None else None
        in_flight = stage.in_flight if stage is not None else None
        plain = threads is None and not serial and limit is None
        kind = _CPU
        if threads is not None:
            self.threads.append(threads)
            self.kinds.append(op.name)
            kind = len(self.threads)
        last = level.segments[-1] if level.segments else None
        joins = plain and not level.closed and last is not None and last.kind == _CPU
        if joins and last is not None:
            level.segments[-1] = replace(last, last=number + 1, in_flight=in_flight)
        else:
            auto = stage is not None and stage.threads == "auto"
            level.segments.append(
                SegmentSpec(number, number + 1, kind, limit, serial, in_flight, auto)
            )
        level.closed = not plain or spec.timeout is not None or in_flight is not None

    def _unique(self, title: str) -> str:
        name, number = title, 2
        while name in self.names:
            name, number = f"{title}-{number}", number + 1
        self.names.add(name)
        return name

    # Groups -----------------------------------------------------------------------------

    def _close(
        self,
        grouper: Callable[[], Grouper] | None,
        collate: Collate | None,
        neighbours: bool = True,
    ) -> None:
        """End the level: its outputs are grouped."""
        self.level.grouper = grouper
        self.level.collate = collate
        self.level.neighbours = neighbours
        self.padding = None
        self.levels.append(Level())

    def _batch(self, stage: stages.Batch) -> None:
        level = self.level
        size, drop_last = stage.size, stage.drop_last
        if len(self.levels) == 1:
            self.group_size = size
        level.max_wait = stage.max_wait
        self.timed_batches = self.timed_batches or stage.max_wait is not None
        early = len(self.levels) == 1 and level.one_to_one
        own = stage.collate is not None or self.padding is not None
        if early and not own and stage.max_wait is None:
            level.rows, level.drop_last = size, drop_last
            self.levels.append(Level())
            return
        collate = Collating(stage.collate, self.padding) if own else None
        self._close(partial(Batches, size, drop_last=drop_last), collate)

    def _bucket(self, stage: stages.Bucket) -> None:
        self._bottom("bucket", stage)
        make = partial(Buckets, stage.boundaries, stage.batch_sizes, drop_last=stage.drop_last)
        sizes = stage.batch_sizes
        self.group_size = sizes if isinstance(sizes, int) else sum(sizes)
        cure = "give one more batch size than boundaries to accept what is larger"
        self._measure("bucket", stage.length, make, cure)
        self._close(make, Collating(stage.collate, self.padding), neighbours=False)

    def _pack(self, stage: stages.Pack) -> None:
        self._bottom("pack", stage)
        make = partial(
            packs,
            stage.length,
            stage.rows,
            stage.algorithm,  # type: ignore[arg-type]
            open_packs=stage.open_packs,
            drop_last=stage.drop_last,
        )
        packing = Packing(stage.length, stage.key)
        self.group_size = stage.rows * 8
        self._measure("pack", Length(packing), make, "cut it in a map, or use 'concat'")
        self._close(make, packing, neighbours=False)

    def _bottom(self, word: str, stage: stages.Stage) -> None:
        if len(self.levels) > 1:
            raise ValueError(f"{word} takes samples, not batches: put it in the place of batch()")

    def _measure(self, word: str, size: stages.Fn, make: Callable[[], Grouper], cure: str) -> None:
        """An op that puts the size of each sample beside it, where the core can see it."""
        op = Op(MEASURE, Measure(size, word, make().largest, cure), self._unique(word))
        self.add(op, OpSpec(op.name), None)

    def _pad(self, stage: stages.Pad) -> None:
        padding = Padding(
            stage.to, stage.key, stage.axis, stage.value, stage.multiple, stage.lengths
        )
        if stage.to is not None:
            op = Op(MAP, padding, self._unique("pad"))
            self.add(op, OpSpec(op.name), None)
        else:
            self.padding = padding

    def _cache(self, stage: stages.Cache) -> None:
        level = self.level
        if self.stream:
            raise ValueError("cache() of a stream: its samples have no index to be found by")
        if len(self.levels) > 1 or any(op.kind in (FILTER, FLAT_MAP) for op in level.ops):
            raise ValueError(
                "cache() keeps samples by the index of their source: put it before filter, "
                "flat_map and batch"
            )
        if self.process_stage:
            raise ValueError(
                "cache() lets hits pass by the ops above it, and worker processes cannot be passed "
                "by: put cache() before the op with gil_fallback='process'"
            )
        if self.cache is not None:
            raise ValueError("cache() twice: the second would never be asked")
        if any(op.rng for op in level.ops) and not stage.freeze_rng:
            raise ValueError(
                "cache() below an op with rng=True would freeze its randomness: put it before "
                "that op, or say cache(..., freeze_rng=True)"
            )
        self.cache = stage
        level.ops[:] = [replace(op, cached=True) for op in level.ops]
        op = Op(KEEP, unread, self._unique("cache"))
        self.add(op, OpSpec(op.name), None)

    def _to_device(self, stage: stages.ToDevice) -> None:
        if len(self.levels) == 1:
            raise ValueError("to_device takes batches: put batch(n) before it")
        self.device = stage
        op = Op(SEND, unread, self._unique("to_device"))
        self.add(op, OpSpec(op.name), None, threads=1)

    def _unbatch(self) -> None:
        if len(self.levels) == 1:
            raise ValueError("unbatch() needs batches: put it after batch(), or use flat_map(fn)")
        op = Op(FLAT_MAP, rows_of, self._unique("unbatch"))
        collate = self.levels[-2].collate
        stacked = collate is None or (isinstance(collate, Collating) and collate.fn is None)
        self.level.apart = stacked and not self.level.ops
        self.level.one_to_one = False
        self.add(op, OpSpec(op.name), None)

    # Ranks ------------------------------------------------------------------------------

    def _check_shard(self, chain: Sequence[stages.Stage]) -> None:
        shard = self.shard
        if shard is None or shard.batches is not None or shard.uneven is not None:
            return
        after = chain[chain.index(shard) + 1 :]
        uneven = [
            stage
            for stage in after
            if isinstance(stage, (stages.Filter, stages.FlatMap, stages.Bucket, stages.Pack))
        ]
        if uneven:
            word = str(uneven[0]).split("(")[0]
            raise ValueError(
                f"{word} after shard gives ranks different numbers of batches, and a collective "
                f"would then never return. Choose shard(batches=N) to stop every rank at N, "
                f"shard(uneven='agree') to have the ranks agree as they go, or "
                f"shard(uneven='allow') if nothing waits for all ranks"
            )

    def stop_at(self, batches: int) -> None:
        """End the chain after so many batches (samples, where nothing is batched)."""
        self._close(partial(Stretch, 0, batches), only)

    def layout(self) -> Layout:
        return Layout(
            levels=tuple(self.levels),
            orders=tuple(self.orders),
            repeat_after_batch=self.repeat_after_batch,
            threads=tuple(self.threads),
            kinds=tuple(self.kinds),
            prefetch=self.prefetch,
            workers=self.workers,
            memory=self.memory,
            group_size=self.group_size,
            shard=self.shard,
            device=self.device,
            fixed=self.fixed,
            timed_batches=self.timed_batches,
        )


def lay_out(chain: Sequence[stages.Stage], stream: bool) -> Layout:
    """Check a chain and cut it into levels and segments.

    ``stream``: the source only comes in order.
    """
    walk = Walk(chain, stream)
    return walk.layout()


def _policy(stage: stages.Op) -> tuple[Policy, stages.Fn | None]:
    retries, backoff = 0, None
    then: stages.OnError = stage.on_error
    if isinstance(then, stages.Retry):
        retries, backoff = then.times, then.wait if then.backoff else None
        then = then.then
    if callable(then):
        return Policy("substitute", retries, backoff), then
    return Policy(str(then), retries, backoff, max_skips=stage.max_skips), None


def unread(unit: object) -> object:
    """Stands for what only an opened run can do."""
    raise AssertionError("reading is bound to the opened source")

"""What only a run knows, added to a chain: the opened data, epoch, seed, rank.

Guarantees: the order of units is arithmetic, nested as the order stages are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from nogil_loader import runtime, stages
from nogil_loader.engine.core import CoreSpec, LevelSpec, OpSpec
from nogil_loader.engine.ops import READ, Op
from nogil_loader.engine.program import AnyReader, Program
from nogil_loader.plan.chain import Walk, lay_out, unread
from nogil_loader.plan.layout import Layout
from nogil_loader.position.grouping import Batches
from nogil_loader.position.order import Order, Repeat, Shuffled, Skip, Take, WindowShuffled
from nogil_loader.position.shard import Completed, Shard, Wrap
from nogil_loader.sources.base import StreamReader


def compose(
    chain: Sequence[stages.Stage],
    reader: AnyReader,
    base: Order,
    *,
    epoch: int,
    seed: int,
    ordered: bool,
    rank: tuple[int, int] | None,
    rest: Callable[[Order], Order] | None = None,
    batches: int | None = None,
    cores: int | None = None,
    processes: bool = False,
) -> Program:
    """The program of one pass over opened data.

    ``base``: the order of the data as it lies. ``rest``: what of the epoch's global order an
    earlier run of other ranks has left over. ``batches``: where ``shard(batches=N)`` stops
    this run.
    """
    stream = isinstance(reader, StreamReader)
    count = workers_of(_settings(chain), cores)
    walk = Walk((), stream, count if processes else 0)
    if not isinstance(reader, StreamReader):
        walk.names.add("read")
        walk.add(Op(READ, unread, "read"), OpSpec("read"), None, reader.threads)
    for stage in chain:
        walk.visit(stage)
    if batches is not None:
        walk.stop_at(batches)
    if walk.padding is not None:
        raise ValueError("pad() without to= makes batches even: put it before batch or bucket")
    layout = walk.layout()
    order = arrange(layout, base, rank, rest=rest)
    levels = [level.spec(number == 0) for number, level in enumerate(layout.levels)]
    if layout.repeat_after_batch is not None and not stream:
        below = arrange(layout, base, rank, upto=layout.repeat_after_batch)
        levels[0] = _with_boundary(levels[0], below)
    core = CoreSpec(
        levels=tuple(levels),
        workers=(count, *layout.threads),
        prefetch=layout.prefetch,
        group_size=layout.group_size,
        ordered=ordered,
        block=layout.workers.block,
        # Workers that share a core are twice as long at the same work.
        target=CoreSpec.target * (1 if count <= (cores or runtime.usable_cores()) else 2),
        memory=layout.memory,
    )
    return Program(
        core=core,
        ops=tuple(tuple(level.ops) for level in layout.levels),
        collates=tuple(level.collate for level in layout.levels),
        reader=reader,
        order=order if not stream or layout.orders else None,
        epoch=epoch,
        seed=seed,
        kinds=layout.kinds,
    )


def length_of(
    chain: Sequence[stages.Stage], base: Order, rank: tuple[int, int] | None
) -> int | None:
    """Outputs of one pass over the data, where arithmetic knows."""
    layout = lay_out(chain, stream=False)
    order = arrange(layout, base, rank)
    count = order.length
    if layout.shard is not None and layout.shard.batches is not None:
        return layout.shard.batches
    if layout.repeat_after_batch is not None:
        return None
    for level in layout.levels:
        if count is None or not level.one_to_one:
            return None
        count = level.outputs(count)
    return count


def _with_boundary(level: LevelSpec, below: Order) -> LevelSpec:
    """Batches that end with the epoch, under a repeat after batch."""
    size, drop_last = level.rows, level.drop_last
    grouper = level.grouper
    if size is not None:
        grouper = partial(Batches, size, drop_last=drop_last)
    return replace(level, rows=None, grouper=grouper, boundary=below.length)


def arrange(
    layout: Layout,
    base: Order,
    rank: tuple[int, int] | None = None,
    upto: int | None = None,
    rest: Callable[[Order], Order] | None = None,
) -> Order:
    """The order of units: every order stage as arithmetic around the one before.

    Without ``rank`` it is the global order, of all ranks together.
    """
    order = base
    for stage in layout.orders[:upto]:
        if isinstance(stage, stages.Shuffle):
            if stage.window is None:
                order = Shuffled(order, stage.seed)
            else:
                order = WindowShuffled(order, stage.window, stage.seed)
        elif isinstance(stage, stages.Repeat):
            every = order.order.length if isinstance(order, Shard) else None
            order = Repeat(order, stage.times, every)
        elif isinstance(stage, stages.Take):
            order = Take(order, stage.count)
        elif isinstance(stage, stages.Skip):
            order = Skip(order, stage.count)
        elif isinstance(stage, stages.Shard) and rank is not None:
            whole = order
            if rest is not None:
                order, rest = rest(order), None
            if stage.batches is not None:
                order = Wrap(Shard(order, *rank, "keep"), Shard(whole, *rank, "keep"))
            else:
                uneven = "keep" if stage.uneven is not None else stage.remainder
                order = Shard(order, *rank, uneven)  # type: ignore[arg-type]
    order = order if rest is None else rest(order)
    if rank is not None and layout.shard is not None and layout.levels[0].complete:
        order = Completed(order, masking=layout.shard.remainder == "pad")
    return order


def _settings(chain: Sequence[stages.Stage]) -> stages.Workers:
    """The last word on how many workers there are."""
    told = [stage for stage in chain if isinstance(stage, stages.Workers)]
    return told[-1] if told else stages.Workers()


def workers_of(stage: stages.Workers, cores: int | None = None) -> int:
    """Threads for CPU work: as told, or the usable cores (times a share)."""
    if stage.count is not None:
        return stage.count
    if cores is None:
        cores = runtime.usable_cores()
    return cores if stage.share is None else max(1, round(cores * stage.share))

"""From the counters of a run's threads to ``Counts``.

Guarantees
- Reading stops nobody: no lock is taken, so figures of the last millisecond may not quite
  fit together while the run goes.
- What a thread does at this moment counts up to this moment, however long it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from nogil_loader.engine.core import Core
from nogil_loader.engine.core.block import unit_of
from nogil_loader.engine.core.segment import Segment
from nogil_loader.engine.program import Places, Program
from nogil_loader.observe.counts import (
    WAITS,
    ConsumerCount,
    Counts,
    CrewCount,
    MachineCount,
    MemoryCount,
    Quarantined,
    StageCount,
    StreamCount,
)
from nogil_loader.observe.meters import OpCount, WorkerMeter, merge

if TYPE_CHECKING:
    from nogil_loader.engine.workers import Engine

_SHARES = (0.5, 0.9, 0.99, 1.0)


def count(
    engine: Engine,
    consumer: ConsumerCount,
    machine: MachineCount,
    samples: int,
    ended: bool,
    now: float,
) -> Counts:
    """Everything that is known about the run at the time ``now``."""
    core, program = engine.core, engine.program
    meters = list(engine.meters)
    return Counts(
        seconds=now - engine.begun,
        ended=ended,
        samples=samples,
        done=core.source.front,
        length=core.source.stop,
        stages=count_stages(core, program.kinds, meters),
        crews=count_crews(core, program.kinds, meters, now, _remote(program)),
        consumer=consumer,
        stream=_count_stream(engine, now),
        memory=count_memory(core),
        machine=machine,
        collated=sum(meter.collate.seconds for meter in meters),
        ordered=program.core.ordered,
        quarantined=tuple(quarantined(core, program)),
        abandoned=tuple(engine.abandoned),
        device=None if program.transfer is None else program.transfer.report(),
        changes=count_changes(core),
    )


def count_stages(
    core: Core, kinds: Sequence[str], meters: Sequence[WorkerMeter]
) -> tuple[StageCount, ...]:
    """Every op of every level."""
    return tuple(
        _count_op(segment, number, kinds[segment.spec.kind], meters)
        for level in core.levels
        for segment in level.segments
        for number in range(segment.spec.first, segment.spec.last)
    )


def _count_op(
    segment: Segment, number: int, crew: str, meters: Sequence[WorkerMeter]
) -> StageCount:
    level, spec = segment.level, segment.spec
    counted: OpCount = merge(meters, level.number, number)
    p50, p90, p99, slowest = (counted.quantile(share) for share in _SHARES)
    rule, bound = "", 0
    if spec.in_flight is not None and number == spec.last - 1:
        rule, bound = "in_flight", spec.in_flight
    elif spec.serial:
        rule, bound = "serial", 1
    elif spec.limit is not None:
        rule, bound = "limit", spec.limit
    elif segment.tuner is not None:
        rule, bound = "auto", segment.tuner.gate
    return StageCount(
        name=level.spec.ops[number].name,
        crew=crew,
        level=level.number,
        samples=counted.cells,
        failures=counted.failures,
        skipped=level.dropped[number] if level.dropped else 0,
        busy=counted.seconds,
        cpu=counted.cpu,
        p50=p50,
        p90=p90,
        p99=p99,
        slowest=slowest,
        bytes=counted.weight,
        queued=segment.units if number == spec.first else 0,
        fill=segment.waited / max(1, segment.gets) if number == spec.first else 0.0,
        rule=rule,
        bound=bound,
        flying=segment.flown if rule == "in_flight" else 0.0,
    )


def count_crews(
    core: Core,
    kinds: Sequence[str],
    meters: Iterable[WorkerMeter],
    now: float,
    remote: Collection[str] = (),
) -> tuple[CrewCount, ...]:
    """Every kind of threads that has any work to do in this run.

    ``remote``: the crews whose threads only drive worker processes.
    """
    crews = []
    by_kind = {kind: list(group) for kind, group in groupby(sorted(meters, key=_kind), key=_kind)}
    tuned = {segment.spec.kind for segment in core.segments if segment.tuner is not None}
    for kind, (name, threads) in enumerate(zip(kinds, core.spec.workers, strict=True)):
        if kind in tuned:
            threads = max(1, len(by_kind[kind]) if kind in by_kind else 0)
        busy = cpu = 0.0
        waits = dict.fromkeys(WAITS, 0.0)
        for meter in by_kind[kind] if kind in by_kind else ():
            doing, since = meter.reason, meter.since
            busy += meter.busy
            cpu += meter.cpu
            if name in remote:
                cpu += sum(op.cpu for ops in meter.ops for op in ops)
            for reason, seconds in meter.waits.items():
                waits[reason] += seconds
            if doing:
                waits[doing] += max(0.0, now - since)
            else:
                busy += max(0.0, now - since)
        crews.append(CrewCount(name, threads, busy, cpu, waits, name in remote))
    return tuple(crews)


def _remote(program: Program) -> set[str]:
    return {op.name for ops in program.ops for op in ops if op.remote}


def count_changes(core: Core) -> tuple[str, ...]:
    """What stages with ``threads="auto"`` did, and why."""
    tuners = [segment.tuner for segment in core.segments if segment.tuner is not None]
    return tuple(change for tuner in tuners for change in list(tuner.changes))


def _kind(meter: WorkerMeter) -> int:
    return meter.kind


def count_memory(core: Core) -> MemoryCount:
    """Bytes in flight."""
    ahead = core.ahead
    return MemoryCount(ahead.memory, ahead.charged, ahead.largest, core.stalls)


def _count_stream(engine: Engine, now: float) -> StreamCount | None:
    feed = engine.feed
    if feed is None:
        return None
    end = now if feed.stopped is None else feed.stopped
    paused = feed.waited(end)
    return StreamCount(max(0.0, end - feed.begun - paused), paused)


def quarantined(core: Core, program: Program, begin: int = 0) -> Iterator[Quarantined]:
    """What was skipped so far, in the order of judging, but for the first so many."""
    places = Places(program)
    for skip in core.skipped[begin:]:
        unit = unit_of(skip.ident)
        yield Quarantined(
            position=places.position(unit),
            sample=str(places.ref(unit)),
            stage=program.ops[skip.level][skip.op].name,
            type=type(skip.error).__name__,
            message=str(skip.error),
            epoch=program.epoch,
        )

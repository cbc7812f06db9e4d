"""What the threads of a run write into a trace."""

from __future__ import annotations

import os

from nogil_loader.engine.core import Core, Task
from nogil_loader.observe.counts import WAITS
from nogil_loader.observe.meters import WorkerMeter
from nogil_loader.observe.trace import Lane, Trace

BATCH = "batch"
"""The consumer waits for the next delivery."""
_BATCHING, _CONSUME = -2, -1


def open_trace(path: str | os.PathLike[str], core: Core) -> Trace:
    """A trace of a run: work is numbered like the segments, then batching, then consuming."""
    work = [
        " + ".join(op.name for op in s.level.spec.ops[s.spec.first : s.spec.last]) or "rows"
        for s in core.segments
    ]
    return Trace(path, [*work, "batching", "consumer"], [*WAITS, BATCH])


def note(trace: Trace, lane: Lane, task: Task | None, meter: WorkerMeter, now: float) -> None:
    """A worker has done a task, or has rested, since ``meter.since``."""
    if task is None:
        if meter.reason:
            lane.wait(meter.reason, meter.since, now)
        return
    segment, block = task.segment, task.block
    if segment is None or block is None:
        lane.add(trace.work + _BATCHING, meter.since, now, 0, 0)
    else:
        lane.add(segment.number, meter.since, now, block.start, block.count)


class ConsumerLane:
    """The lane of whoever takes the batches."""

    def __init__(self, trace: Trace) -> None:
        self._what = trace.work + _CONSUME
        self._lane = trace.lane("consumer")
        self._since: float | None = None
        self._taken = 0

    def fetched(self, begun: float, now: float, count: int) -> None:
        """A wait is over that began when the consumer had done with what it had."""
        if self._since is not None:
            self._lane.add(self._what, self._since, begun, self._taken, 0)
        self._lane.wait(BATCH, begun, now)
        self._taken += count
        self._since = now

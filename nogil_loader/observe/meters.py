"""Counters that one worker writes and anyone may read.

Guarantees
- Nothing is shared on the way of a sample: each worker has a set of its own, merged on read.
- A read while workers run is approximate by at most the block each of them is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nogil_loader.observe.counts import WAITS

BINS = 48
"""Bins of the histogram of op times: bin b holds times of [2**(b-1), 2**b) ns a cell."""


class OpMeter:
    """What one worker did in one op."""

    __slots__ = ("cells", "cpu", "failures", "histogram", "passed", "seconds", "weighed", "weight")

    def __init__(self) -> None:
        self.cells = 0
        self.weighed = self.weight = 0
        """Cells that came out of timed blocks, and their bytes."""
        self.passed = 0
        """Cells that went by untimed."""
        self.seconds = self.cpu = 0.0
        self.failures = 0
        self.histogram = [0] * BINS

    def add(self, cells: int, seconds: float, failures: int, cpu: float = 0.0) -> None:
        """A block went through the op; ``cpu``: seconds of that on a core."""
        self.cells += cells
        self.seconds += seconds
        self.failures += failures
        self.cpu += cpu
        if cells:
            self.histogram[min(BINS - 1, int(seconds * 1e9 / cells).bit_length())] += cells

    def weigh(self, cells: int, size: int) -> None:
        """So many cells came out, of so many bytes."""
        self.weighed += cells
        self.weight += size

    def extend(self, cells: int) -> None:
        """Cells that went by untimed: take them to have been like the others."""
        each = self.seconds / self.cells if self.cells else 0.0
        self.cpu += self.cpu / self.cells * cells if self.cells else 0.0
        self.cells += cells
        self.passed += cells
        if not each:
            return
        self.seconds += each * cells
        self.histogram[min(BINS - 1, int(each * 1e9).bit_length())] += cells


class Untimed(Protocol):
    """Ops ``first … last - 1``, and the cells that went through them without a clock."""

    first: int
    last: int
    cells: int


class WorkerMeter:
    """What one worker did in all: by (level, op), and how long it waited."""

    __slots__ = (
        "busy",
        "collate",
        "cpu",
        "kind",
        "ops",
        "reason",
        "since",
        "untimed",
        "waits",
    )

    def __init__(self, kind: int, ops: Iterable[int], now: float) -> None:
        self.kind = kind
        self.ops = [[OpMeter() for _ in range(count)] for count in ops]
        self.collate = OpMeter()
        self.busy = 0.0
        self.cpu = 0.0
        """Seconds on a core, as the thread's own clock said after its last block."""
        self.waits = dict.fromkeys(WAITS, 0.0)
        """Idle seconds by reason."""
        self.since = now
        """When it began what it does now,"""
        self.reason = ""
        """which is to wait for this, or (empty) to work."""
        self.untimed: Sequence[tuple[int, Untimed]] = ()
        """By level: stretches of ops whose last few blocks have yet to be added."""

    def waited(self, now: float) -> None:
        """An idle time is over, if it was one."""
        if self.reason:
            self.waits[self.reason] += now - self.since
            self.reason = ""


@dataclass(frozen=True)
class OpCount:
    """An op, over all workers."""

    cells: int = 0
    seconds: float = 0.0
    failures: int = 0
    cpu: float = 0.0
    weight: int = 0
    """Bytes of what came out."""
    histogram: tuple[int, ...] = field(default=(0,) * BINS)

    def quantile(self, share: float) -> float:
        """Seconds a cell that this share of the cells stayed below (upper edge of its bin)."""
        total = sum(self.histogram)
        seen = 0
        for number, count in enumerate(self.histogram):
            seen += count
            if total and seen >= share * total:
                return float(2**number) * 1e-9
        return 0.0


def merge(workers: Iterable[WorkerMeter], level: int, op: int) -> OpCount:
    """One op's counters over the workers."""
    cells = failures = weighed = weight = passed = 0
    seconds = cpu = 0.0
    histogram = [0] * BINS
    for worker in workers:
        meter = worker.ops[level][op]
        cells += meter.cells
        for number, part in worker.untimed:
            if number == level and part.first <= op < part.last:
                cells += part.cells
                passed += part.cells
        seconds += meter.seconds
        failures += meter.failures
        cpu += meter.cpu
        weighed += meter.weighed
        weight += meter.weight
        passed += meter.passed
        histogram = [a + b for a, b in zip(histogram, meter.histogram, strict=True)]
    weight += weight * passed // max(1, weighed)
    return OpCount(cells, seconds, failures, cpu, weight, tuple(histogram))

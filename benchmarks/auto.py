"""``threads="auto"`` against fixed numbers, with real threads. ``python -m benchmarks.auto``

For each latency a stage that only waits is run with 4, 16 and 64 threads, and with "auto", before
a consumer that takes whatever comes. Printed are the best fixed rate, that of "auto" from 5 to 8
seconds after its start and in the four seconds after that, both as shares of the best, and what
was changed when. Takes a minute and a half.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sized
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import nogil_loader as nl

LATENCIES = (0.005, 0.02, 0.05, 0.2)
FIXED = (4, 16, 64)


@dataclass(frozen=True)
class Watched:
    """A run: samples by time, and what it changed about itself."""

    taken: list[tuple[float, int]]
    changes: tuple[str, ...]

    def rate(self, begin: float, end: float) -> float:
        """Samples a second between two moments."""
        within = [(when, count) for when, count in self.taken if begin <= when <= end]
        (first, some), (last, more) = within[0], within[-1]
        return (more - some) / (last - first)


def wait(seconds: float, value: int) -> int:
    """The op: a request that takes so long to be answered."""
    threading.Event().wait(seconds)
    return value


def watch(latency: float, threads: int | str, seconds: float) -> Watched:
    """Run the stage for so long."""
    fetch = partial(wait, latency)
    data = nl.from_sequence(range(1 << 40)).map(fetch, name="fetch", threads=threads)
    taken: list[tuple[float, int]] = []
    count, begun = 0, time.monotonic()
    with data.batch(8).workers(1).run() as run:
        for batch in run:
            assert isinstance(batch, Sized)
            count += len(batch)
            taken.append((now := time.monotonic() - begun, count))
            if now > seconds:
                break
        return Watched(taken, run.report().counts.changes)


def main() -> None:
    """Measure and print."""
    print("latency   best fixed      auto, 5-8 s   auto, 8-12 s   changes")
    for latency in LATENCIES:
        rates = {threads: watch(latency, threads, 4.0).rate(1.5, 4.0) for threads in FIXED}
        best = max(rates, key=lambda threads: rates[threads])
        auto = watch(latency, "auto", 12.0)
        shares = [auto.rate(a, b) / rates[best] for a, b in pairwise((5.0, 8.0, 12.0))]
        print(
            f"{latency * 1e3:4.0f} ms   {rates[best]:6.0f}/s with {best:2}"
            f"   {shares[0]:10.2f}   {shares[1]:12.2f}   {len(auto.changes)}",
            *auto.changes,
            sep="\n    ",
            flush=True,
        )


if __name__ == "__main__":
    main()

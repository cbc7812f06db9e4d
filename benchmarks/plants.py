"""Defects to plant, so that a harness shows that it would catch them.

``python -m benchmarks text --plant engine`` measures with one: the number that should have moved
must move, or the run must end with an error. ``tests/benchmarks/test_plants.py`` does so with
every harness but the server's, where the noise of 256 threads is larger than the defect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from nogil_loader.cli.workloads import byhand
from nogil_loader.engine.run import Run

ENGINE, CEILING = 0.020, 0.010
"""Seconds for each batch."""


def burn(seconds: float) -> None:
    """Needless work on the CPU: the same on a busy machine."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def engine() -> None:
    """20 ms of needless work for each batch that the engine delivers."""
    following = Run.__next__

    def slower(run: Run[object]) -> object:
        burn(ENGINE)
        return following(run)

    Run.__next__ = slower  # type: ignore[method-assign,assignment]


def ceiling() -> None:
    """10 ms more for each batch of one of the loops written by hand."""
    fast = byhand.LOOPS["by_batch"]

    def slower(*args: object) -> Iterator[object]:
        for batch in fast(*args):  # type: ignore[arg-type]
            burn(CEILING)
            yield batch

    byhand.LOOPS["by_batch"] = slower  # type: ignore[assignment]


def short() -> None:
    """Peers are given a batch less to do."""
    from benchmarks import beside

    whole = beside.Work.__len__
    beside.Work.__len__ = lambda work: whole(work) - work.batch  # type: ignore[method-assign]


def idle() -> None:
    """Peers are given an op that does nothing: rows are left as they were made."""
    from benchmarks import beside

    def nothing(work: beside.Work, index: int) -> object:
        return work.job.new(1)[0]  # type: ignore[index]

    beside.Work.__getitem__ = nothing  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "engine": engine,
    "ceiling": ceiling,
    "short": short,
    "idle": idle,
}

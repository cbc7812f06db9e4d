"""The numbers of the contract, measured: ``python -m benchmarks.contract [NAME…] [--quick]``.

How soon a run ends (Ctrl-C, close, break, exit with an op that hangs), how much memory it
holds (over many epochs, and under ``memory()``), and what skipping a failing sample costs.
Each is measured in a process of its own, so that none disturbs the next, and printed beside
what was promised.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sized
from functools import partial
from pathlib import Path

import numpy as np

import nogil_loader as nl
from nogil_loader import runtime
from nogil_loader.engine.core import Core

MB = 1_000_000
PLAIN = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""For glibc: give large blocks back at once. Arrays that one thread makes and another lets go
otherwise leave holes, which come and go by 50 % and hide what is held."""


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def interrupt(quick: bool) -> str:
    """Ctrl-C to prompt: at most 0.2 s when no op is running."""
    times = []
    for _ in range(3 if quick else 10):
        pressed: list[float] = []

        def press(pressed: list[float] = pressed) -> None:
            time.sleep(0.1)
            pressed.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        presser = threading.Thread(target=press)
        blocked = threading.Event()
        stream = nl.from_iterable(partial(iter, blocked.wait, True))
        try:
            with stream.run() as run:
                presser.start()
                next(run)
        except KeyboardInterrupt:
            blocked.set()
        presser.join()
        times.append(time.perf_counter() - pressed[0])
    return f"Ctrl-C while the source blocks, to the end of `with`: {spread(times)}"


def interrupt_idle(quick: bool) -> str:
    """The same where nothing runs: the consumer is in its own loop body."""
    times = []
    for _ in range(3 if quick else 10):
        pressed: list[float] = []

        def press(pressed: list[float] = pressed) -> None:
            time.sleep(0.1)
            pressed.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        presser = threading.Thread(target=press)
        try:
            with nl.from_sequence(range(10**6)).batch(10).run() as run:
                next(run)
                presser.start()
                time.sleep(5)
        except KeyboardInterrupt:
            pass
        presser.join()
        times.append(time.perf_counter() - pressed[0])
    return f"Ctrl-C with no op running, to the end of `with` (<= 200 ms): {spread(times)}"


def close(quick: bool) -> str:
    """``close()`` on an idle run: at most 50 ms."""
    times = []
    for _ in range(5 if quick else 50):
        run = nl.from_sequence(range(10**6)).batch(10).run()
        next(run)
        time.sleep(0.02)
        begun = time.perf_counter()
        assert run.close()
        times.append(time.perf_counter() - begun)
    return f"close() on an idle run (<= 50 ms): {spread(times)}"


def leave(quick: bool) -> str:
    """``break``: at most 1 ms."""
    times = []
    for _ in range(5 if quick else 50):
        begun = 0.0
        for _ in nl.from_sequence(range(10**6)).batch(10):
            time.sleep(0.02)
            begun = time.perf_counter()
            break
        times.append(time.perf_counter() - begun)
    return f"break (<= 1 ms): {spread(times)}"


HANGS = """
import sys, threading, time
import nogil_loader as nl
run = nl.from_sequence(range(9)).map(lambda value: threading.Event().wait()).run()
time.sleep(0.2)
print(time.time(), flush=True)
sys.exit(0)
"""


def exit_with_a_hung_op(quick: bool) -> str:
    """A process whose op hangs for ever exits within 1 s of ``sys.exit``."""
    times = []
    for _ in range(2 if quick else 10):
        child = subprocess.run(
            [sys.executable, "-c", HANGS], capture_output=True, text=True, check=True
        )
        times.append(time.time() - float(child.stdout))
    return f"sys.exit with an op that hangs, to the end of the process (<= 1 s): {spread(times)}"


def epochs(quick: bool) -> str:
    """Resident memory over 50 epochs of 2,000 samples of 100 kB grows by less than 2 %.

    It is looked at when the epoch is over and the look-ahead into the next one is full; blocks
    of a fixed size make that the same each time.
    """
    count, size = (200, 100_000) if quick else (2000, 100_000)
    told = []
    arrays = nl.from_sequence(range(count)).map(Filled(size))
    for name, chain in (
        ("batches of arrays", arrays.batch(20)),
        ("filtered", arrays.filter(kept).batch(20)),
    ):
        sizes = []
        for run in chain.workers(2, block=5).epochs(11 if quick else 51):
            for _ in run:
                pass
            time.sleep(0.03)
            sizes.append(resident())
        sizes.pop()  # after the last one there is no next one to look ahead into
        few = max(1, len(sizes) // 6)
        early, late = statistics.median(sizes[1 : 1 + few]), statistics.median(sizes[-few:])
        told.append(
            f"{name}: {early / MB:.1f} MB after epoch 2, {late / MB:.1f} MB after epoch "
            f"{len(sizes)} (medians of {few}): {late / early - 1:+.1%}"
        )
    return "resident memory over epochs (< 2 %): " + "; ".join(told)


class Filled:
    """An op that makes an array."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, value: int) -> np.ndarray:
        return np.full(self.size, value % 256, np.uint8)


def kept(array: np.ndarray) -> bool:
    return bool(array[0] % 8)


def budget(quick: bool) -> str:
    """memory(64 MB), samples of 1-20 MB: accounted at most 64 MB + largest x workers."""
    limit, workers = 64 * MB, 4
    sizes = np.random.default_rng(1).integers(MB, 20 * MB, 60 if quick else 300).tolist()
    chain = nl.from_sequence(sizes).map(zeros).workers(workers).prefetch(100).memory(limit)
    base, most = resident(), 0
    accounted = [0]
    for name in ("take", "finish", "credit"):
        setattr(Core, name, watched(getattr(Core, name), accounted))
    with chain.run() as run:
        for _ in run:
            most = max(most, resident() - base)
            time.sleep(0.002)
    bound = limit + max(sizes) * workers
    return (
        f"memory(64 MB), 4 workers: accounted at most {accounted[0] / MB:.0f} MB at any step of "
        f"{bound / MB:.0f} allowed; resident {most / MB:.0f} MB over the base "
        f"(<= {1.25 * bound / MB:.0f})"
    )


def watched(step: Callable[..., object], most: list[int]) -> Callable[..., object]:
    """A step of the core, after which is noted what is accounted."""

    def and_look(core: Core, *args: object) -> object:
        result = step(core, *args)
        most[0] = max(most[0], core.ahead.charged)
        return result

    return and_look


def zeros(size: int) -> np.ndarray:
    array = np.empty(size, np.uint8)
    array[:] = 1
    return array


def skipping(quick: bool) -> str:
    """1 failing sample in 10,000 with skip: CPU per sample within 3 % of none failing."""
    count = 20_000 if quick else 100_000
    values = list(range(count))
    mended = [value + 1 if value % 10_000 == 7 else value for value in values]
    sound, failing = (
        nl.from_sequence(data).map(fragile, on_error="skip").batch(100).workers(2)
        for data in (mended, values)
    )
    times: dict[str, list[float]] = {"sound": [], "failing": []}
    for _ in range(3 if quick else 9):
        for name, chain in (("sound", sound), ("failing", failing)):
            begun = time.process_time()
            got = sum(map(rows, chain))
            times[name].append((time.process_time() - begun) / count)
            assert got == count - (count // 10_000 if name == "failing" else 0)
    ratio = min(times["failing"]) / min(times["sound"])
    return (
        f"1 in 10,000 skipped: {min(times['failing']) * 1e6:.2f} us CPU a sample against "
        f"{min(times['sound']) * 1e6:.2f} with none: {ratio - 1:+.1%} (<= 3 %)"
    )


def rows(batch: object) -> int:
    assert isinstance(batch, Sized)
    return len(batch)


def fragile(value: int) -> int:
    if value % 10_000 == 7:
        raise ValueError(value)
    return value


def spread(times: list[float]) -> str:
    """Median and worst, in milliseconds."""
    return f"{statistics.median(times) * 1e3:.2f} ms, at worst {max(times) * 1e3:.2f} ms"


MEASURES: dict[str, Callable[[bool], str]] = {
    "interrupt": interrupt,
    "interrupt-idle": interrupt_idle,
    "close": close,
    "break": leave,
    "exit": exit_with_a_hung_op,
    "epochs": epochs,
    "memory": budget,
    "skip": skipping,
}


def main() -> int:
    """Measure what was named, each in a child process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.contract")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="few rounds of little data")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.names) - set(MEASURES):
        parser.error(f"nothing is called {', '.join(sorted(unknown))}: {', '.join(MEASURES)}")
    if args.here:
        for name in args.names:
            print(f"- {MEASURES[name](args.quick)}", flush=True)
        return 0
    free = "free-threaded" if runtime.free_threaded() else "with the GIL"
    print(f"Python {sys.version.split()[0]} {free}, load {os.getloadavg()[0]:.1f}", flush=True)
    status = 0
    for name in args.names or MEASURES:
        quick = ["--quick"] if args.quick else []
        command = [sys.executable, "-m", "benchmarks.contract", name, "--here", *quick]
        status = max(status, subprocess.run(command, env={**os.environ, **PLAIN}).returncode)
    return status


if __name__ == "__main__":
    sys.exit(main())

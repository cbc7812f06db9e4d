"""The ring on one GPU: does it cost anything? ``python -m benchmarks.device``

Needs NumPy and, for a GPU, CuPy; nothing else. Without a GPU (``--device host``) everything runs
on the host's memory, which tries the script and measures nothing of interest.

What is measured, each beside what it should equal:

- a batch of pictures written row by row into a buffer of the ring, against one in new memory;
- copies through the ring against a bare loop of ``cudaMemcpyAsync`` from pinned memory;
- a step of matrix products on batches that arrive meanwhile, against the same step on data that
  is already there: the median and the 99th percentile of the step's own time on the device;
- the first batch, and the memory that the ring came to hold;
- 10,000 batches through poisoned memory, each summed on the device and on the host.

Every measurement is a process of its own for each interpreter: this one as it is, this one with
its GIL on where it can be off, and others named by ``--python``. Under five minutes on one GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from nogil_loader import runtime
from nogil_loader.device.host import HostDevice
from nogil_loader.device.pixels import normalize
from nogil_loader.device.protocol import Device
from nogil_loader.device.ring import Arrival, Ring

AHEAD = 2
"""Batches that are sent before they are asked for."""
SHAPE = (224, 224, 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything."""

    copies: int
    copy_bytes: int
    steps: int
    batch: int
    checks: int


FULL = Size(copies=400, copy_bytes=64 << 20, steps=2_000, batch=128, checks=10_000)
QUICK = Size(copies=20, copy_bytes=1 << 20, steps=30, batch=4, checks=500)


class Bench(Protocol):
    """What the measurements ask of a device beside what the ring does."""

    device: Device

    def bare(self, nbytes: int, times: int) -> None:
        """Copy ``nbytes`` from pinned memory that often, and wait for the last."""
        ...

    def step(self, batch: object) -> None:
        """Issue one training step's worth of work that reads ``batch``."""
        ...

    def resident(self, batch: int) -> object:
        """A batch as the transform leaves it, already there."""
        ...

    def total(self, array: object) -> object:
        """Issue the sum of all elements; ``int()`` of it waits."""
        ...

    def mark(self) -> object:
        """A moment in the consumer's stream."""
        ...

    def between(self, begin: object, end: object) -> float:
        """Seconds between two marks; waits for the second."""
        ...


class OnHost:
    """Everything at once, in host memory."""

    def __init__(self) -> None:
        self.device: Device = HostDevice()
        self._matrix = np.ones((256, 256), np.float32)

    def bare(self, nbytes: int, times: int) -> None:
        source, target = np.ones(nbytes, np.uint8), np.empty(nbytes, np.uint8)
        for _ in range(times):
            np.copyto(target, source)

    def step(self, batch: object) -> None:
        np.asarray(batch).ravel()[:65536].sum()
        self._matrix @ self._matrix

    def resident(self, batch: int) -> object:
        return np.zeros((batch, 3, *SHAPE[:2]), np.float32)

    def total(self, array: object) -> object:
        return np.asarray(array).sum()

    def mark(self) -> object:
        return time.perf_counter()

    def between(self, begin: object, end: object) -> float:
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin


class OnGpu:
    """One GPU, through CuPy. A step is some 5 ms of matrix products on any recent GPU."""

    def __init__(self, index: int) -> None:
        import cupy

        from nogil_loader.device.cupy import CupyDevice

        self._cupy = cupy
        cupy.cuda.Device(index).use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self.device: Device = CupyDevice(index)
        self._matrix = cupy.ones((8192, 8192), np.float16)
        self._out = cupy.empty_like(self._matrix)
        self._products = 1
        begin = self.mark()
        self._multiply()  # loads cuBLAS
        self.between(begin, self.mark())
        begin = self.mark()
        self._multiply()
        self._products = max(1, round(0.005 / self.between(begin, self.mark())))

    def _multiply(self) -> None:
        for _ in range(self._products):
            self._cupy.matmul(self._matrix, self._matrix, out=self._out)

    def bare(self, nbytes: int, times: int) -> None:
        pinned = [self.device.pinned(nbytes) for _ in range(3)]
        memory = [self.device.memory(nbytes) for _ in range(3)]
        stream = self.device.new_stream()
        for number in range(times):
            source, target = pinned[number % 3], memory[number % 3]
            self.device.copy(source.address, target, nbytes, stream)
        self.device.synchronize(stream)

    def step(self, batch: object) -> None:
        self._cupy.asarray(batch).sum()
        self._multiply()

    def resident(self, batch: int) -> object:
        return self._cupy.zeros((batch, 3, *SHAPE[:2]), np.float32)

    def total(self, array: object) -> object:
        return self._cupy.asarray(array).sum()

    def mark(self) -> object:
        event = self._cupy.cuda.Event()
        event.record()
        return event

    def between(self, begin: object, end: object) -> float:
        end.synchronize()  # type: ignore[attr-defined]
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1000


def assembly(bench: Bench, size: Size) -> dict[str, float]:
    """Seconds to write a batch into the ring's memory and into NumPy's, in turns."""
    ring = Ring(bench.device)
    into_ring = pictures(ring.allocator(), size.batch)
    into_new = pictures(np.empty, size.batch)

    def timed(fill: Callable[[int], object]) -> float:
        begun = time.perf_counter()
        for number in range(5):
            fill(number)
        return (time.perf_counter() - begun) / 5

    timed(into_ring), timed(into_new)  # memory is pinned, pages are there
    pairs = [(timed(into_ring), timed(into_new)) for _ in range(9)]
    ring.close()
    mine, new = (float(np.median(column)) for column in zip(*pairs, strict=True))
    ratio = float(np.median([one / other for one, other in pairs]))
    return {"assembly ms": mine * 1e3, "in new memory": new * 1e3, "assembly / new": ratio}


def copies(bench: Bench, size: Size) -> dict[str, float]:
    """Bytes a second through the ring and without it, in turns; and their ratio."""

    def ring() -> None:
        ring = Ring(bench.device)
        alloc = ring.allocator()
        shape = (size.copy_bytes,)
        alloc(shape, np.uint8)[...] = 1
        marks = [bench.mark()] * 3
        for number in range(size.copies):
            batch = ring.hand_over(ring(alloc(shape, np.uint8)))
            del batch
            bench.between(marks[number % 3], marks[number % 3])  # as a training loop keeps pace
            marks[number % 3] = bench.mark()
        bench.between(marks[0], bench.mark())
        ring.close()

    def timed(work: Callable[[], None]) -> float:
        begun = time.perf_counter()
        work()
        return size.copies * size.copy_bytes / (time.perf_counter() - begun)

    def bare() -> None:
        bench.bare(size.copy_bytes, size.copies)

    timed(ring), timed(bare)  # memory is pinned, kernels are loaded
    rates = [(timed(ring), timed(bare)) for _ in range(5)]
    through, without = (float(np.median(column)) for column in zip(*rates, strict=True))
    ratio = float(np.median([one / other for one, other in rates]))
    return {"ring GB/s": through / 1e9, "bare GB/s": without / 1e9, "ring / bare": ratio}


@contextmanager
def feed(ring: Ring, fill: Callable[[int], object], count: int) -> Iterator[Iterator[object]]:
    """``count`` batches made by one thread, sent by a second, two ahead of the consumer."""
    filled: queue.Queue[object] = queue.Queue(1)
    sent: queue.Queue[Arrival | None] = queue.Queue(AHEAD)
    over = threading.Event()

    def work() -> None:
        try:
            for number in range(count):
                if over.is_set():
                    break
                filled.put(fill(number))
        finally:
            filled.put(None)

    def send() -> None:
        try:
            while (batch := filled.get()) is not None:
                sent.put(ring(batch))
                del batch
        finally:
            sent.put(None)

    arrivals = iter(sent.get, None)
    threads = [threading.Thread(target=work), threading.Thread(target=send)]
    for thread in threads:
        thread.start()
    try:
        yield (ring.hand_over(arrival) for arrival in arrivals if arrival is not None)
    finally:
        over.set()
        for _ in arrivals:
            pass
        for thread in threads:
            thread.join()


Allocate: TypeAlias = Callable[..., np.ndarray[tuple[int, ...], np.dtype[np.generic]]]


def pictures(alloc: Allocate, batch: int) -> Callable[[int], object]:
    """Fills a batch of pictures as decoders do: row by row, straight into its buffer."""
    source = np.random.default_rng(17).integers(0, 256, (64, *SHAPE), np.uint8)

    def fill(number: int) -> object:
        rows = alloc((batch, *SHAPE), np.uint8)
        for row in range(batch):
            rows[row] = source[(number + row) % len(source)]
        return rows

    return fill


def steps(bench: Bench, size: Size) -> dict[str, float]:
    """Seconds a step, with batches that arrive meanwhile and with one that is there."""
    begun = time.perf_counter()
    ring = Ring(bench.device, transform=normalize(MEAN, STD))
    beside, first = [], 0.0
    with feed(ring, pictures(ring.allocator(), size.batch), size.steps + 10) as batches:
        for number, batch in enumerate(batches):
            if not number:
                bench.between(begin := bench.mark(), begin)
                first = time.perf_counter() - begun
            begin = bench.mark()
            bench.step(batch)
            end = bench.mark()
            del batch
            beside.append((begin, end))
            if number >= 3:  # as reading the loss of an earlier step does
                bench.between(*beside[number - 3])
    loaded = [bench.between(*pair) for pair in beside[10:]]
    report = ring.report()
    ring.close()
    there = bench.resident(size.batch)
    alone = []
    for number in range(size.steps):
        begin = bench.mark()
        bench.step(there)
        alone.append((begin, bench.mark()))
        if number >= 3:
            bench.between(*alone[number - 3])
    resident = [bench.between(*pair) for pair in alone]
    median, least = float(np.median(loaded)), float(np.median(resident))
    late, least_late = (float(np.percentile(column, 99)) for column in (loaded, resident))
    return {
        "step ms": median * 1e3,
        "resident ms": least * 1e3,
        "step / resident": median / least,
        "p99 / p99": late / least_late,
        "first batch ms": first * 1e3,
        "pinned MB": report.pinned / 1e6,
        "device MB": report.memory / 1e6,
        "grown": report.grown,
    }


def checks(bench: Bench, size: Size) -> dict[str, float]:
    """Batches of changing sizes through poisoned memory; the number whose sum is wrong."""
    ring = Ring(bench.device, slots=2, poison=True)
    alloc = ring.allocator()
    rng = np.random.default_rng(23)
    noise = rng.integers(0, 2**31, 1 << 16, np.int64)
    lengths = rng.integers(1 << 12, 1 << 16, size.checks)
    wanted: dict[int, int] = {}

    def fill(number: int) -> object:
        rows = alloc((int(lengths[number]),), np.int64)
        np.add(noise[: len(rows)], number, out=rows)
        wanted[number] = int(rows.sum())
        return rows

    wrong, held, pending = 0, [], []
    with feed(ring, fill, size.checks) as batches:
        for number, batch in enumerate(batches):
            pending.append((number, bench.total(batch)))
            held.append(batch)
            del batch, held[: -1 - number % 3]
            if len(pending) > 64:
                for earlier, total in pending:
                    wrong += int(total) != wanted.pop(earlier)  # type: ignore[call-overload]
                pending.clear()
    held.clear()
    wrong += sum(int(total) != wanted.pop(number) for number, total in pending)  # type: ignore[call-overload]
    ring.close()
    return {"batches checked": float(size.checks), "wrong sums": float(wrong)}


MEASUREMENTS = {"assembly": assembly, "copies": copies, "steps": steps, "checks": checks}

MUST: dict[str, Callable[[float], bool]] = {
    "assembly / new": lambda ratio: ratio <= 1.02,
    "ring / bare": lambda ratio: ratio >= 0.95,
    "step / resident": lambda ratio: ratio <= 1.02,
    "p99 / p99": lambda ratio: ratio <= 1.05,
    "wrong sums": lambda count: count == 0,
}
"""What the ring promises on a GPU; the last one everywhere."""


def measure(name: str, device: str, size: Size) -> dict[str, float]:
    """One measurement, in this process."""
    index = device.removeprefix("cuda").removeprefix(":") or "0"
    bench: Bench = OnHost() if device == "host" else OnGpu(int(index))
    return MEASUREMENTS[name](bench, size)


def in_child(python: Sequence[str], name: str, device: str, quick: bool) -> dict[str, float]:
    """One measurement by another interpreter."""
    command = [*python, "-m", "benchmarks.device", "--measure", name, "--device", device]
    root = str(Path(__file__).parents[1])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    child = subprocess.run(
        [*command, *(["--quick"] if quick else [])],
        env={**os.environ, "PYTHONPATH": search},
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
        check=True,
    )
    found: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure under each interpreter, print the table; 1 where a promise is broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda:0", help='"cuda:N" or "host" (default cuda:0)')
    parser.add_argument("--python", action="append", default=[], help="another interpreter")
    parser.add_argument("--quick", action="store_true", help="little of everything: a trial")
    parser.add_argument("--measure", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    args = parser.parse_args(argv)
    size = QUICK if args.quick else FULL
    if args.measure:
        print(json.dumps(measure(args.measure, args.device, size)))
        return 0
    pythons = {"this Python": [sys.executable]}
    if runtime.free_threaded():
        pythons["its GIL on"] = [sys.executable, "-X", "gil=1"]
    pythons |= {Path(path).name: [path] for path in args.python}
    print(f"{runtime.interpreter()}\n{args.device}, {asdict(size)}", flush=True)
    kept: dict[str, dict[str, float]] = {label: {} for label in pythons}
    for name in MEASUREMENTS:
        for label, python in pythons.items():
            kept[label] |= in_child(python, name, args.device, args.quick)
    rows = list(dict.fromkeys(key for numbers in kept.values() for key in numbers))
    print("  ".join(["", *(f"{label:>12}" for label in kept)]).rjust(17 + 14 * len(kept)))
    broken = []
    for row in rows:
        cells = []
        for label, numbers in kept.items():
            promised = MUST.get(row) if args.device != "host" or row == "wrong sums" else None
            kept_it = promised is None or promised(numbers[row])
            if not kept_it:
                broken.append(f"{row} with {label}: {numbers[row]:.3f}")
            cells.append(f"{numbers[row]:>12.3f}{' ' if kept_it else '!'}")
        print(f"{row:<17}" + " ".join(cells))
    if args.json:
        args.json.write_text(json.dumps(kept, indent=1) + "\n")
    for line in broken:
        print(f"BROKEN PROMISE: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

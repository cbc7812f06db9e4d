"""Packs beside Grain's: padding and speed on log-normal lengths, on a GIL build.

    python -m benchmarks.packing

Grain has no wheel for free-threaded builds and keeps an environment of its own; both sides run
in a process of their own, in turns, on the same lengths. Each lays every token, its segment id
and its position into rows; Grain's source, ``MapDataset.source(list)``, is timed alone and
taken off.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks import peers

LENGTH, OPEN, COUNT = 2048, 64, 20_000
TURNS = 5


def sequences() -> list[np.ndarray]:
    """Token sequences of log-normal length: median 245, at most a row."""
    lengths = np.random.default_rng(17).lognormal(5.5, 1.0, COUNT).astype(int).clip(1, LENGTH)
    return [np.ones(length, np.int32) for length in lengths]


def ours(algorithm: str) -> tuple[float, int]:
    """Seconds, and rows."""
    from nogil_loader.engine.padding import Packing
    from nogil_loader.position.packing import packs

    data = sequences()
    packing = Packing(LENGTH)
    begun = perf_counter()
    grouper = packs(LENGTH, 1, algorithm, open_packs=OPEN)  # type: ignore[arg-type]
    rows = 0
    for sequence in data:
        for group in grouper.push(1, [len(sequence)]):
            packing([data[item] for item in group.items], group.layout)
            rows += 1
    for group in grouper.flush():
        packing([data[item] for item in group.items], group.layout)
        rows += 1
    return perf_counter() - begun, rows


def grain(algorithm: str) -> tuple[float, int]:
    """Seconds less those of its source, and rows."""
    import grain.python as grain_python
    from grain.experimental import BestFitPackIterDataset, FirstFitPackIterDataset

    data = [{"tokens": sequence} for sequence in sequences()]

    def source() -> object:
        return grain_python.MapDataset.source(data).to_iter_dataset()

    begun = perf_counter()
    for _ in source():  # type: ignore[attr-defined]
        pass
    alone = perf_counter() - begun
    kind = BestFitPackIterDataset if algorithm == "best_fit" else FirstFitPackIterDataset
    begun = perf_counter()
    packed = kind(source(), length_struct={"tokens": LENGTH}, num_packing_bins=OPEN)
    rows = sum(1 for _ in packed)
    return perf_counter() - begun - alone, rows


def turns(grain_python: str) -> Iterator[dict[str, object]]:
    """Every measurement, in turns."""
    for _ in range(TURNS):
        for algorithm in ("best_fit", "first_fit"):
            for side, python in (("ours", sys.executable), ("grain", grain_python)):
                command = [python, "-m", "benchmarks.packing", "--one", side, algorithm]
                answer = subprocess.run(command, check=True, capture_output=True, text=True)
                seconds, rows = json.loads(answer.stdout.splitlines()[-1])
                yield {"side": side, "algorithm": algorithm, "seconds": seconds, "rows": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "ALGORITHM"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        side, algorithm = args.one
        print(json.dumps((ours if side == "ours" else grain)(algorithm)))
        return
    found = list(turns(peers.environment("Grain")))
    tokens = sum(len(sequence) for sequence in sequences())
    for algorithm in ("best_fit", "first_fit"):
        for side in ("ours", "grain"):
            some = [f for f in found if (f["side"], f["algorithm"]) == (side, algorithm)]
            times = [float(str(f["seconds"])) / COUNT * 1e6 for f in some]
            padding = 1 - tokens / (int(str(some[0]["rows"])) * LENGTH)
            spread = (max(times) - min(times)) / 2
            print(
                f"{algorithm}, {side}: {median(times):.1f} ± {spread:.1f} us a sequence, "
                f"padding {padding:.2%}"
            )


if __name__ == "__main__":
    main()

"""Arrays of 20 kB, 150 kB and 10 MB: npy files, npz files, and rows of one mapped file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan, Size
from nogil_loader.cli.workloads.arrays import OTHER_SIZES

FILES = ("SPDL by batch", "SPDL io", "dataloader-rs", "torch")
ROWS = ("SPDL by batch", "dataloader-rs", "torch", "Grain")


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """The usual sizes beside the peers, then the others beside the loops by hand."""
    for name in ("npy", "npz", "mapped"):
        yield beside.plan(
            name,
            folder / name,
            size,
            beside=ROWS if name == "mapped" else FILES,
            switched=name != "npy",
            workers=(1, 2),
        )
    for workload in OTHER_SIZES:
        yield beside.plan(workload.name, folder / workload.name, size)

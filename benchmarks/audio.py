"""Clips of 1, 10 and 60 seconds, WAV and FLAC, to batches; all by the same libsndfile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan, Size
from nogil_loader.cli.workloads.audio import LONGER

PEERS = {
    "wav": ("SPDL", "SPDL by batch", "SPDL io", "dataloader-rs", "torch", "torchdata"),
    "flac": ("SPDL by batch", "SPDL io", "dataloader-rs", "torch"),
}


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """One second beside the peers, then the longer ones beside the loops by hand."""
    for name, others in PEERS.items():
        yield beside.plan(name, folder / name, size, beside=others, switched=True, workers=(1, 2))
    for workload in LONGER:
        yield beside.plan(workload.name, folder / workload.name, size)

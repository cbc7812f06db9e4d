"""JSON lines through a transform in pure Python to batches of 256: where a GIL hurts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan, Size

PEERS = (
    "SPDL",
    "SPDL by batch",
    "SPDL by batch, GIL",
    "dataloader-rs",
    "dataloader-rs, GIL",
    "torch",
    "torchdata",
    "Grain",
)


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """The lines are in memory; what is measured is the Python that works on them."""
    yield beside.plan("text", folder, size, beside=PEERS, switched=True, workers=(1, 2, 4))

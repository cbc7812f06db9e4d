"""The most memory that all processes hold, four workers, pictures to batches of 32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan, Size

PEERS = ("SPDL", "dataloader-rs", "torch", "torchdata", "Grain")


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """PSS: pages that processes share count once."""
    four = (4,)
    yield beside.plan(
        "pictures",
        folder,
        size,
        beside=PEERS,
        workers=four,
        theirs=four,
        show=("peak", "rate"),
        title="memory",
    )

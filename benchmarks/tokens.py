"""Windows of 1,024 tokens of one mapped file: little work, so that the loader's own shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan, Size

PEERS = ("SPDL by batch", "dataloader-rs", "torch", "Grain")


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """Shuffled windows, read by view."""
    yield beside.plan("tokens", folder, size, beside=PEERS, switched=True, workers=(1, 2))

"""Arrays of 150 kB in npy and npz files, and rows of 20 kB of one mapped file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan


def plans(folder: Path, quick: bool, data: Path | None) -> Iterator[Plan]:
    """npy, npz, then rows."""
    for name in ("npy", "npz", "mapped"):
        yield beside.plan(name, folder / name, quick)

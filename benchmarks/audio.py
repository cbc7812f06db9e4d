"""Clips of one second, WAV and FLAC, to batches of 32, all by the same libsndfile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan


def plans(folder: Path, quick: bool, data: Path | None) -> Iterator[Plan]:
    """WAV, then FLAC."""
    for name in ("wav", "flac"):
        yield beside.plan(name, folder / name, quick)

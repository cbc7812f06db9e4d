"""JPEG files, and JPEGs in tar shards, to batches of 32 pictures of 224 x 224.

All decode with Pillow, at the same reduced scale, and resize with the same filter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan
from nogil_loader.cli.workloads.pictures import PICTURES, take


def plans(folder: Path, quick: bool, data: Path | None) -> Iterator[Plan]:
    """Files (those below ``data`` if given), then shards."""
    prepared = None
    if data is not None:
        count = PICTURES.few if quick else PICTURES.count
        prepared = take(folder, data, count, lambda text: None)
    yield beside.plan("pictures", folder, quick, prepared=prepared)
    yield beside.plan("tar", folder / "tar", quick)

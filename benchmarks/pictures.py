"""JPEG files, and JPEGs in tar shards, to batches of 32 pictures of 224 x 224.

All decode with Pillow, at the same reduced scale, and resize with the same filter; but SPDL io,
which brings decoders of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import beside
from benchmarks.harness import Plan, Size
from nogil_loader.cli.workloads.pictures import PICTURES, take

FILES = ("SPDL", "SPDL by batch", "SPDL io", "dataloader-rs", "torch", "torchdata", "Grain")
SHARDS = ("SPDL by batch", "torch", "WebDataset")


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """Files (those below ``data`` if given), then shards."""
    prepared = None
    if data is not None:
        count = PICTURES.few if size.quick else PICTURES.count
        prepared = take(folder, data, count, lambda text: None)
    peers = (*FILES, "tf.data")
    yield beside.plan("pictures", folder, size, prepared=prepared, beside=peers, workers=(1, 2))
    yield beside.plan("tar", folder / "tar", size, beside=SHARDS, workers=(1, 2))

"""What ``nogil-loader bench`` measures: the data, the pipeline, and the loop by hand.

Guarantees
- The pipeline and the loop read the same files and do the same work on each sample.
- Sample data is the same from the same seed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

from nogil_loader.cli.workloads.arrays import MAPPED, NPY, NPZ, OTHER_SIZES
from nogil_loader.cli.workloads.audio import FLAC, LONGER, WAV
from nogil_loader.cli.workloads.base import Workload
from nogil_loader.cli.workloads.pictures import PICTURES, TAR
from nogil_loader.cli.workloads.text import TEXT
from nogil_loader.cli.workloads.tokens import TOKENS

USUAL = (PICTURES, TEXT, TAR, WAV, FLAC, NPY, NPZ, MAPPED, TOKENS)
WORKLOADS = {workload.name: workload for workload in (*USUAL, *LONGER, *OTHER_SIZES)}


def passes(
    workload: Workload, variant: str, folder: Path, workers: int
) -> Generator[Iterator[object], None, None]:
    """One pass after the other over the folder, endlessly, each an iterator of batches.

    ``variant`` is ``"engine"`` or the name of one of the loops written by hand.
    """
    if variant == "engine":
        yield from workload.pipeline(folder).workers(workers).epochs(1_000_000_000)
    else:
        job = workload.by_hand(folder)
        with closing(job):
            while True:
                yield job.run(variant, workload.batch, workers)

"""What one kind of work consists of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nogil_loader.pipeline import Pipeline


class Looped(Protocol):
    """A job that the loops written by hand can do: a ``byhand.Job`` of any types."""

    def run(self, loop: str, batch: int, workers: int) -> Iterator[object]:
        """One pass by the loop of that name."""
        ...

    @property
    def close(self) -> Callable[[], None]:
        """Gives back what the job holds open."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder ready to be measured, and a line that says what is in it."""

    folder: Path
    about: str


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of work on a folder of data.

    ``loop`` names the loop written by hand that is the fastest for it, as ``python -m
    benchmarks`` finds: by the sample where one takes long, for whole batches leave a tail.
    ``prepare(folder, count, seed)`` makes the data in an empty folder; ``count`` samples for a
    measurement, ``few`` for a look. ``pipeline`` and ``by_hand`` take the folder and do the
    same work on the same files. ``rows`` counts the samples of a batch that either made.
    """

    name: str
    batch: int
    count: int
    few: int
    prepare: Callable[[Path, int, int], Prepared]
    pipeline: Callable[[Path], Pipeline[object] | Pipeline[dict[str, object]]]
    by_hand: Callable[[Path], Looped]
    rows: Callable[[object], int]
    loop: str = "by_batch"


def rows_of(field: str) -> Callable[[object], int]:
    """Counts the rows of a batch: of a dict those of one field."""

    def rows(batch: object) -> int:
        return len(batch[field] if isinstance(batch, dict) else batch)  # type: ignore[arg-type]

    return rows


def content(path: str, size: int) -> bytes:
    """A file of no more than so many bytes: a third quicker than ``open`` and ``readall``."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, size)
    finally:
        os.close(file)


def files_in(folder: Path) -> list[str]:
    """The paths of the files directly in a folder, in order."""
    return sorted(str(path) for path in folder.iterdir())

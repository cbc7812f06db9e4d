"""What ``nogil-loader bench`` measures: the data, the pipeline, and the loop by hand.

Guarantees
- The pipeline and the loop read the same files and do the same work on each sample.
- Sample data is the same from the same seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import nogil_loader as nl
from nogil_loader import decode, runtime
from nogil_loader.cli import _byhand
from nogil_loader.cli._terminal import UsageError
from nogil_loader.pipeline import Pipeline
from nogil_loader.sources.errors import EmptySourceError
from nogil_loader.sources.files import Files
from nogil_loader.testing import media

SIZE = (224, 224)
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")


class Looped(Protocol):
    """A job that the loops written by hand can do."""

    def run(self, loop: str, batch: int, workers: int) -> Iterator[object]:
        """One pass by the loop of that name."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of work on a folder of data.

    ``pipeline`` and ``by_hand`` take the folder.
    ``rows`` counts the samples of a batch that either of them made.
    """

    name: str
    batch: int
    pipeline: Callable[[Path], Pipeline[object] | Pipeline[dict[str, object]]]
    by_hand: Callable[[Path], Looped]
    rows: Callable[[object], int]


def _picture_pipeline(folder: Path) -> Pipeline[dict[str, object]]:
    return (
        nl.from_files(folder)
        .map(decode.image(size=SIZE), key="path", to="image")
        .batch(PICTURES.batch)
    )


def _picture_rows(batch: object) -> int:
    return len(batch["image"] if isinstance(batch, dict) else batch)  # type: ignore[arg-type]


def _picture_job(folder: Path) -> Looped:
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    return _byhand.pictures(paths, SIZE)


def _text_pipeline(folder: Path) -> Pipeline[object]:
    return nl.from_sequence(_lines(folder)).map(_byhand.summarise).batch(TEXT.batch)


def _text_job(folder: Path) -> Looped:
    return _byhand.text(_lines(folder))


def _lines(folder: Path) -> list[bytes]:
    return (folder / "records.jsonl").read_bytes().splitlines()


def _text_rows(batch: object) -> int:
    return len(batch["id"])  # type: ignore[index]


PICTURES = Workload("pictures", 32, _picture_pipeline, _picture_job, _picture_rows)
TEXT = Workload("text", 256, _text_pipeline, _text_job, _text_rows)
WORKLOADS = {workload.name: workload for workload in (PICTURES, TEXT)}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder ready to be measured, and a line that says what is in it."""

    folder: Path
    about: str


def make_pictures(folder: Path, count: int, seed: int) -> Prepared:
    """Photo-like pictures of our own."""
    kept = folder / "made"
    paths = media.write_photos(kept, count, seed=seed)
    about = f"{count} photo-like JPEGs made from seed {seed}, 500x375"
    return Prepared(_links(folder / "pictures", [str(path) for path in paths]), about)


def take_pictures(folder: Path, data: Path, count: int, tell: Callable[[str], None]) -> Prepared:
    """Up to ``count`` pictures below ``data``, spread evenly, all of which decode."""
    try:
        reader = Files(data, extensions=EXTENSIONS).open()
    except EmptySourceError:
        raise UsageError(f"no pictures in {data} (looked for {', '.join(EXTENSIONS)})") from None
    except OSError as error:
        raise UsageError(f"cannot read {error.filename or data}: {error.strerror}") from None
    step = max(1, len(reader) // count)
    paths = [str(reader.ref(index)) for index in range(0, len(reader), step)][:count]
    check = decode.image(size=SIZE)

    def problem(path: str) -> str:
        try:
            check(path)
        except (decode.DecodeError, OSError) as error:
            return str(error)
        return ""

    tell(f"checking {len(paths)} pictures")
    with ThreadPoolExecutor(runtime.usable_cores()) as pool:
        problems = list(pool.map(problem, paths))
    good = [path for path, wrong in zip(paths, problems, strict=True) if not wrong]
    bad = [wrong for wrong in problems if wrong]
    if not good:
        raise UsageError(f"none of {len(bad)} pictures in {data} can be decoded: {bad[0]}")
    about = f"{len(good)} of {len(reader)} pictures in {data}"
    if bad:
        about += f"; {len(bad)} left out that cannot be decoded, the first: {bad[0]}"
    return Prepared(_links(folder / "pictures", good), about)


def _links(folder: Path, paths: list[str]) -> Path:
    """A flat folder of links: whatever the names and nesting, all measure the same files."""
    folder.mkdir()
    for number, path in enumerate(paths):
        (folder / f"{number:06}{Path(path).suffix}").symlink_to(os.path.abspath(path))
    return folder


def make_text(folder: Path, count: int, seed: int) -> Prepared:
    """JSON lines of our own."""
    media.write_json_lines(folder / "text" / "records.jsonl", count, seed=seed)
    size = (folder / "text" / "records.jsonl").stat().st_size / count
    return Prepared(
        folder / "text", f"{count} JSON lines of {size:.0f} bytes made from seed {seed}"
    )


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
        while True:
            yield job.run(variant, workload.batch, workers)

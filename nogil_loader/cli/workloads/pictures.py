"""Pictures to batches of 32 x 224 x 224 x 3, from files and from tar shards."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nogil_loader as nl
from nogil_loader import decode, runtime
from nogil_loader.cli._terminal import UsageError
from nogil_loader.cli.workloads.base import Looped, Prepared, Workload, files_in, rows_of
from nogil_loader.cli.workloads.byhand import Job, as_it_is
from nogil_loader.pipeline import Pipeline
from nogil_loader.sources.errors import EmptySourceError
from nogil_loader.sources.files import Files
from nogil_loader.sources.tar import Tar
from nogil_loader.testing import media

SIZE = (224, 224)
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")
SHARDS = 4


def make(folder: Path, count: int, seed: int) -> Prepared:
    """Photo-like pictures of our own."""
    paths = media.write_photos(folder / "made", count, seed=seed)
    about = f"{count} photo-like JPEGs of 500x375, seed {seed}, to 224x224"
    return Prepared(link(folder / "pictures", [str(path) for path in paths]), about)


def take(folder: Path, data: Path, count: int, tell: Callable[[str], None]) -> Prepared:
    """Up to ``count`` pictures below ``data``, spread evenly, all of which decode.

    Raises ``UsageError`` where there are none.
    """
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
    about = f"{len(good)} of {len(reader)} pictures in {data}, to 224x224"
    if bad:
        about += f"; {len(bad)} left out that cannot be decoded, the first: {bad[0]}"
    return Prepared(link(folder / "pictures", good), about)


def link(folder: Path, paths: Sequence[str]) -> Path:
    """A flat folder of links: whatever the names and nesting, all measure the same files."""
    folder.mkdir()
    for number, path in enumerate(paths):
        (folder / f"{number:06}{Path(path).suffix}").symlink_to(os.path.abspath(path))
    return folder


def make_tar(folder: Path, count: int, seed: int) -> Prepared:
    """The same pictures in tar shards."""
    made = [Path(path) for path in files_in(make(folder, count, seed).folder)]
    for number in range(SHARDS):
        members = [(path.name, path.read_bytes()) for path in made[number::SHARDS]]
        media.write_tar(folder / "shards" / f"{number}.tar", members)
    about = f"{count} photo-like JPEGs of 500x375, seed {seed}, in {SHARDS} tar shards, to 224x224"
    return Prepared(folder / "shards", about)


def _pipeline(folder: Path) -> Pipeline[dict[str, object]]:
    op = decode.image(size=SIZE)
    return nl.from_files(folder).map(op, key="path", to="image").batch(PICTURES.batch)


def _tar_pipeline(folder: Path) -> Pipeline[object]:
    source: Pipeline[object] = Pipeline(Tar(str(folder / "*.tar"), keep_index="memory"))
    return source.map(decode.image(size=SIZE), key="jpg", to="image").batch(TAR.batch)


def _job(folder: Path) -> Looped:
    return job_of(files_in(folder))


def job_of(paths: Sequence[str]) -> Job[str, NDArray[np.uint8]]:
    """Picture files to uint8 (rows, height, width, 3)."""
    into = decode_into()

    def put(batch: NDArray[np.uint8], row: int, path: str) -> None:
        with open(path, "rb", buffering=0) as file:
            into(batch, row, file.readall())

    return Job(paths, _new, put, as_it_is)


def _tar_job(folder: Path) -> Looped:
    """Members by their offsets, which a first look at the shards gave."""
    places, opened = [], ExitStack()
    for shard in files_in(folder):
        descriptor = os.open(shard, os.O_RDONLY)
        opened.callback(os.close, descriptor)
        with tarfile.open(shard) as tar:
            places += [(descriptor, member.size, member.offset_data) for member in tar]
    into = decode_into()

    def put(batch: NDArray[np.uint8], row: int, place: tuple[int, int, int]) -> None:
        into(batch, row, os.pread(*place))

    return Job(places, _new, put, as_it_is, opened.close)


def _new(rows: int) -> NDArray[np.uint8]:
    return np.empty((rows, *SIZE, 3), np.uint8)


def decode_into() -> Callable[[NDArray[np.uint8], int, bytes], None]:
    """The fastest decoding that public calls of Pillow give, into a row of a batch.

    With ``draft`` where that does not enlarge, and no conversion that is not needed.
    """
    from PIL import Image

    Image.init()  # fills Pillow's tables, which is nothing for threads to do at once
    height, width = SIZE
    bilinear = Image.Resampling.BILINEAR

    def into(batch: NDArray[np.uint8], row: int, data: bytes) -> None:
        picture: Image.Image = Image.open(io.BytesIO(data), formats=_format_of(data))
        full_width, full_height = picture.size
        spare = min(full_width / width, full_height / height)
        scale = 8 if spare >= 8 else 4 if spare >= 4 else 2 if spare >= 2 else 1
        if scale > 1:
            picture.draft("RGB", (full_width // scale, full_height // scale))
        if picture.mode != "RGB":
            picture = picture.convert("RGB")
        batch[row] = np.asarray(picture.resize((width, height), bilinear))

    return into


def _format_of(data: bytes) -> tuple[str] | None:
    return ("JPEG",) if data.startswith(b"\xff\xd8\xff") else None


BY = "by_sample"
PICTURES = Workload("pictures", 32, 256, 96, make, _pipeline, _job, rows_of("image"), BY)
TAR = Workload("tar", 32, 256, 96, make_tar, _tar_pipeline, _tar_job, rows_of("image"), BY)

"""Samples from the members of zip archives, read in any order by any thread.

Guarantees
- Members are read at their own offset, with no shared position and no lock.
- The index is 8 bytes a member (names stay in the archives), built at the speed of reading
  the directory and kept as ``keep_index`` says.
- Folders are passed over, and so are names with a component that begins with a dot, and the
  ``__MACOSX`` folder that macOS adds.
- Damage names the archive and the member, when the archive is opened or the member read.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from nogil_loader.sources.base import Sample
from nogil_loader.sources.blobs import ReadAt, open_blobs
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError
from nogil_loader.sources.locations import Location, frozen, listed, named
from nogil_loader.sources.saved import Arrays, Keep, Progress, indexes
from nogil_loader.sources.zip_format import ENTRY, content, find_directory, parse_entry


@dataclass(frozen=True)
class Zip:
    """Every file in the archives, in the order of their directories.

    Samples are dicts with

    - ``"path"``: str, the member's path in its archive;
    - ``"bytes"``: its content;
    - ``"label"``, with ``labels="folder"``: the int number of the first folder of the name,
      counted over all archives' folders sorted by bytes (the opened reader's ``classes``).

    ``archives``: a path, an address, a glob pattern (its matches sorted), or several of them.
    ``extensions``: when given, only names that end in one of these, in any case.
    ``threads``: None where reading is a copy from the page cache; a number of threads where it
    waits. ``keep_index``: ``"cache"``, ``"beside"``, ``"memory"``, or a folder.

    ``open`` raises ``FileNotFoundError``, ``EmptySourceError``, ``BrokenFileError``; reading
    raises ``BrokenFileError`` or ``UnsupportedMemberError`` (encrypted, or packed with other
    than deflate, bzip2 or nothing) with the member's name.

    >>> import tempfile, zipfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with zipfile.ZipFile(f"{folder}/a.zip", "w") as file:
    ...         file.writestr("cat/1.txt", "meow")
    ...     reader = Zip(f"{folder}/a.zip", labels="folder", keep_index="memory").open()
    ...     print(len(reader), reader.bind()(0), reader.classes)
    ...     reader.close()
    1 {'path': 'cat/1.txt', 'bytes': b'meow', 'label': 0} ('cat',)
    """

    archives: Location | Sequence[Location]
    labels: Literal["folder"] | None = None
    extensions: Sequence[str] | None = None
    threads: int | None = None
    keep_index: Keep = "cache"

    def __post_init__(self) -> None:
        object.__setattr__(self, "archives", frozen(self.archives))
        object.__setattr__(self, "extensions", named(self.extensions, "extensions"))
        if self.labels not in (None, "folder"):
            raise ValueError(f"labels is 'folder' or None, not {self.labels!r}")

    def open(self) -> ZipReader:
        """Read the directories."""
        return ZipReader(self)


class ZipReader:
    """An opened ``Zip``: where each member's directory entry lies."""

    def __init__(self, source: Zip) -> None:
        self._source = source
        self.classes: tuple[str, ...] = ()
        """The folder names that ``"label"`` counts, for ``labels="folder"``."""
        self._blobs = open_blobs(listed(source.archives, "zip file"))
        self.threads = source.threads or self._blobs.threads
        try:
            kind = f"zip {source.labels} {source.extensions}"
            found = indexes(self._blobs, kind, source.keep_index, self._index)
        except BaseException:
            self._blobs.close()
            raise
        self._entries = np.concatenate([index["entries"] for index in found])
        self._ends = np.cumsum([len(index["entries"]) for index in found])
        self._before = tuple(int(index["before"]) for index in found)
        self._labels = self._joined_labels(found) if source.labels else None
        if not len(self._entries):
            self._blobs.close()
            raise EmptySourceError(f"no file to read in {', '.join(self._blobs.names)}")

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """The memory that the index takes."""
        return self._entries.nbytes + (0 if self._labels is None else self._labels.nbytes)

    def bind(self) -> Callable[[int], Sample]:
        """``index -> sample``, with buffers of this thread's own."""
        read, names, sizes = self._blobs.bind(), self._blobs.names, self._blobs.sizes
        entries, ends, before = self._entries.data, self._ends.data, self._before
        labels = None if self._labels is None else self._labels.data
        length = len(self)

        def sample(index: int) -> dict[str, object]:
            if not 0 <= index < length:
                raise IndexError(f"member {index} of {length}")
            archive = bisect_right(ends, index)
            read_here = partial(read, archive)
            place = entries[index]
            # A guess that holds the name and extra fields of nearly every entry.
            data = read_here(place, min(ENTRY.size + 300, sizes[archive] - place))
            try:
                entry = parse_entry(data, 0, names[archive])
            except BrokenFileError:
                data = read_here(place, min(ENTRY.size + 3 * 0xFFFF, sizes[archive] - place))
                entry = parse_entry(data, 0, names[archive])
            made: dict[str, object] = {
                "path": entry.text,
                "bytes": content(read_here, entry, before[archive], names[archive]),
            }
            if labels is not None:
                made["label"] = labels[index]
            return made

        return sample

    def ref(self, index: int) -> object:
        """``archive.zip:member``; the name is read from the archive, or its offset given."""
        archive = bisect_right(self._ends.data, index)
        name, place = self._blobs.names[archive], int(self._entries[index])
        try:
            size = min(ENTRY.size + 3 * 0xFFFF, self._blobs.sizes[archive] - place)
            entry = parse_entry(self._blobs.bind()(archive, place, size), 0, name)
        except (OSError, ValueError, RuntimeError):
            return f"{name}@{place}"
        return f"{name}:{entry.text}"

    def fingerprint(self) -> str:
        """Of the archives' names without their folder, sizes and times, and of the options."""
        told = f"zip {len(self)} {self._source.labels} {self._source.extensions}"
        digest = hashlib.blake2b(told.encode(), digest_size=16)
        for name, version in zip(self._blobs.names, self._blobs.versions, strict=True):
            digest.update(f"{os.path.basename(name)}\0{version}\0".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def close(self) -> None:
        self._blobs.close()

    def _index(self, archive: int, progress: Progress) -> Arrays:
        return index_archive(
            self._blobs.bind(),
            archive,
            self._blobs.sizes[archive],
            self._blobs.names[archive],
            progress,
            extensions=tuple(os.fsencode(end).lower() for end in self._source.extensions or ("",)),
            with_labels=self._source.labels is not None,
        )

    def _joined_labels(self, found: list[Arrays]) -> np.ndarray[tuple[int, ...], np.dtype]:
        """The archives' own numbers as numbers over all classes."""
        own = [[bytes.fromhex(str(name)) for name in index["classes"]] for index in found]
        known = sorted({name for names in own for name in names})
        number = {name: place for place, name in enumerate(known)}
        self.classes = tuple(map(os.fsdecode, known))
        pieces = []
        for names, index in zip(own, found, strict=True):
            joined = np.array([number[name] for name in names], np.int32)
            pieces.append(joined[index["labels"]])
        return np.concatenate(pieces)


def index_archive(
    read: ReadAt,
    archive: int,
    size: int,
    name: str,
    progress: Progress,
    *,
    extensions: tuple[bytes, ...],
    with_labels: bool,
) -> Arrays:
    """Where the directory entry of each member to read lies.

    ``entries``: their offsets. ``before``: bytes before the archive in its file. ``labels``:
    the number of each one's first folder in ``classes``, whose bytes are written in hex.
    """
    directory = find_directory(partial(read, archive), size, name)
    data = read(archive, directory.offset, directory.size)
    entries, labels = array("q"), array("i")
    classes: dict[bytes, int] = {}
    place = 0
    for number in range(directory.entries):
        entry = parse_entry(data, place, name)
        here = directory.offset + place
        place += entry.length
        if number % 4096 == 4095:
            progress.add(0, 4096)
        if _is_no_sample(entry.name) or not entry.name.lower().endswith(extensions):
            continue
        entries.append(here)
        if with_labels:
            folder, slash, _ = entry.name.partition(b"/")
            if not slash:
                raise ValueError(
                    f"labels='folder' needs every member in a folder of its class, but "
                    f"{name}:{entry.text} lies in none"
                )
            labels.append(classes.setdefault(folder, len(classes)))
    if place != directory.size:
        raise BrokenFileError(f"{name} has a directory of another size than it says")
    progress.add(size, directory.entries % 4096)
    return {
        "entries": np.array(entries, np.int64),
        "before": np.array(directory.before),
        "labels": np.array(labels, np.int32),
        "classes": np.array([folder.hex() for folder in classes], np.str_),
    }


def _is_no_sample(name: bytes) -> bool:
    name = name.removeprefix(b"./")
    return name.endswith(b"/") or name.startswith((b".", b"__MACOSX/")) or b"/." in name

"""Samples from the files of a folder.

Guarantees
- The order is the same on every machine and file system: by the bytes of each component of
  the path below the root.
- Names need not be UTF-8: they are ``str`` with ``surrogateescape``, which ``open`` takes.
- Links are followed. A link back to a folder it lies in is passed over with a warning; a
  link to nothing is listed, and reading it fails with its name.
- Only regular files are listed; a pipe, socket or device that matches is passed over with a
  warning, because reading it could block for ever.
- Nothing is opened: samples are paths, ``read`` makes bytes of them.
- A file costs about 10 bytes of memory when names resemble their neighbours.
"""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import os
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from nogil_loader.sources.base import Sample
from nogil_loader.sources.errors import EmptySourceError
from nogil_loader.sources.locations import named
from nogil_loader.sources.packed import PackedNames, Packer

log = logging.getLogger("nogil_loader.sources")

Labels: TypeAlias = "Literal['folder'] | Callable[[str], object] | None"

STAMPED = 1024
"""How many files, spread over all, a fingerprint asks for size and time."""

PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class Files:
    """Every regular file below ``root`` whose path matches ``pattern``.

    Samples are dicts with

    - ``"path"``: str, ``root`` joined with the path below it;
    - ``"label"``, when ``labels`` is given: for ``"folder"`` the int number of the first
      folder below ``root``, counted over the folder names that have a match, sorted by their
      bytes (the opened reader's ``classes`` lists them); for a function what it returns for
      the path below ``root``.

    ``pattern``: components between ``/``; ``*``, ``?`` and ``[…]`` match within one, ``**``
    stands for any number of folders. Case counts. As in a shell, ``*`` and ``**`` pass over
    names that begin with a dot: write the dot to have them. ``extensions``: when given, only
    names that end in one of these, in any case (``(".jpg", ".jpeg")``).

    ``open`` raises ``FileNotFoundError`` or ``NotADirectoryError`` for a wrong root,
    ``EmptySourceError`` when nothing matches, ``PermissionError`` for a folder that may not be
    listed, ``ValueError`` for ``labels="folder"`` with a file directly in ``root``.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("dog/2.jpg", "cat/1.jpg", "cat/notes.txt"):
    ...         pathlib.Path(root, name).parent.mkdir(exist_ok=True)
    ...         _ = pathlib.Path(root, name).write_bytes(b"")
    ...     reader = Files(root, "**/*.jpg", labels="folder").open()
    ...     sample = reader.bind()(1)
    >>> len(reader), reader.classes, sample["path"][-9:], sample["label"]
    (2, ('cat', 'dog'), 'dog/2.jpg', 1)
    """

    root: str | os.PathLike[str]
    pattern: str = "**/*"
    labels: Labels = None
    extensions: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "extensions", named(self.extensions, "extensions"))
        if not (self.labels is None or self.labels == "folder" or callable(self.labels)):
            raise ValueError(f"labels is 'folder', a function or None, not {self.labels!r}")
        parts = self.pattern.split("/")
        if not self.pattern or "" in parts or ".." in parts:
            raise ValueError(
                f"a pattern is relative to the root and has no empty or '..' component, "
                f"as in '**/*.jpg': {self.pattern!r}"
            )

    def open(self) -> FilesReader:
        """List the folder."""
        return FilesReader(self)


class FilesReader:
    """An opened ``Files``: the paths, packed."""

    threads: int | None = None

    def __init__(self, source: Files) -> None:
        self._root = os.fspath(source.root)
        self._labels = source.labels
        self.classes: tuple[str, ...] = ()
        """The names of the folders that ``"label"`` counts, for ``labels="folder"``."""
        names, folders, starts = Packer(), Packer(), array("q")
        last: bytes | None = None
        count = 0
        for folder, name in _walk(source):
            if folder != last:
                folders.append(folder)
                starts.append(count)
                last = folder
            names.append(name)
            count += 1
        if not count:
            wanted = f" with {' or '.join(source.extensions)}" if source.extensions else ""
            raise EmptySourceError(f"no file{wanted} matches {source.pattern!r} in {self._root}")
        self._names = PackedNames.of(names)
        self._folders = PackedNames.of(folders)
        self._starts = np.frombuffer(starts, np.int64)
        self._label_of_run = self._classes_of_runs() if source.labels == "folder" else None

    def __len__(self) -> int:
        return len(self._names)

    @property
    def nbytes(self) -> int:
        """The memory that the list takes."""
        return self._names.nbytes + self._folders.nbytes + self._starts.nbytes

    def bind(self) -> Callable[[int], Sample]:
        """``index -> {"path", "label"}``, with buffers of this thread's own."""
        name, folder = self._names.bind(), self._folders.bind()
        starts, root, labels = self._starts.data, os.path.join(self._root, ""), self._labels
        length = len(self._names)
        numbers = None if self._label_of_run is None else self._label_of_run.data
        label = labels if callable(labels) else None

        def sample(index: int) -> dict[str, object]:
            if not 0 <= index < length:
                raise IndexError(f"file {index} of {length}")
            run = bisect_right(starts, index) - 1
            path = os.fsdecode(folder(run) + name(index))
            if numbers is not None:
                return {"path": root + path, "label": numbers[run]}
            if label is not None:
                return {"path": root + path, "label": label(path)}
            return {"path": root + path}

        return sample

    def ref(self, index: int) -> object:
        run = bisect_right(self._starts.data, index) - 1
        return os.path.join(self._root, os.fsdecode(self._folders[run] + self._names[index]))

    def fingerprint(self) -> str:
        """Of every path below the root and the label rule, and of the size and time of up to
        1,024 files spread evenly: of all of them, when there are no more."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"files {len(self)} {_rule(self._labels)}".encode())
        for part in (self._names.blob(), self._folders.blob(), self._starts.tobytes()):
            digest.update(part)
        for index in range(0, len(self), max(1, len(self) // STAMPED)):
            try:
                status = os.stat(str(self.ref(index)))
                digest.update(f"{status.st_size} {status.st_mtime_ns};".encode())
            except OSError as error:
                digest.update(f"{type(error).__name__};".encode())
        return digest.hexdigest()

    def close(self) -> None:
        """No file is held open."""

    def _classes_of_runs(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        tops = [self._folders[run].split(b"/", 1)[0] for run in range(len(self._folders))]
        if b"" in tops:
            raise ValueError(
                f"labels='folder' needs every file in a folder of its class, "
                f"but {self.ref(int(self._starts[tops.index(b'')]))} lies directly in the root"
            )
        known = sorted(set(tops))
        self.classes = tuple(os.fsdecode(top) for top in known)
        number = {top: place for place, top in enumerate(known)}
        return np.array([number[top] for top in tops], np.int64)


def _rule(labels: Labels) -> str:
    if callable(labels):
        return str(getattr(labels, "__qualname__", type(labels).__qualname__))
    return str(labels)


def _walk(source: Files) -> Iterator[tuple[bytes, bytes]]:
    """(folder below the root with a final ``/`` or empty, name) of each match, in order."""
    root = os.fsencode(source.root)
    parts = tuple(source.pattern.split("/"))
    ends = tuple(os.fsencode(end).lower() for end in source.extensions or (b"",))
    matchers = {part: re.compile(fnmatch.translate(part)).match for part in parts}
    found, due = 0, time.monotonic() + PROGRESS_SECONDS

    def matches(name: bytes, part: str) -> bool:
        if name.startswith(b".") and not part.startswith("."):
            return False
        return part == "**" or matchers[part](os.fsdecode(name)) is not None

    def visit(
        below: bytes, wanted: frozenset[int], above: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[bytes, bytes]]:
        """``wanted``: the components of the pattern that the names in this folder may match."""
        nonlocal found, due
        folder = os.path.join(root, below)
        try:
            status = os.stat(folder)
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                log.warning("%s leads back to a folder above it: passed over", _text(folder))
                return
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=_name)
        except OSError as error:
            error.filename = _text(folder)
            raise
        for entry in listed:
            name, kind = entry.name, _kind(entry)
            if kind == "folder":
                deeper = frozenset(
                    after
                    for place in wanted
                    if matches(name, parts[place])
                    for after in _closure(place if parts[place] == "**" else place + 1, parts)
                    if after < len(parts)
                )
                if deeper:
                    yield from visit(below + name + b"/", deeper, (*above, identity))
                continue
            last = len(parts) - 1
            if not (last in wanted and matches(name, parts[last])):
                continue
            if not name.lower().endswith(ends):
                continue
            if kind == "special":
                log.warning("%s is not a regular file: passed over", _text(entry.path))
                continue
            found += 1
            yield below, name
            if found % 1024 == 0 and time.monotonic() > due:
                due = time.monotonic() + PROGRESS_SECONDS
                log.info("listing %s: %d files so far", _text(root), found)

    yield from visit(b"", frozenset(_closure(0, parts)), ())


def _closure(place: int, parts: tuple[str, ...]) -> Iterator[int]:
    """``place``, and what follows it while it is ``**``, which may stand for no folder."""
    yield place
    while place < len(parts) - 1 and parts[place] == "**":
        place += 1
        yield place


def _kind(entry: os.DirEntry[bytes]) -> str:
    """``folder``, ``file`` (or a link to nothing, which fails when read), or ``special``."""
    try:
        if entry.is_dir():
            return "folder"
        if entry.is_file():
            return "file"
        return "special" if os.path.exists(entry.path) else "file"
    except OSError:  # a link to itself
        return "file"


def _name(entry: os.DirEntry[bytes]) -> bytes:
    return entry.name


def _text(path: bytes) -> str:
    """For messages: what is not UTF-8 is escaped, so that every log can print it."""
    return path.rstrip(b"/").decode("utf-8", "backslashreplace")

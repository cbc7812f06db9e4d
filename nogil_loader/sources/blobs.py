"""Byte strings that lie somewhere and are read at any place: files, or objects of a server.

Guarantees
- A read gives exactly the bytes that were asked for, or raises: ``BrokenFileError`` where the
  data ends too early, ``ObjectChangedError`` where it is not what was opened.
- ``LocalBlobs`` reads with ``os.pread``: no shared position, no lock, any number of threads.
  At most 256 files stay open; those beyond are opened for each read (about 10 us).

Archives and line files are written against ``Blobs``, so each can lie on a server too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from nogil_loader.sources.errors import BrokenFileError, ObjectChangedError

ReadAt: TypeAlias = "Callable[[int, int, int], bytes]"
"""(number of the blob, offset, size) -> exactly ``size`` bytes. For one thread."""

KEPT_OPEN = 256


class Blobs(Protocol):
    """Several opened byte strings."""

    names: tuple[str, ...]
    """What to call each in messages: a path or an address."""

    sizes: tuple[int, ...]

    versions: tuple[str, ...]
    """Another text when the content is another: size and time, or an ETag."""

    threads: int | None
    """How many threads reading wants for itself, because it blocks; None when it does not."""

    ahead: int
    """How many bytes cost about as much to read as a few: the latency of a read in bytes."""

    def bind(self) -> ReadAt:
        """A function for the calling thread alone."""
        ...

    def close(self) -> None:
        """Give back every handle. Idempotent."""
        ...


class LocalBlobs:
    """Files. Raises ``FileNotFoundError`` or ``IsADirectoryError`` for what is not one."""

    threads: int | None = None
    ahead = 1 << 14

    def __init__(self, paths: Sequence[str]) -> None:
        self.names = tuple(paths)
        self._lock = threading.Lock()
        self._kept: dict[int, int] = {}
        self._given: tuple[int, ...] = ()
        statuses = []
        for path in self.names:
            status = os.stat(path)
            if os.path.isdir(path):
                raise IsADirectoryError(21, "a file was expected, this is a folder", path)
            statuses.append(status)
        self.sizes = tuple(status.st_size for status in statuses)
        self.versions = tuple(map(_version, statuses))
        self._limit = min(KEPT_OPEN, _open_files_allowed() // 4)
        self._closed = False

    @classmethod
    def of_files(cls, names: Sequence[str], descriptors: Sequence[int]) -> LocalBlobs:
        """Files that are open already, and stay so until whoever opened them closes them."""
        made = cls(())
        statuses = [os.fstat(descriptor) for descriptor in descriptors]
        made.names = tuple(names)
        made.sizes = tuple(status.st_size for status in statuses)
        made.versions = tuple(map(_version, statuses))
        made._given = tuple(descriptors)
        return made

    def bind(self) -> ReadAt:
        kept = dict(enumerate(self._given))
        keep, open_, limit, sizes = self._keep, self._open, self._limit, self.sizes

        def read(blob: int, offset: int, size: int) -> bytes:
            # Damaged archives ask for terabytes: never allocate what cannot be there.
            if not 0 <= offset <= offset + size <= sizes[blob]:
                raise _beyond(self.names[blob], sizes[blob], offset, size)
            if blob in kept:
                descriptor = kept[blob]
            elif blob < limit:
                descriptor = kept[blob] = keep(blob)
            else:
                descriptor = open_(blob)
                try:
                    return self._read(blob, descriptor, offset, size)
                finally:
                    os.close(descriptor)
            data = os.pread(descriptor, size, offset)
            if len(data) == size:
                return data
            return self._read(blob, descriptor, offset, size)

        return read

    def close(self) -> None:
        """Nobody may be inside a bound function."""
        with self._lock:
            self._closed = True
            while self._kept:
                os.close(self._kept.popitem()[1])

    def _keep(self, blob: int) -> int:
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.names[blob]} is read after its reader was closed")
            if blob not in self._kept:
                self._kept[blob] = self._open(blob)
            return self._kept[blob]

    def _open(self, blob: int) -> int:
        descriptor = os.open(self.names[blob], os.O_RDONLY | os.O_CLOEXEC)
        if _version(os.fstat(descriptor)) != self.versions[blob]:
            os.close(descriptor)
            raise ObjectChangedError(
                f"{self.names[blob]} changed after it was opened: start a new run"
            )
        return descriptor

    def _read(self, blob: int, descriptor: int, offset: int, size: int) -> bytes:
        """As often as needed: one ``pread`` gives at most 2 GiB, or less on some file systems."""
        parts, wanted = [], size
        while wanted:
            part = os.pread(descriptor, wanted, offset)
            if not part:
                raise _beyond(self.names[blob], offset, offset, wanted)
            parts.append(part)
            offset += len(part)
            wanted -= len(part)
        return b"".join(parts)


def coalesced(ranges: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Fewer (offset, size) that cover the given ones, which are in order: two that are at most
    ``gap`` bytes apart become one.

    >>> coalesced([(0, 10), (12, 8), (500, 1)], gap=4)
    [(0, 20), (500, 1)]
    """
    made: list[tuple[int, int]] = []
    for offset, size in ranges:
        if made and offset <= sum(made[-1]) + gap:
            first = made[-1][0]
            made[-1] = (first, max(sum(made[-1]), offset + size) - first)
        else:
            made.append((offset, size))
    return made


def read_parts(read: ReadAt, blob: int, parts: Sequence[tuple[int, int]], gap: int) -> list[bytes]:
    """The bytes of each (offset, size), which are in order; near ones are read together."""
    found: list[bytes] = []
    for start, size in coalesced(parts, gap):
        data = read(blob, start, size)
        for offset, length in parts[len(found) :]:
            if offset + length > start + size:
                break
            found.append(data[offset - start : offset - start + length])
    return found


def open_blobs(locations: Sequence[str]) -> Blobs:
    """Files for paths and ``file://``, objects of a server for other addresses."""
    locations = [location.removeprefix("file://") for location in locations]
    remote = [location for location in locations if "://" in location]
    if not remote:
        return LocalBlobs(locations)
    if len(remote) < len(locations):
        raise ValueError(
            f"paths and addresses cannot be mixed in one source: {remote[0]!r} beside "
            f"{next(item for item in locations if '://' not in item)!r}"
        )
    from nogil_loader.sources.store import StoreBlobs

    return StoreBlobs(locations)


def _beyond(name: str, end: int, offset: int, size: int) -> BrokenFileError:
    return BrokenFileError(f"{name} ends at {end}: {size} bytes were expected at {offset}")


def _version(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"


def _open_files_allowed() -> int:
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else soft

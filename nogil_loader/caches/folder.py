"""Samples kept in a folder, one file each, read back by memory map.

Guarantees
- Safe with any number of threads and processes on one folder: a file takes its name in one
  step, complete, or not at all.
- A file that a crash or a disk has damaged is detected by its checksum, removed, and its
  sample made again.
- When the bytes are used up, or the disk is full, nothing more is inserted; what is there
  goes on being read. That is logged once. Up to four processes that fill one folder together
  pass its bytes by a sample or two each, which they were writing while the others counted.
- A file that a crash left half written is removed when the cache is opened an hour later.
- Arrays of a hit are read-only views of the mapped file; they stay valid as long as they are
  held, even when the file is removed.

Format of a file, little-endian: 4 bytes ``NLC1``, CRC-32 of all that follows, length of the
head, number of buffers (each uint32); offset and size of each buffer (uint64); the head, a
pickle (protocol 5, PEP 574); the buffers, each aligned to 64 bytes. A pickle runs code when it
is read: give the cache a folder that only you can write to.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import pickle
import struct
import threading
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)

_MAGIC = b"NLC1"
_HEAD = struct.Struct("<4sIII")
_PLACE = struct.Struct("<QQ")
_ALIGN = 64
_PER_FOLDER = 1000
"""Samples in one sub-folder."""
_ABANDONED_SECONDS = 3600.0
_NEW = ".new"


class FolderCache:
    """See the top of this module. ``key`` names the data and the version of the ops.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = FolderCache(folder, None, "photos-v1")
    ...     cache.put(7, {"name": "a"})
    ...     FolderCache(folder, None, "photos-v1").get(7), FolderCache(folder, None, "v2").get(7)
    ((True, {'name': 'a'}), (False, None))
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | None, key: str) -> None:
        digest = hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
        self._folder = Path(folder, digest)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._max = max_bytes
        self._lock = threading.Lock()
        self._bytes = _used(self._folder, time.time() - _ABANDONED_SECONDS)
        self._count_at = 0
        self._writing = 0
        self._full = False

    @property
    def full(self) -> bool:
        """Whether nothing more is inserted."""
        return self._full

    def _path(self, index: int) -> Path:
        return self._folder / str(index // _PER_FOLDER) / f"{index}.sample"

    def get(self, index: int) -> tuple[bool, object]:
        """Whether sample ``index`` is kept and whole, and the sample."""
        path = self._path(index)
        try:
            with open(path, "rb", buffering=0) as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return False, None
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            return self._damaged(path, str(error))
        try:
            return True, _load(memoryview(mapped))
        except (ValueError, struct.error, pickle.UnpicklingError, EOFError) as error:
            return self._damaged(path, str(error))

    def _damaged(self, path: Path, why: str) -> tuple[bool, object]:
        _log.warning("cache: %s is damaged (%s); its sample is made again", path, why)
        with suppress(OSError):
            path.unlink()
        return False, None

    def put(self, index: int, sample: object) -> None:
        """Keep the sample if there is room."""
        if self._full:
            return
        parts = _dump(sample)
        size = sum(map(len, parts))
        with self._lock:
            if self._max is not None and self._lacks(size, self._max):
                self._stop(f"its {self._max} bytes are used")
                return
            self._bytes += size
            self._writing += size
        path = self._path(index)
        new = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{_NEW}")
        try:
            path.parent.mkdir(exist_ok=True)
            with open(new, "wb", buffering=0) as file:
                for part in parts:
                    _write(file.fileno(), part)
            os.replace(new, path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            with self._lock:
                self._bytes -= size
                self._stop(str(error))
        finally:
            with self._lock:
                self._writing -= size

    def _lacks(self, size: int, limit: int) -> bool:
        """Whether there is no room. Other processes insert too, or the same samples: the files
        are counted again whenever a quarter of the room seen last is used up."""
        if self._bytes + size > self._count_at:
            self._bytes = _used(self._folder) + self._writing
            self._count_at = self._bytes + max(size, (limit - self._bytes) // 4)
        return self._bytes + size > limit

    def _stop(self, why: str) -> None:
        if not self._full:
            self._full = True
            _log.warning("cache: nothing more is kept in %s: %s", self._folder, why)

    def close(self) -> None:
        """Nothing is held but the files."""


def _dump(sample: object) -> list[bytes | memoryview]:
    """The parts of a file."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(sample, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    end = _HEAD.size + _PLACE.size * len(views) + len(head)
    places: list[tuple[int, int]] = []
    body: list[bytes | memoryview] = [head]
    for view in views:
        gap = -end % _ALIGN
        places.append((end + gap, view.nbytes))
        body += [bytes(gap), view]
        end += gap + view.nbytes
    table = b"".join(_PLACE.pack(*place) for place in places)
    check = zlib.crc32(struct.pack("<II", len(head), len(views)))
    for part in (table, *body):
        check = zlib.crc32(part, check)
    return [_HEAD.pack(_MAGIC, check, len(head), len(views)) + table, *body]


def _load(data: memoryview) -> object:
    """The sample in a file. Raises ``ValueError`` where it is not what was written."""
    magic, check, length, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or zlib.crc32(data[8:]) != check:
        raise ValueError("wrong checksum")
    start = _HEAD.size + _PLACE.size * count
    places: Sequence[tuple[int, int]] = list(_PLACE.iter_unpack(data[_HEAD.size : start]))
    buffers = [data[offset : offset + size] for offset, size in places]
    sample: object = pickle.loads(data[start : start + length], buffers=buffers)
    return sample


def _write(descriptor: int, part: bytes | memoryview) -> None:
    """All of it: a raw write may stop in the middle."""
    view = memoryview(part)
    while view.nbytes:
        view = view[os.write(descriptor, view) :]


def _used(folder: Path, abandoned_before: float = 0.0) -> int:
    """Bytes of all files in the folder; half-written ones from before that time are removed."""
    total = 0
    for part in folder.iterdir():
        with os.scandir(part) as files:
            for file in files:
                # Another process may be giving the file its name, or be removing it.
                with suppress(FileNotFoundError):
                    status = os.stat(file.path)
                    if file.name.endswith(_NEW) and status.st_mtime < abandoned_before:
                        os.unlink(file.path)
                    else:
                        total += status.st_size
    return total

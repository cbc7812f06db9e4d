"""Samples from the lines of text files: text, JSON lines, CSV without quoted line ends.

Guarantees
- Any line is read by one ``pread``, from any thread; files are never held in memory.
- The index is one 8-byte number a line (and one a file), built by NumPy at the speed of the
  disk and kept for the next run as ``keep_index`` says.
- A line is bytes, exactly as in the file but for its line end (``\\n`` or ``\\r\\n``). An empty
  line is a sample; a last line without a line end is one too.
- Compressed files are unpacked once per run into unnamed temporary files: no format of
  theirs lets a line in the middle be found otherwise.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

import numpy as np

from nogil_loader.sources.base import Sample
from nogil_loader.sources.blobs import Blobs, LocalBlobs, ReadAt, open_blobs
from nogil_loader.sources.compressed import LONGEST, compression, unpacked
from nogil_loader.sources.errors import EmptySourceError, UnsupportedMemberError
from nogil_loader.sources.locations import Location, frozen, listed
from nogil_loader.sources.saved import Arrays, Keep, Progress, indexes

CHUNK = 8 << 20
NEWLINE = 10

Starts = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Lines:
    """Every line of the files, in order.

    Samples are bytes: the line without its line end. ``.map(json.loads)`` decodes JSON lines,
    ``.map(bytes.decode)`` text.

    ``files``: a path, an address, a glob pattern (its matches sorted), or several of them.
    ``threads``: None where reading is a copy from the page cache; a number of threads where
    it waits, as on network file systems and for addresses. ``keep_index``: ``"cache"`` (a
    folder of the user's cache), ``"beside"`` each file, ``"memory"``, or a folder.
    ``scratch``: the folder for unpacked copies of compressed files.

    ``open`` raises ``FileNotFoundError``, ``EmptySourceError`` where there is no line,
    ``BrokenFileError`` for a damaged compressed file.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "a.jsonl")
    ...     _ = file.write_bytes(b'{"n": 1}\\n{"n": 2}\\n')
    ...     reader = Lines(file, keep_index="memory").open()
    ...     print(len(reader), reader.bind()(1), str(reader.ref(1)).endswith("a.jsonl:2"))
    ...     reader.close()
    2 b'{"n": 2}' True
    """

    files: Location | Sequence[Location]
    threads: int | None = None
    keep_index: Keep = "cache"
    scratch: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", frozen(self.files))

    def open(self) -> LinesReader:
        """Find every line."""
        return LinesReader(self)


class LinesReader:
    """Opened ``Lines``: where each line starts."""

    def __init__(self, source: Lines) -> None:
        self._plain = open_blobs(listed(source.files, "file of lines"))
        self.threads = source.threads or self._plain.threads
        self._blobs, self._temporary = self._unpack(self._plain, source.scratch)
        try:
            keep: Keep = source.keep_index if self._blobs is self._plain else "memory"
            found = indexes(self._blobs, "lines", keep, self._find_lines)
        except BaseException:
            self.close()
            raise
        # One array for all: each file's starts and its end, hence one number more a file.
        self._starts: Starts = np.concatenate([index["starts"] for index in found])
        self._counts = np.array([len(index["starts"]) - 1 for index in found])
        self._ends = np.cumsum(self._counts)
        if not self._ends[-1]:
            self.close()
            raise EmptySourceError(f"there is no line in {', '.join(self._plain.names)}")

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def nbytes(self) -> int:
        """The memory that the index takes."""
        return self._starts.nbytes + self._ends.nbytes + self._counts.nbytes

    def bind(self) -> Callable[[int], Sample]:
        """``index -> bytes``, with buffers of this thread's own."""
        read, starts, ends = self._blobs.bind(), self._starts.data, self._ends.data
        length = len(self)

        def sample(index: int) -> bytes:
            if not 0 <= index < length:
                raise IndexError(f"line {index} of {length}")
            file = bisect_right(ends, index)
            place = index + file
            start = starts[place]
            line = read(file, start, starts[place + 1] - start)
            if line.endswith(b"\n"):
                line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
            return line

        return sample

    def ref(self, index: int) -> object:
        file = bisect_right(self._ends.data, index)
        first = int(self._ends[file] - self._counts[file])
        return f"{self._plain.names[file]}:{index - first + 1}"

    def fingerprint(self) -> str:
        """Of the files' names without their folder, sizes and times, and of the line count."""
        digest = hashlib.blake2b(f"lines {len(self)}".encode(), digest_size=16)
        for name, version in zip(self._plain.names, self._plain.versions, strict=True):
            digest.update(f"{os.path.basename(name)}\0{version}\0".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def close(self) -> None:
        self._plain.close()
        self._blobs.close()
        while self._temporary:
            self._temporary.pop().close()

    def _find_lines(self, blob: int, progress: Progress) -> Arrays:
        read = self._blobs.bind()
        return {"starts": line_starts(read, blob, self._blobs.sizes[blob], progress)}

    def _unpack(self, blobs: Blobs, scratch: str | None) -> tuple[Blobs, list[IO[bytes]]]:
        """The same blobs, or unpacked copies of all when one of them is compressed."""
        read = blobs.bind()
        packed = [
            compression(read(number, 0, min(LONGEST, size))) is not None
            for number, size in enumerate(blobs.sizes)
        ]
        if not any(packed):
            return blobs, []
        if not isinstance(blobs, LocalBlobs):
            blobs.close()
            raise UnsupportedMemberError(
                f"{blobs.names[packed.index(True)]} is compressed and lies on a server: "
                f"fetch it first, or unpack it there"
            )

        def unpack(name: str) -> IO[bytes]:
            with open(name, "rb") as file:
                return unpacked(file, name, scratch)

        made: list[IO[bytes]] = []
        try:
            with ThreadPoolExecutor(thread_name_prefix="nogil_loader-unpack") as pool:
                for file in pool.map(unpack, blobs.names):
                    made.append(file)
            return LocalBlobs.of_files(blobs.names, [file.fileno() for file in made]), made
        except BaseException:
            blobs.close()
            for file in made:
                file.close()
            raise


def line_starts(read: ReadAt, blob: int, size: int, progress: Progress) -> Starts:
    """Where each line starts, and the size: shape (lines + 1,)."""
    pieces = [np.zeros(1, np.int64)]
    last_byte = NEWLINE
    for offset in range(0, size, CHUNK):
        chunk = np.frombuffer(read(blob, offset, min(CHUNK, size - offset)), np.uint8)
        found = np.flatnonzero(chunk == NEWLINE).astype(np.int64)
        pieces.append(found + (offset + 1))
        last_byte = int(chunk[-1])
        progress.add(len(chunk), len(found))
    if last_byte != NEWLINE:
        pieces.append(np.array([size], np.int64))
    return np.concatenate(pieces)

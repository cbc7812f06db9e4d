"""What a compressed file holds, told by its first bytes and never by its name.

Guarantees
- gzip (also of many members), bzip2 and xz are read with the standard library; zstd where
  the standard library has it (Python 3.14), else it is refused by name.
- Damage is a ``BrokenFileError`` that names the file, whatever library found it.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO, cast

from nogil_loader.sources.errors import BrokenFileError, UnsupportedMemberError

MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
LONGEST = max(map(len, MAGIC))


def compression(start: bytes) -> str | None:
    """``gzip``, ``bzip2``, ``xz``, ``zstd`` or None, from the first six bytes.

    >>> compression(b"\\x1f\\x8b\\x08\\x00"), compression(b"plain text")
    ('gzip', None)
    """
    for magic, name in MAGIC.items():
        if start.startswith(magic):
            return name
    return None


def decompressed(file: BinaryIO, name: str) -> BinaryIO:
    """``file``, or what unpacks it while it is read. ``file`` is at its start.

    It need not be seekable. ``name`` is for errors.
    """
    if not hasattr(file, "peek"):
        file = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, file)))
    with naming(name):
        kind = compression(cast(io.BufferedReader, file).peek(LONGEST)[:LONGEST])
    if kind == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    if kind == "bzip2":
        return cast(BinaryIO, bz2.BZ2File(file))
    if kind == "xz":
        return cast(BinaryIO, lzma.LZMAFile(file))
    if kind == "zstd":
        try:
            zstd = importlib.import_module("compression.zstd")
        except ImportError:
            raise UnsupportedMemberError(
                f"{name} is compressed with zstd, which Python reads from 3.14 on: "
                f"unpack it, or use gzip"
            ) from None
        return cast(BinaryIO, zstd.ZstdFile(file))
    return file


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Turns what the libraries raise for damaged data into one error with the file's name."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise BrokenFileError(f"{name} is damaged or cut short: {error}") from error
    except OSError as error:
        # bz2 raises a bare OSError; one with a number is the system's and says it itself.
        if error.errno is not None:
            raise
        raise BrokenFileError(f"{name} is damaged or cut short: {error}") from error


def unpacked(file: BinaryIO, name: str, folder: str | None) -> IO[bytes]:
    """All that ``file`` holds, in an unnamed temporary file that goes when it is closed.

    ``folder``: where; the system's folder for temporary files unless given.
    """
    target = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - the caller closes it
    try:
        with naming(name), decompressed(file, name) as source:
            while chunk := source.read(1 << 20):
                target.write(chunk)
        target.flush()
    except BaseException:
        target.close()
        raise
    return target

"""The zip format, read from any place: the directory at its end, and each member's data.

Guarantees
- Pure parsing of what PKWARE's APPNOTE 6.3 describes, ZIP64 included; tests compare with
  ``zipfile``. Nothing is opened here.
- What contradicts the format is a ``BrokenFileError`` with the archive, the member where one
  is known, and the reason. Content is checked against its CRC-32.
- Stored and deflated members are read; bzip2 too. Encrypted members and other methods are an
  ``UnsupportedMemberError``.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from nogil_loader.sources.errors import BrokenFileError, UnsupportedMemberError

Read: TypeAlias = "Callable[[int, int], bytes]"
"""(offset, size) -> exactly the bytes there."""

END = struct.Struct("<4s4H2LH")
END_MARK = b"PK\x05\x06"
END64_LOCATOR = struct.Struct("<4sLQL")
END64_LOCATOR_MARK = b"PK\x06\x07"
END64 = struct.Struct("<4sQ2H2L4Q")
END64_MARK = b"PK\x06\x06"
ENTRY = struct.Struct("<4s6H3L5H2L")
ENTRY_MARK = b"PK\x01\x02"
LOCAL = struct.Struct("<4s5H3L2H")
LOCAL_MARK = b"PK\x03\x04"
LONGEST_COMMENT = 0xFFFF
FULL = 0xFFFFFFFF
METHODS = {0: "stored", 8: "deflate", 12: "bzip2"}
OTHER_METHODS = {9: "deflate64", 14: "lzma", 93: "zstandard", 95: "xz", 98: "ppmd", 99: "aes"}


class Directory(NamedTuple):
    """Where the directory of an archive lies, and what precedes the archive in its file."""

    offset: int
    size: int
    entries: int
    before: int


class Entry(NamedTuple):
    """A member, as the directory tells of it."""

    name: bytes
    utf8: bool
    method: int
    encrypted: bool
    crc: int
    packed: int
    """Bytes in the archive."""
    size: int
    """Bytes unpacked."""
    header: int
    """Offset of the member's own header, from the beginning of the archive."""
    length: int
    """Bytes of this entry."""

    @property
    def text(self) -> str:
        """The name as text: UTF-8 where the archive says so, code page 437 elsewhere."""
        return self.name.decode("utf-8" if self.utf8 else "cp437", "surrogateescape")


def find_directory(read: Read, size: int, archive: str) -> Directory:
    """Read the end of the archive, which tells where its directory is."""
    tail_size = min(size, END.size + LONGEST_COMMENT)
    tail = read(size - tail_size, tail_size)
    place = tail.rfind(END_MARK)
    # The mark may also occur in the comment: the true one's comment ends where the file does.
    while place >= 0:
        if len(tail) - place >= END.size:
            comment = END.unpack_from(tail, place)[7]
            if place + END.size + comment == len(tail):
                break
        place = tail.rfind(END_MARK, 0, place)
    if place < 0:
        raise BrokenFileError(
            f"{archive} has no directory at its end: not a zip archive, or cut short"
        )
    _, disk, _, _, entries, length, offset, _ = END.unpack_from(tail, place)
    end = size - tail_size + place
    if entries == 0xFFFF or length == FULL or offset == FULL:
        at = end - END64_LOCATOR.size
        located = read(at, END64_LOCATOR.size) if at >= 0 else b""
        if located[:4] == END64_LOCATOR_MARK:
            disk, entries, length, offset, end = _zip64(read, located, at, archive)
    if disk not in (0, 0xFFFF):
        raise UnsupportedMemberError(f"{archive} is one of several parts: join them first")
    before = end - length - offset
    if before < 0:
        raise BrokenFileError(f"{archive} has a directory that does not fit in it")
    return Directory(offset + before, length, entries, before)


def _zip64(
    read: Read, located: bytes, locator: int, archive: str
) -> tuple[int, int, int, int, int]:
    """Disk, entries, length and offset of the directory, and where its end record starts."""
    stated = END64_LOCATOR.unpack(located)[2]
    # Data before the archive shifts it; then it lies right before its locator.
    for place in (stated, locator - END64.size):
        if 0 <= place <= locator - END64.size:
            record = read(place, END64.size)
            if record[:4] == END64_MARK:
                _, _, _, _, disk, _, _, entries, length, offset = END64.unpack(record)
                return disk, entries, length, offset, place
    raise BrokenFileError(f"{archive} lacks the ZIP64 record that its end refers to")


def parse_entry(data: bytes, place: int, archive: str) -> Entry:
    """The directory entry at ``place``."""
    if len(data) - place < ENTRY.size or data[place : place + 4] != ENTRY_MARK:
        raise BrokenFileError(f"{archive} has a damaged directory")
    (_, _, _, flags, method, _, _, crc, packed, size, name_size, extra_size, comment_size, _, _, _,
     header) = ENTRY.unpack_from(data, place)  # fmt: skip
    start = place + ENTRY.size
    name = data[start : start + name_size]
    extra = data[start + name_size : start + name_size + extra_size]
    length = ENTRY.size + name_size + extra_size + comment_size
    if len(name) < name_size or len(extra) < extra_size or place + length > len(data):
        raise BrokenFileError(f"{archive} has a damaged directory")
    if FULL in (packed, size, header):
        size, packed, header = _zip64_extra(extra, size, packed, header, name, archive)
    return Entry(
        name, bool(flags & 0x800), method, bool(flags & 1), crc, packed, size, header, length
    )


def _zip64_extra(
    extra: bytes, size: int, packed: int, header: int, name: bytes, archive: str
) -> tuple[int, int, int]:
    """Size, packed size and header offset, each from the extra field where it says FULL."""
    place = 0
    while place + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, place)
        if kind == 1:
            field = extra[place + 4 : place + 4 + length]
            wanted = [value == FULL for value in (size, packed, header)]
            if len(field) < 8 * sum(wanted):
                break
            values = iter(struct.unpack_from(f"<{sum(wanted)}Q", field))
            return (
                next(values) if wanted[0] else size,
                next(values) if wanted[1] else packed,
                next(values) if wanted[2] else header,
            )
        place += 4 + length
    if header == FULL or packed == FULL:
        raise BrokenFileError(f"{archive}:{readable(name)} lacks its ZIP64 sizes")
    return size, packed, header


def content(read: Read, entry: Entry, before: int, archive: str) -> bytes:
    """The content of a member, unpacked and checked."""
    told = f"{archive}:{readable(entry.name)}"
    if entry.encrypted:
        raise UnsupportedMemberError(f"{told} is encrypted: write the archive without a password")
    if entry.method not in METHODS:
        method = OTHER_METHODS.get(entry.method, f"method {entry.method}")
        raise UnsupportedMemberError(
            f"{told} is packed with {method}: write the archive with deflate or stored"
        )
    packed = read(content_start(read, entry, before, archive), entry.packed)
    made = _unpacked(packed, entry, told)
    if len(made) != entry.size:
        raise BrokenFileError(f"{told} has {len(made)} bytes, the directory says {entry.size}")
    if zlib.crc32(made) != entry.crc:
        raise BrokenFileError(f"{told} is damaged: its checksum differs")
    return made


def content_start(read: Read, entry: Entry, before: int, archive: str) -> int:
    """Where a member's bytes begin: its own header tells how long its name and extras are."""
    start = entry.header + before
    local = read(start, LOCAL.size)
    if local[:4] != LOCAL_MARK:
        raise BrokenFileError(
            f"{archive}:{readable(entry.name)} has no header where the directory says"
        )
    fields: tuple[int, ...] = LOCAL.unpack(local)
    return start + LOCAL.size + fields[9] + fields[10]


def _unpacked(packed: bytes, entry: Entry, told: str) -> bytes:
    if entry.method == 0:
        return packed
    try:
        # One byte more than there should be tells a member that is larger than it says, without
        # unpacking a bomb.
        if entry.method == 8:
            return zlib.decompressobj(-15).decompress(packed, entry.size + 1)
        return bz2.BZ2Decompressor().decompress(packed, entry.size + 1)
    except (zlib.error, OSError, EOFError) as error:
        raise BrokenFileError(f"{told} is damaged: {error}") from error


def readable(name: bytes) -> str:
    """For messages: what is not UTF-8 is escaped."""
    return name.decode("utf-8", "backslashreplace")

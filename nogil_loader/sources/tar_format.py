"""The tar format, read from any place: where each member of an archive lies.

Guarantees
- Pure parsing: the caller brings ``read(offset, size)``; nothing is opened here.
- USTAR, PAX (``path``, ``size``) and GNU (long names, numbers in base 256) as POSIX.1-2001
  and the GNU tar manual, "Basic Tar Format", describe them; tests compare with ``tarfile``.
- Every header's checksum is verified. What contradicts the format is a ``BrokenFileError``
  with the archive and the offset; an archive is never taken to end at damage.
- Names are bytes, exactly as in the archive but for a leading ``./``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from nogil_loader.sources.errors import BrokenFileError, TruncatedFileError

BLOCK = 512
OCTAL = frozenset(b"01234567")
ZEROS = bytes(BLOCK)
LONGEST_EXTENSION = 1 << 20
"""No honest PAX or GNU extension is longer; a damaged size must not be read into memory."""

Read: TypeAlias = "Callable[[int, int], bytes]"
"""(offset, size) -> the bytes there: fewer, or none, only where the data ends."""


class Member(NamedTuple):
    """One member of an archive."""

    start: int
    """Offset of its first header, extensions included."""
    name: bytes
    kind: str
    """``file``, ``folder``, or in words what else it is: ``a sparse file``, ``a hard link``."""
    data: int
    """Offset of its content."""
    size: int
    """Bytes of content."""
    end: int
    """Offset of what follows it."""


KINDS = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "folder",
    b"6": "a pipe",
    b"S": "a sparse file",
    b"M": "a part of a file on another volume",
}
WITHOUT_CONTENT = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
"""Their size field, if any, does not count: no content follows."""


def scan(read: Read, archive: str, offset: int = 0, *, within: bool = False) -> Iterator[Member]:
    """The members from ``offset`` on, in order.

    ``within``: the data is a part cut at member boundaries, whose end is not the archive's.
    Zero blocks end an archive; what follows them is read on when it is another archive (as
    ``cat a.tar b.tar`` makes) and is a ``BrokenFileError`` when it is anything else.
    """
    if not within and not offset and not read(0, 1):
        raise BrokenFileError(f"{archive} is empty (0 bytes): not a tar archive")
    # What the extension headers before a member said about it.
    start, long_name, path = offset, b"", b""
    size_said: int | None = None
    sparse = False
    while True:
        block = read(offset, BLOCK)
        if len(block) < BLOCK:
            if block or start != offset:
                raise _cut(archive, start)
            return
        if block == ZEROS:
            if start != offset:
                raise BrokenFileError(f"{archive} has an extension header for nothing at {start}")
            start = offset = offset + BLOCK
            continue
        size = _verified_size(block, archive, offset)
        flag = block[156:157]
        content = offset + BLOCK
        if flag in b"xgLK" and flag:
            offset = content + _padded(size)
            if size > LONGEST_EXTENSION:
                raise BrokenFileError(
                    f"{archive} has an extension header of {size} bytes at {content - BLOCK}"
                )
            said = read(content, size)
            if len(said) < size:
                raise _cut(archive, start)
            if flag == b"L":
                long_name = said.partition(b"\0")[0]
            elif flag in b"xg":
                records = _pax_records(said, archive, content)
                sparse |= any(key.startswith(b"GNU.sparse.") for key in records)
                if flag == b"g" and (sparse or b"path" in records or b"size" in records):
                    raise BrokenFileError(
                        f"{archive} has a global header at {content - BLOCK} that names or sizes "
                        f"all members: such archives are not read"
                    )
                if flag == b"x":
                    path = records.get(b"GNU.sparse.name", records.get(b"path", path))
                    if b"size" in records:
                        size_said = _number(records[b"size"], 10, archive, content)
            if flag == b"g" and start == content - BLOCK:
                start = offset
            continue
        if flag == b"S" and block[482]:
            # Old GNU sparse files may have further headers of their own.
            while True:
                more = read(content, BLOCK)
                if len(more) < BLOCK:
                    raise _cut(archive, start)
                content += BLOCK
                if not more[504]:
                    break
        name = path or long_name or _ustar_name(block)
        kind = KINDS.get(flag, f"of unknown type {flag!r}")
        if kind == "file" and flag == b"\0" and name.endswith(b"/"):
            kind = "folder"
        if kind == "file" and sparse:
            kind = "a sparse file"
        if flag in WITHOUT_CONTENT:
            size = 0
        elif size_said is not None:
            size = size_said
        end = content + _padded(size)
        yield Member(start, name.removeprefix(b"./"), kind, content, size, end)
        start = offset = end
        long_name = path = b""
        size_said, sparse = None, False


def plain(part: bytes) -> list[tuple[int, bytes, str, int, int, int]] | None:
    """The members of a part of an archive as ``scan`` gives them, when all are ordinary files.

    None where one needs ``scan``. Headers are not verified: for parts that were indexed.
    """
    found = []
    offset, stop = 0, len(part)
    while offset < stop:
        digits = part[offset + 124 : offset + 135]
        if part[offset + 156 : offset + 157] != b"0" or not digits.isdigit():
            return None
        size = int(digits, 8)
        name = part[offset : offset + 100]
        if b"\0" in name:
            name = name[: name.index(b"\0")]
        if part[offset + 345] and part[offset + 257 : offset + 263] == b"ustar\0":
            name = _ustar_name(part[offset : offset + BLOCK])
        data = offset + BLOCK
        end = data + (size + 511) // 512 * 512
        found.append((offset, name.removeprefix(b"./"), "file", data, size, end))
        offset = end
    return found


def key_and_field(name: bytes) -> tuple[bytes, bytes]:
    """WebDataset's rule: the name up to the first dot of its last component, and the rest.

    The rest is in lower case, and empty where there is no dot.

    >>> key_and_field(b"train.v2/0001.seg.PNG"), key_and_field(b"README")
    ((b'train.v2/0001', b'seg.png'), (b'README', b''))
    """
    folder, slash, last = name.rpartition(b"/")
    base, _, field = last.partition(b".")
    return folder + slash + base, field.lower()


def is_hidden(name: bytes) -> bool:
    """Names that begin with a dot, such as ``._1.jpg``, which macOS adds: never a sample."""
    return name[name.rfind(b"/") + 1 :].startswith(b".")


def _padded(size: int) -> int:
    return (size + BLOCK - 1) // BLOCK * BLOCK


def _cut(archive: str, start: int) -> TruncatedFileError:
    return TruncatedFileError(f"{archive} is cut short: it ends within the headers at {start}")


def _verified_size(block: bytes, archive: str, offset: int) -> int:
    """The size field of a header whose checksum holds."""
    digits = block[148:156].partition(b"\0")[0].strip()
    said = int(digits, 8) if OCTAL.issuperset(digits) and digits else -1
    # The checksum is the sum of all bytes with its own field as 8 spaces. Adler-32's low half
    # is 1 + the plain sum modulo 65521: the same in C, 20 times faster than sum().
    total = said - 8 * 32 + sum(block[148:156])
    plain_sum = (zlib.adler32(block) & 0xFFFF) == (total + 1) % 65521
    if said < 0 or not (plain_sum or said == _signed_sum(block)):
        raise BrokenFileError(
            f"{archive} has no valid header at {offset}: not a tar archive, or damaged there"
        )
    return _number(block[124:136], 8, archive, offset)


def _signed_sum(block: bytes) -> int:
    """The checksum of some old writers, which took bytes as signed."""
    rest = block[:148] + block[156:]
    return 8 * 32 + sum(byte - 256 if byte > 127 else byte for byte in rest)


def _number(field: bytes, base: int, archive: str, offset: int) -> int:
    """Digits between spaces and NULs; or, for GNU, base 256 after a byte of 0x80."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:])
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    if not digits.isdigit():
        raise BrokenFileError(f"{archive} has {field!r} for a number in the header at {offset}")
    try:
        return int(digits, base)
    except ValueError as error:
        raise BrokenFileError(
            f"{archive} has {field!r} for a number in the header at {offset}"
        ) from error


def _ustar_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    # GNU's own magic ends in a space, and its headers have other things where USTAR's prefix is.
    if block[257:263] == b"ustar\0":
        prefix = block[345:500].partition(b"\0")[0]
        if prefix:
            return prefix + b"/" + name
    return name


def _pax_records(said: bytes, archive: str, offset: int) -> dict[bytes, bytes]:
    """``length key=value\\n``, where the length counts the whole record."""
    records: dict[bytes, bytes] = {}
    place = 0
    while place < len(said) and said[place]:
        digits, space, _ = said[place : place + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = said[place : place + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if len(record) < length or not equals or not record.endswith(b"\n"):
            raise BrokenFileError(f"{archive} has a damaged PAX record at {offset + place}")
        records[key] = value
        place += length
    return records

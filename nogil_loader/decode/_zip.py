"""The members of a zip archive that lies in memory: what npz files are made of.

Guarantees
- Names come from the central directory at the end, as in every zip reader; of two members
  with one name the later counts.
- Stored members are views. Deflated ones are inflated to the size the directory announces and
  never beyond it, so that a small file can't fill the memory.
- Content that doesn't match its checksum is a ``DecodeError``; what the format allows and this
  reader doesn't know (encryption, other compressions) an ``UnsupportedError``.

The format is PKWARE's APPNOTE 6.3.10, of which sections 4.3.7, 4.3.12 and 4.3.14-16 matter.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

from nogil_loader.decode._input import Buffer
from nogil_loader.decode.errors import (
    DecodeError,
    TooLargeError,
    TruncatedError,
    UnsupportedError,
)

MAGIC = (b"PK\3\4", b"PK\5\6")
_END = Struct("<4s4H2LH")
_END64 = Struct("<4sQ2H2L4Q")
_LOCATOR64 = Struct("<4sLQL")
_ENTRY = Struct("<4s4x2H4x3L3H8xL")
_LOCAL = Struct("<4s22x2H")
LOCAL = _LOCAL.size
"""Bytes that stand before the name of a member."""
_ENCRYPTED, _UTF8 = 0x1, 0x800
_STORED, _DEFLATED = 0, 8
_WIDE = 0xFFFF_FFFF
"""In place of a number that didn't fit into 32 bits."""


class Member(NamedTuple):
    """One entry of the central directory."""

    flags: int
    method: int
    checksum: int
    packed: int
    size: int
    offset: int


def first_content(start: bytes) -> int:
    """Where the content of the first member begins, by the archive's first ``LOCAL`` bytes;
    0 where they begin no archive."""
    if len(start) < LOCAL or start[:4] != MAGIC[0]:
        return 0
    _, name_length, extra_length = _LOCAL.unpack(start)
    return LOCAL + int(name_length) + int(extra_length)


def members(data: Buffer) -> dict[str, Member]:
    """The archive's directory, by name, in its order."""
    view = memoryview(data)
    at, count, start = _directory(view)
    found: dict[str, Member] = {}
    for _ in range(count):
        if at + _ENTRY.size > len(view):
            raise TruncatedError("the zip directory ends early")
        (magic, flags, method, checksum, packed, size, name_length, extra_length,
         comment_length, offset) = _ENTRY.unpack_from(view, at)  # fmt: skip
        if magic != b"PK\1\2":
            raise DecodeError("the zip directory is damaged")
        at += _ENTRY.size
        name = bytes(view[at : at + name_length])
        if max(size, packed, offset) == _WIDE:
            extra = view[at + name_length : at + name_length + extra_length]
            size, packed, offset = _wide(extra, size, packed, offset)
        # ASCII in either case, as it nearly always is, is decoded ten times faster as such.
        coding = "ascii" if name.isascii() else "utf-8" if flags & _UTF8 else "cp437"
        text = name.decode(coding, "replace")
        found[text] = Member(flags, method, checksum, packed, size, start + offset)
        at += name_length + extra_length + comment_length
    return found


def _directory(view: memoryview) -> tuple[int, int, int]:
    """Where the directory is, how many entries it has, and what offsets count from."""
    tail = bytes(view[-_END.size :])
    if tail[:4] != b"PK\5\6":  # a comment follows, or the archive is cut
        tail = bytes(view[-(_END.size + 0xFFFF) :])
    found = tail.rfind(b"PK\5\6")
    at = len(view) - len(tail) + found
    if found < 0 or at + _END.size > len(view):
        raise TruncatedError("no end of a zip directory: the archive is cut short")
    _, _, _, _, count, size, offset, _ = _END.unpack_from(view, at)
    if count == 0xFFFF or _WIDE in (size, offset):
        locator = at - _LOCATOR64.size
        if locator >= 0 and bytes(view[locator : locator + 4]) == b"PK\6\7":
            _, _, at, _ = _LOCATOR64.unpack_from(view, locator)
            if at + _END64.size > locator or bytes(view[at : at + 4]) != b"PK\6\6":
                raise DecodeError("the zip64 directory is damaged")
            *_, count, size, offset = _END64.unpack_from(view, at)
    if size > at or offset > at - size:
        raise DecodeError("the zip directory is not where the archive says")
    # What stands before the archive (a self-extractor) shifts all of its offsets.
    return at - size, count, at - size - offset


def _wide(extra: memoryview, size: int, packed: int, offset: int) -> tuple[int, int, int]:
    """Sizes of 4 GiB and more, which stand in extra field 1, those that need it in order."""
    values = [size, packed, offset]
    at = 0
    while at + 4 <= len(extra):
        kind = int.from_bytes(extra[at : at + 2], "little")
        length = int.from_bytes(extra[at + 2 : at + 4], "little")
        at += 4
        if kind == 1:
            field, place = extra[at : at + length], 0
            for k, value in enumerate(values):
                if value == _WIDE and place + 8 <= len(field):
                    values[k] = int.from_bytes(field[place : place + 8], "little")
                    place += 8
        at += length
    return values[0], values[1], values[2]


def content(data: Buffer, name: str, member: Member, max_bytes: int | None) -> Buffer:
    """The member's bytes, checked: a view where it is stored, new where it was deflated."""
    view = memoryview(data)
    if member.flags & _ENCRYPTED:
        raise UnsupportedError(f"zip member {name!r} is encrypted")
    if max_bytes is not None and member.size > max_bytes:
        raise TooLargeError(f"zip member {name!r}: {member.size} bytes > max_bytes={max_bytes}")
    if member.offset + _LOCAL.size > len(view):
        raise TruncatedError(f"zip member {name!r} lies beyond the end")
    magic, name_length, extra_length = _LOCAL.unpack_from(view, member.offset)
    if magic != b"PK\3\4":
        raise DecodeError(f"zip member {name!r} is not where the directory says")
    start = member.offset + _LOCAL.size + name_length + extra_length
    packed = view[start : start + member.packed]
    if len(packed) < member.packed:
        raise TruncatedError(f"zip member {name!r} reaches beyond the end")
    unpacked: Buffer
    if member.method == _STORED:
        unpacked = packed
    elif member.method == _DEFLATED:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            unpacked = inflate.decompress(packed, member.size + 1)
        except zlib.error as error:
            raise DecodeError(f"zip member {name!r} is damaged: {error}") from error
    else:
        raise UnsupportedError(f"zip member {name!r} has compression method {member.method}")
    if len(unpacked) != member.size:
        raise DecodeError(
            f"zip member {name!r} has {len(unpacked)} bytes; the directory says {member.size}"
        )
    if zlib.crc32(unpacked) != member.checksum:
        raise DecodeError(f"zip member {name!r} does not match its checksum")
    return unpacked

"""The orientation in an EXIF block, without Pillow's general and warning parser.

Guarantees
- ``orientation`` returns 1 to 8 for any bytes at all and neither raises nor warns; what is
  broken, missing or out of range is 1, "as stored".

Exif 2.32 (CIPA DC-008-2019), section 4.6: a TIFF header, then image file directory 0, whose
entries are a tag, a type, a count and a value, 12 bytes each.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Literal

_ORIENTATION = 0x0112
_SHORT = 3


def orientation(block: bytes) -> int:
    """The value of tag 0x0112 in directory 0.

    >>> orientation(b"MM\\0*\\0\\0\\0\\x08\\0\\1\\x01\\x12\\0\\3\\0\\0\\0\\1\\0\\6\\0\\0")
    6
    """
    if block.startswith(b"Exif\0\0"):
        block = block[6:]
    order: Literal["big", "little"]
    if block.startswith(b"MM\0*"):
        order, entry = "big", ">HHIH"
    elif block.startswith(b"II*\0"):
        order, entry = "little", "<HHIH"
    else:
        return 1
    start = int.from_bytes(block[4:8], order)
    count = int.from_bytes(block[start : start + 2], order)
    end = min(start + 2 + 12 * count, len(block) - 9)
    for at in range(start + 2, end, 12):
        tag, kind, _, value = unpack_from(entry, block, at)
        if tag == _ORIENTATION:
            return value if kind == _SHORT and 1 <= value <= 8 else 1
    return 1

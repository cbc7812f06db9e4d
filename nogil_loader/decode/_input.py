"""What decoders are given: bytes in memory, or the path of a file.

Guarantees
- ``str`` and ``os.PathLike`` are paths; ``bytes``, ``bytearray``, ``memoryview`` and any
  other contiguous buffer are content. Nothing is guessed from what a value contains.
- A file that isn't there or may not be read raises the ``OSError`` of ``open``.
"""

from __future__ import annotations

import os
from typing import TypeAlias

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Encoded: TypeAlias = "Buffer | str | os.PathLike[str]"
"""Content in memory or a path, as every decoder takes it."""


def read(value: object, decoder: str) -> tuple[Buffer, str]:
    """The content of ``value`` and what to call it in errors.

    A name that isn't empty ends in ``": "``, so that it can be put before any message.
    """
    if isinstance(value, bytes):
        return value, ""
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        with open(path, "rb", buffering=0) as file:
            return file.readall(), f"{path!s}: "
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{decoder} takes bytes, another buffer or a path, not {type(value).__name__}"
        ) from None
    if not view.contiguous:
        raise TypeError(f"{decoder} takes a contiguous buffer; this one has strides")
    return view.cast("B"), ""

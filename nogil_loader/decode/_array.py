"""npy and npz files to arrays, without a copy where none is needed.

Guarantees
- The same values, shape and order as ``numpy.load``, in native byte order unless told
  otherwise, always aligned; or an error of ``nogil_loader.decode.errors``.
- Nothing in the data is executed: pickled arrays are refused unless ``pickled=True``.
- An array made from ``bytes`` is a read-only view that keeps them alive; from a
  ``bytearray`` or a writable buffer, a writable view of it; from a path, writable memory of
  its own, or with ``memory_map=True`` a read-only view of the file.
- A decoder holds no state: any number of threads may use one.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode import _describe, _input, _npy, _zip
from nogil_loader.decode._input import Buffer, Encoded
from nogil_loader.decode.errors import DecodeError, TruncatedError, UnsupportedError

_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_ALIGNED = 16
"""What NumPy's memory and the headers of npy files are multiples of, in bytes."""

Arrays: TypeAlias = "NDArray[np.generic] | dict[str, NDArray[np.generic]]"


@dataclass(frozen=True, repr=False)
class array:
    """Decode an npy or npz file: bytes, a buffer or a path to an array, or a dict of them.

    An npy file gives its array, with the shape and dtype it was saved with. An npz file gives
    a dict ``{name: array}`` or, where ``member`` is given, that array alone. Which of the two
    it is, the content says.

    Parameters
    - ``member``: the name of the one array of an npz file that is wanted.
    - ``native``: convert other byte orders to this machine's (a copy). False keeps them.
    - ``memory_map``: map files given by their path instead of reading them. Stored members
      of an npz file are views of the map too, read once to verify their checksum.
    - ``pickled``: True lets arrays of Python objects be unpickled, which *runs whatever the
      file says*: only for files you trust as you trust code.
    - ``max_bytes``: the largest uncompressed size of a member of an npz file.

    Raises ``TruncatedError``, ``TooLargeError``, ``UnsupportedError`` (pickled arrays, unknown
    versions and compressions) or ``DecodeError``, all naming the path if there is one.

    >>> import io
    >>> import numpy as np
    >>> from nogil_loader import decode
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(6).reshape(2, 3))
    >>> decode.array()(file.getvalue())
    array([[0, 1, 2],
           [3, 4, 5]])
    >>> file = io.BytesIO()
    >>> np.savez(file, x=np.arange(3), y=np.float32(0.5))
    >>> decode.array(member="x")(file.getvalue())
    array([0, 1, 2])
    """

    member: str | None = None
    _: KW_ONLY
    native: bool = True
    memory_map: bool = False
    pickled: bool = False
    max_bytes: int | None = 1 << 32

    __repr__ = _describe.call

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 0:
            raise ValueError(f"max_bytes={self.max_bytes} is negative; None is no limit")

    def bind(self) -> Callable[[object], Arrays]:
        """This decoder for the calling thread alone."""
        return partial(
            _decode, self.member, self.native, self.memory_map, self.pickled, self.max_bytes
        )

    def __call__(self, value: Encoded) -> Arrays:
        """The array or arrays in ``value``: content in memory, or the path of a file."""
        return self.bind()(value)


def _decode(
    member: str | None,
    native: bool,
    memory_map: bool,
    pickled: bool,
    max_bytes: int | None,
    value: object,
) -> Arrays:
    if not isinstance(value, (str, os.PathLike)):
        data, _ = _input.read(value, "decode.array")
        return _decoded(data, member, native, pickled, max_bytes)
    data = _mapped(value) if memory_map else _read(value)
    try:
        return _decoded(data, member, native, pickled, max_bytes)
    except DecodeError as error:
        raise type(error)(f"{os.fspath(value)!s}: {error}") from error.__cause__


def _decoded(
    data: Buffer, member: str | None, native: bool, pickled: bool, max_bytes: int | None
) -> Arrays:
    start = bytes(data[:6])
    if start == _npy.MAGIC:
        if member is not None:
            raise DecodeError(f"an npy file has one array and no names, such as {member!r}")
        return _one(data, native, pickled)
    if start[:4] in _zip.MAGIC:
        return _many(data, member, native, pickled, max_bytes)
    if not start or _npy.MAGIC.startswith(start):
        raise TruncatedError("the data ends before an npy header does")
    raise UnsupportedError(f"neither npy nor npz: it starts with {start!r}")


def _one(data: Buffer, native: bool, pickled: bool) -> NDArray[np.generic]:
    header = _npy.header_of(data)
    if header.dtype.hasobject:
        return _unpickled(data, pickled)
    return _npy.array_of(data, header, native)


def _many(
    data: Buffer, member: str | None, native: bool, pickled: bool, max_bytes: int | None
) -> Arrays:
    directory = _zip.members(data)
    found = {name.removesuffix(".npy"): name for name in directory}
    if member is None:
        wanted = found
    elif member in found:
        wanted = {member: found[member]}
    else:
        raise DecodeError(f"no array {member!r}; there are: {', '.join(found) or 'none'}")
    arrays: dict[str, NDArray[np.generic]] = {}
    for short, name in wanted.items():
        content = _zip.content(data, name, directory[name], max_bytes)
        if content[:6] != _npy.MAGIC:
            raise UnsupportedError(f"zip member {name!r} is no npy file: not an npz archive")
        try:
            arrays[short] = _one(content, native, pickled)
        except DecodeError as error:
            raise type(error)(f"{name}: {error}") from error.__cause__
    return arrays if member is None else arrays[member]


def _unpickled(data: Buffer, allowed: bool) -> NDArray[np.generic]:
    if not allowed:
        raise UnsupportedError(
            "an array of pickled Python objects, which can run code when it is read; "
            "decode.array(pickled=True) reads it if you trust the file"
        )
    try:
        loaded: NDArray[np.generic] = np.load(io.BytesIO(data), allow_pickle=True)
    except Exception as error:  # unpickling raises whatever the pickled objects raise
        raise DecodeError(f"a pickled array that can't be read: {error!r}") from error
    return loaded


def _read(path: str | os.PathLike[str]) -> Buffer:
    """The file in writable memory of its own, so placed that elements need no copy to be
    aligned: those of an npy file, and of the first member of an npz file that stores it."""
    file = os.open(path, _OPEN)
    try:
        size = os.fstat(file).st_size
        if not size:  # also where the system doesn't know it: of a pipe
            with open(file, "rb", buffering=0, closefd=False) as whole:
                return bytearray(whole.readall())
        shift = -_zip.first_content(os.pread(file, _zip.LOCAL, 0)) % _ALIGNED
        content = np.empty(shift + size, np.uint8).data[shift:]
        filled = os.readv(file, [content])
        if filled == size:
            return content
        while filled < size and (count := os.readv(file, [content[filled:]])):
            filled += count
        return content[:filled]
    finally:
        os.close(file)


def _mapped(path: str | os.PathLike[str]) -> Buffer:
    with open(path, "rb", buffering=0) as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

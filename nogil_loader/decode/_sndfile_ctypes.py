"""libsndfile by ctypes, for the interpreters where cffi would switch the GIL on.

Guarantees
- Prototypes are declared once, before the library is handed out; calls run without the GIL.
- One handle belongs to one thread, the library to all.
- libsndfile's texts of errors, which threads overwrite for each other, are never read.

The interface is that of sndfile.h, libsndfile 1.2: https://libsndfile.github.io/libsndfile/api
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes.util import find_library
from pathlib import Path
from platform import machine

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode._sound import Content, Library

_READ = 0x10
_SET, _CURRENT, _END = 0, 1, 2
_SUBTYPE = 0xFFFF
_MPEG = (0x80, 0x81, 0x82)
_FLOATING = (0x06, 0x07, 0x60, 0x64, *_MPEG)  # FLOAT, DOUBLE, VORBIS, OPUS


class Info(ctypes.Structure):
    """SF_INFO."""

    _fields_ = (
        ("frames", ctypes.c_int64),
        ("samplerate", ctypes.c_int),
        ("channels", ctypes.c_int),
        ("format", ctypes.c_int),
        ("sections", ctypes.c_int),
        ("seekable", ctypes.c_int),
    )


class _Cursor:
    """Where libsndfile stands in content that lies in memory."""

    __slots__ = ("address", "content", "position", "size")

    def __init__(self, content: Content) -> None:
        self.content = np.frombuffer(content, np.uint8)  # type: ignore[arg-type]
        self.address: int = self.content.__array_interface__["data"][0]
        self.size = self.content.size
        self.position = 0


def _length(cursor: _Cursor) -> int:
    return cursor.size


def _seek(offset: int, whence: int, cursor: _Cursor) -> int:
    if whence == _CURRENT:
        offset += cursor.position
    elif whence == _END:
        offset += cursor.size
    cursor.position = offset = max(0, offset)
    return offset


def _read(target: int, count: int, cursor: _Cursor) -> int:
    position = cursor.position
    count = max(0, min(count, cursor.size - position))
    ctypes.memmove(target, cursor.address + position, count)
    cursor.position = position + count
    return count


def _tell(cursor: _Cursor) -> int:
    return cursor.position


_Length = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.py_object)
_Seek = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.py_object)
_Read = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.py_object)


class _VirtualIO(ctypes.Structure):
    """SF_VIRTUAL_IO. What libsndfile passes back to each of these is the cursor itself."""

    _fields_ = (
        ("length", _Length),
        ("seek", _Seek),
        ("read", _Read),
        ("write", _Read),
        ("tell", _Length),
    )


_MEMORY = _VirtualIO(_Length(_length), _Seek(_seek), _Read(_read), _Read(), _Length(_tell))


class _Opened:
    """A ``Sound`` on a handle of libsndfile."""

    def __init__(self, lib: ctypes.CDLL, handle: int, info: Info, cursor: _Cursor | None) -> None:
        self._lib, self._handle, self._cursor = lib, handle, cursor
        # libsndfile's seeks in MP3s are guesses (mpg123: "fuzzy") that miss by any distance.
        self._seekable = bool(info.seekable) and info.format & _SUBTYPE not in _MPEG
        self.frames: int = info.frames
        self.rate: int = info.samplerate
        self.channels: int = info.channels
        self.floating = info.format & _SUBTYPE in _FLOATING

    def seek(self, frame: int) -> bool:
        return self._seekable and self._lib.sf_seek(self._handle, frame, _SET) == frame

    def read(self, out: NDArray[np.generic]) -> int:
        read = getattr(self._lib, _READERS[out.dtype.char])
        count: int = read(self._handle, out.__array_interface__["data"][0], len(out))
        return max(0, count)

    def close(self) -> None:
        self._lib.sf_close(self._handle)


# By the letter of the dtype, which is found faster than its name.
_READERS = {
    "f": "sf_readf_float",
    "d": "sf_readf_double",
    "h": "sf_readf_short",
    "i": "sf_readf_int",
}


def _open(lib: ctypes.CDLL, content: Content) -> _Opened | None:
    info = Info()
    if isinstance(content, int):
        cursor = None
        handle = lib.sf_open_fd(content, _READ, ctypes.byref(info), 0)
    else:
        cursor = _Cursor(content)
        handle = lib.sf_open_virtual(ctypes.byref(_MEMORY), _READ, ctypes.byref(info), id(cursor))
    return _Opened(lib, handle, info, cursor) if handle else None


def library() -> Library:
    """The libsndfile of soundfile's wheel, or else the system's."""
    return functools.partial(_open, _load())


def path() -> str:
    """Where the library is, or its name; an ``ImportError`` that says what to install."""
    found = _packaged() or find_library("sndfile")
    if found is None:
        raise ImportError(
            "decode.audio needs libsndfile, which comes with soundfile: "
            "pip install --no-deps soundfile (cffi, which it asks for, would switch the GIL on)"
        )
    return found


@functools.cache
def _load() -> ctypes.CDLL:
    lib = ctypes.CDLL(path())
    info = ctypes.POINTER(Info)
    lib.sf_open_virtual.restype = ctypes.c_void_p
    lib.sf_open_virtual.argtypes = (
        ctypes.POINTER(_VirtualIO), ctypes.c_int, info, ctypes.c_void_p,
    )  # fmt: skip
    lib.sf_open_fd.restype = ctypes.c_void_p
    lib.sf_open_fd.argtypes = (ctypes.c_int, ctypes.c_int, info, ctypes.c_int)
    lib.sf_seek.restype = ctypes.c_int64
    lib.sf_seek.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
    lib.sf_close.argtypes = (ctypes.c_void_p,)
    for name in _READERS.values():
        getattr(lib, name).restype = ctypes.c_int64
        getattr(lib, name).argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return lib


def _packaged() -> str | None:
    try:
        import _soundfile_data
    except ImportError:
        return None
    folder = Path(os.fspath(_soundfile_data.__file__)).parent
    arm = machine().startswith(("aarch64", "armv8", "arm64"))
    names = [f"libsndfile_{'arm64' if arm else machine()}.{end}" for end in ("so", "dylib")]
    return next((str(folder / name) for name in names if (folder / name).exists()), None)

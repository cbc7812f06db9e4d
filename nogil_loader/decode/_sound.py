"""What decoding asks of a sound library, and which library that is on this interpreter.

Guarantees
- Nothing that would switch the GIL on is imported: the choice is made by the build of the
  interpreter, before either library is touched.
- Both choices run the same libsndfile and give the same samples, bit for bit.

``soundfile`` reaches libsndfile through cffi, which doesn't support free-threaded 3.13 and
switches its GIL on; there, the libsndfile that soundfile's wheel carries is called by ctypes.
"""

from __future__ import annotations

import sys
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nogil_loader import runtime
from nogil_loader.decode._input import Buffer

Content: TypeAlias = "Buffer | int"
"""An encoded sound: in memory, or as an open file descriptor that stays the caller's."""

UNKNOWN = (1 << 63) - 1
"""How libsndfile says that it doesn't know the number of frames."""


class Sound(Protocol):
    """An opened sound, for one thread."""

    frames: int
    """As the file announces; ``UNKNOWN`` where it doesn't."""
    rate: int
    """Frames a second."""
    channels: int
    floating: bool
    """Whether samples are stored, or come out of their codec, as floats without a fixed range."""

    def seek(self, frame: int) -> bool:
        """Make ``frame`` the next to be read; False where that can't be done."""
        ...

    def read(self, out: NDArray[np.generic]) -> int:
        """Fill rows of ``out``, C-contiguous (frames, channels); how many were there."""
        ...

    def close(self) -> None:
        """Give the handle back. To be called exactly once."""
        ...


class Library(Protocol):
    """The one call that a decoder makes to get a ``Sound``."""

    def __call__(self, content: Content, /) -> Sound | None:
        """Open; None where the library doesn't recognise the content or finds it damaged."""
        ...


def needs_ctypes() -> bool:
    """Whether cffi would switch the GIL on here, or isn't there at all: 3.13t."""
    return runtime.free_threaded() and sys.version_info < (3, 14)


def library() -> Library:
    """The library for this interpreter; an ``ImportError`` that says what to install."""
    if needs_ctypes():
        from nogil_loader.decode import _sndfile_ctypes

        return _sndfile_ctypes.library()
    from nogil_loader.decode import _sndfile_cffi

    return _sndfile_cffi.library()

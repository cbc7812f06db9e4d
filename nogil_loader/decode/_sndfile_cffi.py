"""libsndfile through soundfile, where cffi leaves the GIL as it is.

Guarantees
- soundfile's exceptions end here; what remains of them is that a sound didn't open, or that
  fewer frames were there than it announced.

soundfile raises where a read ends in an error and then doesn't say how many frames came
before; a sound of unknown length always ends so. It also seeks after every read, which in an
MP3 leads to another place and in a FLAC file costs a tenth of its decoding. These sounds, and
what comes before an error in others, are read by ctypes from the same library.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode import _sndfile_ctypes
from nogil_loader.decode._containers import format_of
from nogil_loader.decode._sound import UNKNOWN, Content, Library, Sound

if TYPE_CHECKING:
    from soundfile import SoundFile

_FLOATING = ("FLOAT", "DOUBLE", "VORBIS", "OPUS")  # and MPEG_*, which doesn't come here


class _Opened:
    """A ``Sound`` on a ``SoundFile``."""

    def __init__(self, file: SoundFile, content: Content) -> None:
        self._file, self._content = file, content
        self._next = 0
        self.frames: int = file.frames
        self.rate: int = file.samplerate
        self.channels: int = file.channels
        self.floating = file.subtype in _FLOATING

    def seek(self, frame: int) -> bool:
        from soundfile import LibsndfileError

        try:
            found: bool = self._file.seekable() and self._file.seek(frame) == frame
        except LibsndfileError:
            return False
        self._next = frame if found else self._next
        return found

    def read(self, out: NDArray[np.generic]) -> int:
        from soundfile import LibsndfileError

        try:
            count: int = self._file.buffer_read_into(out, out.dtype.name)
        except LibsndfileError:
            count = self._read_up_to_an_error(out)
        self._next += count
        return count

    def _read_up_to_an_error(self, out: NDArray[np.generic]) -> int:
        sound = _by_ctypes(self._content)
        if sound is None:
            return 0
        try:
            return sound.read(out) if not self._next or sound.seek(self._next) else 0
        finally:
            sound.close()

    def close(self) -> None:
        self._file.close()


def _open(content: Content) -> Sound | None:
    start = os.pread(content, 4, 0) if isinstance(content, int) else bytes(content[:4])
    if format_of(start) in ("MP3", "FLAC"):
        return _by_ctypes(content)
    from soundfile import LibsndfileError, SoundFile

    try:
        if isinstance(content, int):
            file = SoundFile(content, closefd=False)
        else:
            file = SoundFile(io.BytesIO(content))
    except LibsndfileError:
        return None
    if file.frames < UNKNOWN and not file.subtype.startswith("MPEG"):
        return _Opened(file, content)
    file.close()
    return _by_ctypes(content)


def _by_ctypes(content: Content) -> Sound | None:
    if isinstance(content, int):
        os.lseek(content, 0, os.SEEK_SET)  # where libsndfile takes the file to begin
    return _sndfile_ctypes.library()(content)


def library() -> Library:
    """soundfile's own libsndfile."""
    try:
        import soundfile  # noqa: F401
    except ImportError as missing:
        raise ImportError(
            'decode.audio needs soundfile: pip install "nogil_loader[audio]"'
        ) from missing
    return _open

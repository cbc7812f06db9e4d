"""Sounds in every format that libsndfile writes, for tests and benchmarks.

Guarantees
- The same samples give the same bytes with the same libsndfile (Ogg apart, whose streams
  get a random serial number).
- Works on every interpreter that ``decode.audio`` works on, and leaves the GIL as it is.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode import _sndfile_ctypes

# SF_FORMAT_* of sndfile.h: end | container | subtype.
FORMATS: dict[str, int] = {
    "WAV PCM_U8": 0x010005,
    "WAV PCM_16": 0x010002,
    "WAV PCM_24": 0x010003,
    "WAV PCM_32": 0x010004,
    "WAV FLOAT": 0x010006,
    "WAV DOUBLE": 0x010007,
    "WAV ULAW": 0x010010,
    "WAV big-endian": 0x20010002,
    "WAVEX PCM_24": 0x130003,
    "RF64 PCM_16": 0x220002,
    "AIFF PCM_16": 0x020002,
    "AIFF PCM_24": 0x020003,
    "AIFF FLOAT": 0x020006,
    "AU PCM_16": 0x030002,
    "CAF PCM_16": 0x180002,
    "W64 PCM_16": 0x0B0002,
    "FLAC PCM_16": 0x170002,
    "FLAC PCM_24": 0x170003,
    "Ogg VORBIS": 0x200060,
    "Ogg OPUS": 0x200064,
    "MP3": 0x230082,
}
"""The names that ``encode`` knows."""

_WRITE = 0x20


def encode(samples: NDArray[np.floating], rate: int, form: str) -> bytes:
    """A sound file.

    ``samples``: (frames,) or (frames, channels), -1 to 1. ``rate``: frames a second.
    ``form``: one of ``FORMATS``; a ``ValueError`` where libsndfile doesn't write it so (Opus
    has rates of its own, MP3 at most two channels).
    """
    columns = samples if samples.ndim == 2 else samples[:, None]
    content = np.ascontiguousarray(columns, np.float64)
    lib = _library()
    info = _sndfile_ctypes.Info(0, rate, content.shape[1], FORMATS[form], 0, 0)
    with tempfile.TemporaryFile() as file:
        handle = lib.sf_open_fd(file.fileno(), _WRITE, ctypes.byref(info), 0)
        if not handle:
            raise ValueError(f"no {form} of {content.shape[1]} channels at {rate} frames a second")
        written = lib.sf_writef_double(handle, content.ctypes.data, len(content))
        lib.sf_close(handle)
        if written != len(content):
            raise OSError(f"{written} of {len(content)} frames were written")
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


@functools.cache
def _library() -> ctypes.CDLL:
    lib = ctypes.CDLL(_sndfile_ctypes.path())
    info = ctypes.POINTER(_sndfile_ctypes.Info)
    lib.sf_open_fd.restype = ctypes.c_void_p
    lib.sf_open_fd.argtypes = (ctypes.c_int, ctypes.c_int, info, ctypes.c_int)
    lib.sf_writef_double.restype = ctypes.c_int64
    lib.sf_writef_double.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    lib.sf_close.argtypes = (ctypes.c_void_p,)
    return lib

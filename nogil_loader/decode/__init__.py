"""From bytes, paths and buffers to arrays: each module is one kind of medium.

Every decoder is a value: it can be compared, printed, pickled, and called from any thread.
What it takes is in ``_input``, what it raises in ``errors``.
"""

from nogil_loader.decode._array import array
from nogil_loader.decode._audio import audio
from nogil_loader.decode._crop import random_crop
from nogil_loader.decode._image import image
from nogil_loader.decode._text import json, text
from nogil_loader.decode.errors import (
    DecodeError,
    TooLargeError,
    TruncatedError,
    UnsupportedError,
)

__all__ = [
    "DecodeError",
    "TooLargeError",
    "TruncatedError",
    "UnsupportedError",
    "array",
    "audio",
    "image",
    "json",
    "random_crop",
    "text",
]

"""From bytes, paths and buffers to arrays: each module is one kind of medium.

Every decoder is a value: it can be compared, printed, pickled, and called from any thread.
"""

from nogil_loader.decode._crop import random_crop
from nogil_loader.decode._image import image
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
    "image",
    "random_crop",
]

"""What a decoder raises when the data, not the program, is at fault.

Guarantees
- Everything a decoder raises about the content it was given is a ``DecodeError``; which of
  its kinds says what to do about it.
- Whatever a codec library raises is translated once, where it is called, and kept as
  ``__cause__``. ``MemoryError`` and errors of the file system pass through as they are.
- They can be pickled, so that a worker process can hand them over.
"""

from __future__ import annotations


class DecodeError(ValueError):
    """The data can't be decoded. The message names the file, where there is one, and why."""


class TruncatedError(DecodeError):
    """The data ends before what it announces: fetch or write the file again."""


class TooLargeError(DecodeError):
    """Decoding would pass a limit of this decoder: raise the limit, or leave the file out."""


class UnsupportedError(DecodeError):
    """Not damaged, as far as one can tell, but nothing this decoder reads as it is set up."""

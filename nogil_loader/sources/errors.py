"""What can be wrong with data, one type for each remedy.

| error | what to do |
|---|---|
| ``FileNotFoundError`` | give the right path |
| ``EmptySourceError`` | give a pattern that matches, or data that is not empty |
| ``StreamUsedError`` | give a factory, not an iterator that can be read once |
| ``BrokenFileError`` | make or fetch the file again |
| ``TruncatedFileError`` | the same, or use what is there |
| ``UnsupportedMemberError`` | write the file another way |
| ``ObjectChangedError`` | start again: the data is another one now |
| ``StoreError`` | look at the server, the address or the credentials |
"""

from __future__ import annotations


class EmptySourceError(ValueError):
    """There is nothing to read: an empty folder, no match, a file with no samples."""


class StreamUsedError(RuntimeError):
    """An iterator that can be read once was asked for a second pass."""


class BrokenFileError(ValueError):
    """A file whose bytes contradict its format, or that ends too early."""


class TruncatedFileError(BrokenFileError):
    """A file that is right as far as it goes, but ends too early."""


class UnsupportedMemberError(ValueError):
    """A valid member of an archive, of a kind that is not read (sparse, encrypted, a link)."""


class ObjectChangedError(RuntimeError):
    """The data changed on disk or on the server after it was opened."""


class StoreError(OSError):
    """A server refused or failed, after as many tries as were allowed."""

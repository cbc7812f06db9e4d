"""What the headers of sound files say about their own length, and whether it is all there.

Guarantees
- ``format_of`` goes by content. ``examine`` says in words how WAV, AIFF, AU and Ogg data
  ends before what it announces, which libsndfile itself passes over in silence (FLAC and MP3
  show it when they are read).
- A length that says "unknown", as programs write that stream into a pipe or are killed, is
  no shortfall: the sound lasts as long as the data.

Formats: RIFF/WAVE (IBM and Microsoft 1991; RF64 by EBU Tech 3306), AIFF 1.3 (Apple 1989),
Sun AU, Ogg (RFC 3533).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

Peek: TypeAlias = Callable[[int, int], bytes]
"""``(offset, count)`` to at most ``count`` bytes of the content."""

_UNKNOWN_FROM = 0x7FFF_0000
"""Lengths from here on that don't fit the data are the placeholders of streaming writers."""

_LONGEST_OGG_PAGE = 27 + 255 + 255 * 255
_OGG_LAST_PAGE = 0x04
_MOST_CHUNKS = 10_000


def format_of(start: bytes) -> str:
    """The format of a sound that starts so; "" where none is known.

    >>> format_of(b"OggS")
    'Ogg'
    """
    if start[:4] in (b"RIFF", b"RIFX", b"RF64") and start[8:12] == b"WAVE":
        return "WAV"
    if start[:4] == b"FORM" and start[8:12] in (b"AIFF", b"AIFC"):
        return "AIFF"
    if start[:3] == b"ID3" or (len(start) > 1 and start[0] == 0xFF and start[1] & 0xE0 == 0xE0):
        return "MP3"
    known = {b"fLaC": "FLAC", b"OggS": "Ogg", b".snd": "AU", b"caff": "CAF", b"riff": "W64"}
    return known.get(start[:4], "")


class Span(NamedTuple):
    """Where the samples are and how many bytes of them are there."""

    at: int
    length: int


class Findings(NamedTuple):
    """What the headers say."""

    lack: str | None = None
    """How the content ends too early; None where it doesn't."""
    unfinished: int = 0
    """Where a WAV file has a length of 0 that a killed recorder never filled in; 0 where the
    lengths are meant. 0xFFFFFFFF ("unknown") in its place makes the file readable."""
    span: Span | None = None
    """The samples of a WAV file."""


def examine(peek: Peek, size: int) -> Findings:
    """Read the headers of the content, which has ``size`` bytes."""
    start = peek(0, 12)
    kind = format_of(start)
    if kind == "WAV":
        return _wav(peek, size, start)
    if kind == "AIFF":
        found = _find(peek, size, b"SSND", "big")
        return Findings(_missing(*found, size) if found else "there is no SSND chunk")
    if kind == "AU":
        at, length = (int.from_bytes(peek(n, 4), "big") for n in (4, 8))
        return Findings(_missing(at, length, size))
    return Findings(_ogg(peek, size) if kind == "Ogg" else None)


def _wav(peek: Peek, size: int, start: bytes) -> Findings:
    order: Literal["big", "little"] = "big" if start[:4] == b"RIFX" else "little"
    found = _find(peek, size, b"data", order)
    if found is None:
        return Findings("there is no data chunk")
    at, length = found
    there = max(0, size - at)
    if start[:4] == b"RF64" and length == 0xFFFF_FFFF and peek(12, 4) == b"ds64":
        length = int.from_bytes(peek(28, 8), "little")
        return Findings(_missing(at, length, size, placeholders=False))
    if length == 0 and there and start[:4] == b"RIFF":
        # Meant where the whole is announced to end behind this chunk, else never filled in.
        whole = int.from_bytes(start[4:8], "little") + 8
        if whole <= at or whole >= _UNKNOWN_FROM:
            return Findings(None, at - 4, Span(at, there))
    return Findings(_missing(at, length, size), 0, Span(at, min(length, there)))


def _missing(at: int, length: int, size: int, placeholders: bool = True) -> str | None:
    there = max(0, size - at)
    if length <= there or (placeholders and length >= _UNKNOWN_FROM):
        return None
    return f"{length} bytes of samples are announced, {there} are there"


def _find(
    peek: Peek, size: int, wanted: bytes, order: Literal["big", "little"]
) -> tuple[int, int] | None:
    """Where the content of a chunk begins and how long it says it is."""
    at = 12
    for _ in range(_MOST_CHUNKS):
        if at + 8 > size:
            return None
        head = peek(at, 8)
        length = int.from_bytes(head[4:8], order)
        at += 8
        if head[:4] == wanted:
            return at, length
        at += length + (length & 1)
    return None


def _ogg(peek: Peek, size: int) -> str | None:
    """An Ogg stream is whole when its last page is, and says that it is the last."""
    begin = max(0, size - 2 * _LONGEST_OGG_PAGE)
    tail = peek(begin, size - begin)
    at = tail.rfind(b"OggS\0")
    if at < 0 or at + 27 > len(tail):
        return "the last Ogg page is cut"
    segments = tail[at + 26]
    table = tail[at + 27 : at + 27 + segments]
    if len(table) < segments or at + 27 + segments + sum(table) > len(tail):
        return "the last Ogg page is cut"
    return None if tail[at + 5] & _OGG_LAST_PAGE else "the page that ends an Ogg stream is missing"

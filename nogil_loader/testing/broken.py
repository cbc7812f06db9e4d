"""Broken and odd files, made on the spot, with what a reader should make of each.

Guarantees
- A ``Case`` says how it ought to end: with a value (and which), or with one of the errors of
  ``nogil_loader.decode.errors``. The same cases and mutations come from the same seed.
- They cover what people meet: files cut short, headers that lie, rotation tags, deep, inked
  and transparent colours, odd byte and memory orders, lengths unknown or never written,
  content that isn't what the name says.

Use them on your own decoders too::

    for case in broken.arrays():
        if case.error is None:
            np.testing.assert_array_equal(my_decoder(case.data), case.value)

Pictures are in ``broken_pictures``; they need Pillow.
"""

from __future__ import annotations

import io
import pickle
import random
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from nogil_loader.decode.errors import (
    DecodeError,
    TooLargeError,
    TruncatedError,
    UnsupportedError,
)
from nogil_loader.testing import sounds as encoders

RATE = 16_000
CUTS = (0.03, 0.5, 0.85)
"""Where files are cut: the share of their bytes that is left."""


class Case(NamedTuple):
    """One file and how reading it should end."""

    name: str
    """What is odd about it, in words."""
    data: bytes
    error: type[DecodeError] | None = None
    """What reading it raises, this type or one below it; None where it can be read."""
    value: NDArray[np.generic] | None = None
    """What it holds, where that is known exactly or within ``margin``."""
    margin: float = 0.0
    """How far a decoded value may lie from ``value``: lossy formats, rounding."""


def mutations(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Damaged copies: bits flipped, numbers set to extremes, parts lost, doubled and moved.

    Half of the damage falls into the first 64 bytes, where headers are.

    >>> len(list(mutations(b"some file", 3)))
    3
    """
    rng = random.Random(seed)
    for _ in range(count):
        yield mutated(data, rng)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One damaged copy, with one to eight injuries."""
    copy = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        if not copy:
            break
        at = rng.randrange(len(copy) if rng.random() < 0.5 else min(len(copy), 64))
        injury = rng.randrange(6)
        if injury == 0:
            copy[at] ^= 1 << rng.randrange(8)
        elif injury == 1:
            number = _extreme(rng)
            copy[at : at + len(number)] = number
        elif injury == 2:
            del copy[at : at + rng.randrange(1, 17)]
        elif injury == 3:
            copy[at:at] = rng.randbytes(rng.randrange(1, 17))
        elif injury == 4:
            del copy[at:]
        else:
            other, count = rng.randrange(len(copy)), rng.randrange(1, 33)
            copy[at : at + count] = copy[other : other + count]
    return bytes(copy)


def _extreme(rng: random.Random) -> bytes:
    """The largest, smallest or signed-largest number of 1 to 8 bytes, in either order."""
    width = rng.choice((1, 2, 4, 8))
    top = 1 << 8 * width
    value = rng.choice((0, 1, top - 1, top // 2, top // 2 - 1))
    return value.to_bytes(width, "little" if rng.random() < 0.5 else "big")


def arrays() -> Iterator[Case]:
    """npy and npz files: every order, version and shape, pickles, cuts, lying headers."""
    plain = np.arange(24.0).reshape(2, 3, 4)
    odd: dict[str, NDArray[np.generic]] = {
        "C order": plain,
        "Fortran order": np.asfortranarray(plain),
        "0-d": np.array(2.5),
        "empty": np.zeros((0, 3), np.float32),
        "empty in the middle": np.zeros((3, 0, 2), np.int8),
        "strings": np.array(["a", "äöü", ""]),
        "bytes": np.array([b"a", b"bc"]),
        "dates": np.array(["2026-11-30", "NaT"], "M8[D]"),
        "booleans": np.array([True, False]),
        "complex": np.array([1 + 2j]),
        "half floats": np.array([0.5, np.inf], np.float16),
        "structured": np.array([(1, 0.5), (2, 1.5)], [("id", "<i4"), ("x", "<f8", (1,))]),
        "structured, aligned": np.zeros(2, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        "32 dimensions": np.zeros((1,) * 32),
    }
    for name, array in odd.items():
        for version in ((1, 0), (2, 0), (3, 0)):
            yield Case(f"npy {version[0]}: {name}", npy(array, version), value=array)
    for order in "<>":
        for kind in ("i2", "u4", "i8", "f2", "f4", "f8", "c16", "U3", "M8[s]"):
            array = np.arange(3).astype(np.dtype(kind)).astype(order + kind)
            yield Case(f"npy: {order}{kind}", npy(array), value=array)
    whole = npy(plain)
    for share in CUTS:
        yield Case(f"npy cut to {share:.0%}", whole[: int(len(whole) * share)], TruncatedError)
    yield Case("npy of no bytes", b"", TruncatedError)
    yield Case("npy with bytes behind it", whole + b"more", value=plain)
    yield Case("npy that is a picture", b"\x89PNG\r\n\x1a\n" + bytes(50), UnsupportedError)
    yield Case("npy of version 7", whole[:6] + b"\7" + whole[7:], UnsupportedError)
    for name, header in {
        "a negative side": "{'descr': '<f8', 'fortran_order': False, 'shape': (-2,), }",
        "more elements than bytes": "{'descr': '<f8', 'fortran_order': False, 'shape': (99,), }",
        "2**80 elements": f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({2**80},), }}",
        "an unknown dtype": "{'descr': '<z9', 'fortran_order': False, 'shape': (2,), }",
        "code for a dtype": "{'descr': exit(), 'fortran_order': False, 'shape': (2,), }",
        "no shape": "{'descr': '<f8', 'fortran_order': False, }",
        "5,000 brackets": "(" * 5000,
        "nothing in it": "",
    }.items():
        yield Case(f"npy header with {name}", npy_with_header(header, bytes(64)), DecodeError)
    objects = np.array([{"a": 1}, None], object)
    yield Case("npy of pickled objects", npy(objects), UnsupportedError)
    yield Case("npy pickled by hand", pickle.dumps(plain), UnsupportedError)
    yield from _archives(plain, objects)


def _archives(plain: NDArray[np.float64], objects: NDArray[np.object_]) -> Iterator[Case]:
    for pack, save in (("stored", np.savez), ("deflated", np.savez_compressed)):
        file = io.BytesIO()
        save(file, x=plain)
        data = file.getvalue()
        yield Case(f"npz, {pack}", data)
        for share in CUTS:
            yield Case(
                f"npz, {pack}, cut to {share:.0%}", data[: int(len(data) * share)], TruncatedError
            )
        changed = bytearray(data)
        changed[len(changed) // 3] ^= 0x40
        yield Case(f"npz, {pack}, with a flipped bit", bytes(changed), DecodeError)
        at = data.rindex(b"PK\1\2") + 24
        longer = data[:at] + struct.pack("<L", 1 << 31) + data[at + 4 :]
        yield Case(f"npz, {pack}, whose directory lies", longer, DecodeError)
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, x=objects)
    yield Case("npz of pickled objects", file.getvalue(), UnsupportedError)


def npy(array: NDArray[np.generic], version: tuple[int, int] | None = None) -> bytes:
    """The array as an npy file of this version of the format."""
    file = io.BytesIO()
    npy_format.write_array(file, array, version=version if version != (1, 0) else None)
    return file.getvalue()


def npy_with_header(header: str, body: bytes) -> bytes:
    """An npy file, version 1, with any text for a header."""
    raw = header.encode()
    return npy_format.magic(1, 0) + struct.pack("<H", len(raw)) + raw + body


def sounds() -> Iterator[Case]:
    """Sound files: every container and depth, lengths that lie or are unknown, cuts."""
    t = np.arange(4000) / 44_100
    tone = 0.5 * np.sin(2 * np.pi * 440 * t)
    rates = {"Ogg OPUS": 48_000}
    margins = {"WAV PCM_U8": 0.01, "WAV ULAW": 0.02, "Ogg VORBIS": 0.1, "Ogg OPUS": 0.5, "MP3": 0.5}
    for form in encoders.FORMATS:
        data = encoders.encode(tone, rates.get(form, 44_100), form)
        yield Case(form, data, value=tone[:, None], margin=margins.get(form, 1e-4))
        yield Case(f"{form}, the first byte lost", data[1:], DecodeError)
        if form not in ("CAF PCM_16", "W64 PCM_16"):  # of these nobody says what is missing
            for share in CUTS:
                cut = data[: int(len(data) * share)]
                yield Case(f"{form} cut to {share:.0%}", cut, DecodeError)
    for channels in (2, 6, 32):
        many = np.repeat(tone[:300, None], channels, axis=1)
        data = encoders.encode(many, RATE, "WAVEX PCM_24")
        yield Case(f"WAV of {channels} channels", data, value=many, margin=1e-6)
    yield Case("AIFF of 24 bits, empty", encoders.encode(tone[:0], RATE, "AIFF PCM_24"))
    yield from _wavs()
    flac = encoders.encode(tone, RATE, "FLAC PCM_16")
    yield Case("FLAC of unknown length", flac_announcing(flac, 0), value=tone[:, None], margin=1e-4)
    yield Case("FLAC that announces too much", flac_announcing(flac, 9000), TruncatedError)
    yield Case("FLAC that announces years", flac_announcing(flac, (1 << 36) - 1), TooLargeError)
    yield Case("FLAC of a header alone", flac[:42], DecodeError)
    yield Case("a sound of no bytes", b"", TruncatedError)
    yield Case("a sound that is a picture", b"\x89PNG\r\n\x1a\n" + bytes(90), UnsupportedError)
    yield Case("a sound that is a film", b"RIFF\x64\0\0\0AVI LIST" + bytes(90), UnsupportedError)


def _wavs() -> Iterator[Case]:
    levels = (np.arange(-500, 500) * 31).astype("<i2")
    body, value = levels.tobytes(), levels[:, None] / 32768
    for name, length, whole in (
        ("unknown, as ffmpeg writes it", 0xFFFF_FFFF, 0xFFFF_FFFF),
        ("unknown, as sox writes it", 0x7FFF_F024, 0x7FFF_F048),
        ("unknown, as arecord writes it", 0x8000_0000, 0x8000_0024),
        ("never filled in", 0, 0),
        ("never filled in, but for the header", 0, 36),
    ):
        data = wav(body, length=length, whole=whole)
        yield Case(f"WAV, the length {name}", data, value=value)
    yield Case("WAV that announces more", wav(body, length=4000), TruncatedError)
    yield Case("WAV that announces less", wav(body, length=1000), value=value[:500])
    yield Case("WAV without samples", wav(b""), value=value[:0])
    yield Case("WAV, samples before a tag", wav(body, tail=b"LIST\4\0\0\0INFO"), value=value)
    odd = wav(body, lead=b"LIST\3\0\0\0abc\0")
    yield Case("WAV, samples behind a tag of odd length", odd, value=value)
    yield Case("WAV, no samples before a tag", wav(b"", tail=b"LIST\4\0\0\0INFO"), value=value[:0])
    yield Case("WAV of no channels", wav(body, channels=0), DecodeError)
    yield Case("WAV of half a sample too many", wav(body + b"\1"), value=value)
    yield Case("WAV without its samples", wav(body)[:36], TruncatedError)


def wav(
    body: bytes,
    *,
    length: int | None = None,
    whole: int | None = None,
    lead: bytes = b"",
    tail: bytes = b"",
    channels: int = 1,
) -> bytes:
    """A 16-bit WAV file at 16 kHz, by hand.

    ``length`` and ``whole`` are what its header says the samples and all behind the first 8
    bytes measure; None is the truth. ``lead``, ``tail``: chunks before and behind the samples.
    """
    fmt = struct.pack("<HHIIHH", 1, channels, RATE, 2 * RATE * channels, 2 * channels, 16)
    said = len(body) if length is None else length
    padded = body + b"\0" * (len(body) % 2)
    inner = b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + lead
    inner += b"data" + struct.pack("<I", said) + padded + tail
    return b"RIFF" + struct.pack("<I", len(inner) if whole is None else whole) + inner


def flac_announcing(data: bytes, frames: int) -> bytes:
    """A FLAC file whose header counts so many frames; 0 says unknown (RFC 9639, 8.2)."""
    fields = int.from_bytes(data[18:26], "big") >> 36 << 36 | frames
    return data[:18] + fields.to_bytes(8, "big") + data[26:]

"""Sounds to arrays, on libsndfile; plain 16-bit WAV on NumPy alone.

Guarantees
- The result is ``(frames, channels)``, C-contiguous, of the dtype asked for, or an error of
  ``nogil_loader.decode.errors``: never a part of a sound in place of the whole unless that
  was asked for.
- The same samples on every interpreter, bit for bit; nothing is imported that would switch
  the GIL on, and decoding runs without it.
- A decoder holds no state: any number of threads may use one. Every sound has its own handle.
- No more is allocated than the data can fill, whatever its header says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from nogil_loader.decode import _containers, _describe, _input, _pcm, _resample
from nogil_loader.decode._input import Encoded
from nogil_loader.decode._resample import SAME, Ratio
from nogil_loader.decode._sound import UNKNOWN, Content, Library, Sound, library
from nogil_loader.decode.errors import (
    DecodeError,
    TooLargeError,
    TruncatedError,
    UnsupportedError,
)

Samples: TypeAlias = "NDArray[np.generic]"

_DTYPES = ("float32", "float64", "int16", "int32")
_OPEN = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_START = 1 << 12
"""Bytes of a file that are read at once: most often all of its headers."""
_SHORT = 1 << 20
"""Bytes of samples that a header is believed about before the file's size is looked up."""
_BLOCK = 1 << 16
"""Frames that are read at once of a sound that doesn't say how long it is."""


@dataclass(frozen=True, repr=False)
class audio:
    """Decode a sound: bytes, a buffer or a path to an array (frames, channels).

    WAV, AIFF, AU, FLAC, Ogg Vorbis, Opus, MP3, CAF and W64, told apart by content.

    Parameters
    - ``rate``: frames a second of the result; a sound of another rate is resampled (this
      takes SciPy). None: as stored, see ``with_rate``.
    - ``channels``: 1 is the mean of all; more than one is what the sound must have, or copies
      of its only one. None: as stored.
    - ``frames``, ``offset``: read this many frames from this one on, both counted at the rate
      of the result. Where the sound is shorter the result is too, down to ``(0, channels)``,
      unless ``pad=True``, which fills up with silence.
    - ``dtype``: "float32" or "float64", -1 to 1 (sounds stored as floats may exceed it);
      "int16" or "int32", the full range of the type: the upper bits of wider integers, floats
      times 2**15 or 2**31, rounded and clipped.
    - ``with_rate``: True gives ``(array, rate)``.
    - ``allow_truncated``: True gives what can be decoded of data that ends early. (Of a cut
      Ogg file that may be nothing.)
    - ``max_samples``: frames times channels above this are a ``TooLargeError``; the default is
      1 GiB of float32. None: no limit.

    A length in the header that says "unknown" or "not yet written" is no error: the sound is
    as long as the data. A WAV file that holds more than it announces gives what it announces.
    A file without samples gives ``(0, channels)``; a file without bytes is truncated. An MP3
    without a header that counts its frames ends where it ends: nobody can tell that it was cut.

    Raises ``TruncatedError``, ``TooLargeError``, ``UnsupportedError`` (unknown formats, channels
    that have no meaning) or ``DecodeError``, all naming the path if there is one.

    >>> from nogil_loader import decode
    >>> decode.audio(rate=16_000, channels=1, frames=16_000, pad=True)
    decode.audio(rate=16000, channels=1, frames=16000, pad=True)
    """

    rate: int | None = None
    _: KW_ONLY
    channels: int | None = None
    frames: int | None = None
    offset: int = 0
    dtype: str = "float32"
    pad: bool = False
    with_rate: bool = False
    allow_truncated: bool = False
    max_samples: int | None = 1 << 28

    __repr__ = _describe.call

    def __post_init__(self) -> None:
        for name in ("rate", "channels", "max_samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} is less than 1")
        for name in ("frames", "offset"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value} is negative")
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype={self.dtype!r} is none of {', '.join(_DTYPES)}")
        if self.pad and self.frames is None:
            raise ValueError("pad=True needs frames=, the length to fill up to")

    def bind(self) -> Callable[[object], Samples | tuple[Samples, int]]:
        """This decoder for the calling thread alone."""
        return partial(_decode, self._plan())

    def __call__(self, value: Encoded) -> Samples | tuple[Samples, int]:
        """The sound in ``value``: content in memory, or the path of a file."""
        return _decode(self._plan(), value)

    def _plan(self) -> _Plan:
        return _Plan(
            library(),
            self.rate,
            self.channels,
            self.frames,
            self.offset,
            np.dtype(self.dtype),
            self.pad,
            self.with_rate,
            self.allow_truncated,
            self.max_samples,
        )


class _Plan(NamedTuple):
    open: Library
    rate: int | None
    channels: int | None
    frames: int | None
    offset: int
    dtype: np.dtype[np.generic]
    pad: bool
    with_rate: bool
    allow_truncated: bool
    max_samples: int | None


def _decode(plan: _Plan, value: object) -> Samples | tuple[Samples, int]:
    if not isinstance(value, (str, os.PathLike)):
        data, _ = _input.read(value, "decode.audio")
        layout = _pcm.layout_of(data)
        if layout is not None and layout.length <= len(data) - _pcm.HEADER:
            levels = np.ndarray(layout.shape, _pcm.LEVEL, data, _pcm.HEADER)
            if (plain := _plain(plan, layout, levels)) is not None:
                return plain
        return _sound(plan, data, partial(_slice, data), len(data))
    # By its descriptor and not its path, from whose ending libsndfile would draw conclusions.
    file = os.open(value, _OPEN)
    try:
        start = os.pread(file, _START, 0)
        layout = _pcm.layout_of(start)
        if layout is not None and layout.length <= _SHORT:
            # Not into bytes: large ones are slow to make on free-threaded CPython 3.13.
            levels = np.empty(layout.shape, _pcm.LEVEL)
            whole = os.preadv(file, [levels.data], _pcm.HEADER) == layout.length
            if whole and (plain := _plain(plan, layout, levels)) is not None:
                return plain
        return _sound(plan, file, partial(_pread, file, start), os.fstat(file).st_size)
    except DecodeError as error:
        raise type(error)(f"{os.fspath(value)!s}: {error}") from error.__cause__
    finally:
        os.close(file)


def _plain(
    plan: _Plan, layout: _pcm.Layout, levels: NDArray[np.int16]
) -> Samples | tuple[Samples, int] | None:
    """A plain sound of which all is there, at the cost of little more than its samples; None
    where it is not wanted as it is stored. ``_sound`` gives the same."""
    if plan.rate not in (None, layout.rate) or plan.channels not in (None, layout.shape[1]):
        return None
    if plan.offset or plan.frames is not None:
        levels = levels[plan.offset :][: plan.frames]
    too_short = plan.pad and len(levels) != plan.frames
    if too_short or (plan.max_samples is not None and levels.size > plan.max_samples):
        return None
    samples = _pcm.scaled(levels, plan.dtype)
    return (samples, layout.rate) if plan.with_rate else samples


def _slice(data: _input.Buffer, offset: int, count: int) -> bytes:
    return bytes(data[offset : offset + count])


def _pread(file: int, start: bytes, offset: int, count: int) -> bytes:
    """Part of a file whose beginning was read."""
    if offset + count <= len(start):
        return start[offset : offset + count]
    return os.pread(file, count, offset)


def _sound(
    plan: _Plan, content: Content, peek: _containers.Peek, size: int
) -> Samples | tuple[Samples, int]:
    sound = _opened(plan, content, peek, size)
    try:
        samples = _samples(plan, sound)
        rate = sound.rate
    finally:
        sound.close()
    return (samples, plan.rate or rate) if plan.with_rate else samples


def _opened(plan: _Plan, content: Content, peek: _containers.Peek, size: int) -> Sound:
    lack, unfinished, span = _containers.examine(peek, size)
    if lack and not plan.allow_truncated:
        raise TruncatedError(f"the data ends before the sound does: {lack}")
    sound: Sound | None = _pcm.open_pcm(peek, span) if span else None
    if sound is None:
        if unfinished:
            content = peek(0, unfinished) + b"\xff\xff\xff\xff" + peek(unfinished + 4, size)
        sound = plan.open(content)
    if sound is None:
        raise _unopened(peek(0, 12))
    return sound


def _unopened(start: bytes) -> DecodeError:
    if not start:
        return TruncatedError("the data is empty")
    kind = _containers.format_of(start)
    if not kind:
        return UnsupportedError(f"no sound of a known format: it starts with {start!r}")
    return DecodeError(f"a {kind} file that libsndfile can't open: damaged, or of a rare kind")


def _samples(plan: _Plan, sound: Sound) -> Samples:
    """The part of an opened sound that is asked for, in the form that is asked for."""
    resample = plan.rate is not None and plan.rate != sound.rate
    ratio = Ratio.of(sound.rate, plan.rate) if plan.rate and resample else SAME
    channels = plan.channels or sound.channels
    integers = plan.dtype.kind == "i"
    computed = resample or channels != sound.channels or (integers and sound.floating)
    dtype = np.dtype(np.float64) if computed and integers else plan.dtype
    start, count, skip = plan.offset, plan.frames, 0
    if resample:
        start, needed, skip = ratio.source(plan.offset, plan.frames or 0)
        count = None if plan.frames is None else needed
    samples = _read(plan, sound, start, count, dtype)
    if computed:
        samples = _computed(plan, cast("NDArray[np.floating]", samples), channels, ratio, skip)
    if plan.pad and plan.frames is not None and len(samples) < plan.frames:
        silence = np.zeros((plan.frames - len(samples), channels), samples.dtype)
        return np.concatenate([samples, silence])
    return samples


def _computed(
    plan: _Plan, samples: NDArray[np.floating], channels: int, ratio: Ratio, skip: int
) -> Samples:
    """Other channels, another rate and then, from floats, the dtype that was asked for."""
    if channels != samples.shape[1]:
        samples = _resample.with_channels(samples, channels)
    if ratio is not SAME:
        samples = _resample.resampled(samples, ratio)[skip:][: plan.frames]
    if plan.dtype.kind == "i":
        top = 2.0 ** (8 * plan.dtype.itemsize - 1)
        levels: Samples = np.clip(np.rint(samples * top), -top, top - 1).astype(plan.dtype)
        return levels
    return np.ascontiguousarray(samples)


def _read(
    plan: _Plan, sound: Sound, start: int, count: int | None, dtype: np.dtype[np.generic]
) -> Samples:
    """Frames from ``start`` on, ``count`` of them or all; fewer only where the sound ends."""
    channels = sound.channels
    if sound.frames >= UNKNOWN:
        return _read_unannounced(plan, sound, start, count, dtype)
    there = max(0, sound.frames - start)
    wanted = there if count is None else min(count, there)
    if plan.max_samples is not None and wanted * channels > plan.max_samples:
        raise TooLargeError(_too_large(plan, wanted, channels))
    samples = np.empty((wanted, channels), dtype)
    if not wanted:
        return samples
    got = sound.read(samples) if _passed(sound, start) else 0
    if got < wanted:
        if not plan.allow_truncated:
            raise TruncatedError(
                f"the data ends, or is damaged, after frame {start + got} of {sound.frames}"
            )
        return samples[:got].copy()
    return samples


def _read_unannounced(
    plan: _Plan, sound: Sound, start: int, count: int | None, dtype: np.dtype[np.generic]
) -> Samples:
    """The same for a sound that doesn't say how long it is: block by block to its end."""
    channels = sound.channels
    blocks = [np.empty((0, channels), dtype)]
    got = _BLOCK if _passed(sound, start, seek=False) else 0
    total = 0
    while got == _BLOCK and (count is None or total < count):
        block = np.empty((_BLOCK, channels), dtype)
        got = sound.read(block)
        total += got
        blocks.append(block[:got])
        if plan.max_samples is not None and total * channels > plan.max_samples:
            raise TooLargeError(_too_large(plan, total, channels))
    return np.concatenate(blocks)[:count]


def _passed(sound: Sound, frames: int, seek: bool = True) -> bool:
    """Go to this frame, by reading up to it where seeking is impossible; False if it ends."""
    if not frames or (seek and sound.seek(frames)):
        return True
    block = np.empty((min(_BLOCK, frames), sound.channels), np.float32)
    while frames > 0 and (got := sound.read(block[:frames])):
        frames -= got
    return frames == 0


def _too_large(plan: _Plan, frames: int, channels: int) -> str:
    return f"{frames} frames of {channels} channels are more than max_samples={plan.max_samples}"

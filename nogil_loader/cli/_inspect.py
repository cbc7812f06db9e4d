"""What is inside a sample: kinds by content, sizes, and with decoding shapes and durations.

Guarantees
- A kind is told by the first bytes. Where they say nothing, the name's ending decides what
  the content should be, so that a page of text called ``a.jpg`` fails as a picture.
- Nothing of a sample is kept but a few numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nogil_loader import decode
from nogil_loader.decode import _containers, _pillow
from nogil_loader.sources.base import Reader
from nogil_loader.sources.read import read

PICTURES = ("jpg", "jpeg", "png", "gif", "bmp", "tif", "tiff", "webp", "avif", "jp2")
SOUNDS = ("wav", "flac", "ogg", "opus", "mp3", "aif", "aiff", "au", "caf")
ARRAYS = ("npy", "npz")
TEXTS = ("txt", "csv", "tsv", "md", "xml", "html", "yaml", "yml", "cls", "jsonl")


class Item(NamedTuple):
    """One part of a sample. ``seconds`` is how long a sound lasts."""

    kind: str
    size: int
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    seconds: float = 0.0


Decode = Callable[[str, bytes], Item]


@dataclass(frozen=True)
class Inspect:
    """An op: the number of a sample of ``reader`` to its items.

    Reading happens in here, so that a broken member is one sample's error and not the end.
    ``ending`` is that of content without a name. Raises what reading and, with ``decoded``,
    decoding raise.
    """

    reader: Reader
    decoded: bool
    ending: str = ""

    def bind(self) -> Callable[[int], list[Item]]:
        """For one thread: its own reader and decoders."""
        read_sample, decoders = self.reader.bind(), _decoders() if self.decoded else {}
        unnamed = self.ending

        def inspect(index: int) -> list[Item]:
            sample = read_sample(index)
            fields = sample if isinstance(sample, dict) else {"": sample}
            if set(fields) == {"path"}:
                fields = {"path": fields["path"], "bytes": read(str(fields["path"]))}
            ending = _ending(str(fields["path"])) if "path" in fields else unnamed
            items = []
            for field, value in fields.items():
                if isinstance(value, (bytes, memoryview)):
                    named = field.rpartition(".")[2] if field not in ("", "bytes") else ending
                    items.append(_content(value, named, decoders))
                elif isinstance(value, (np.ndarray, np.generic)):
                    size = len(value.tobytes())  # a mapped row is read when it is copied
                    items.append(Item(field or "array", size, value.shape, str(value.dtype)))
            return items

        return inspect

    def __call__(self, index: int) -> list[Item]:
        """The items of one sample."""
        return self.bind()(index)


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lstrip(".").lower()


def kind_of(start: bytes, ending: str) -> tuple[str, str]:
    """The family (picture, sound, array, json, text or other) and the format of a content.

    >>> kind_of(b"fLaC....", "flac"), kind_of(b"Dear", "txt"), kind_of(b"Dear", "jpg")
    (('sound', 'FLAC'), ('text', 'txt'), ('picture', 'jpg'))
    """
    if start.startswith(b"\x93NUMPY"):
        return "array", "npy"
    if form := _pillow.format_of(start):
        return "picture", form
    if form := _containers.format_of(start):
        return "sound", form
    families = {"picture": PICTURES, "sound": SOUNDS, "array": ARRAYS, "text": TEXTS}
    found = next((name for name, endings in families.items() if ending in endings), "other")
    return ("json", "json") if ending == "json" else (found, ending or "no ending")


def _content(value: bytes | memoryview, ending: str, decoders: dict[str, Decode]) -> Item:
    data = bytes(value)
    family, form = kind_of(data[:32], ending)
    if family in decoders:
        return decoders[family](form, data)
    return Item(form, len(data))


def _decoders() -> dict[str, Decode]:
    image = decode.image(mode=None, dtype=None).bind()
    audio = decode.audio(with_rate=True).bind()
    array = decode.array().bind()
    text, json = decode.text().bind(), decode.json().bind()

    def picture(form: str, data: bytes) -> Item:
        pixels = image(data)
        return Item(form, len(data), pixels.shape, str(pixels.dtype))

    def sound(form: str, data: bytes) -> Item:
        samples, rate = audio(data)
        shape = (int(rate), samples.shape[1])
        return Item(form, len(data), shape, str(samples.dtype), len(samples) / rate)

    def arrays(form: str, data: bytes) -> Item:
        found = array(data)
        if isinstance(found, dict):
            names = ", ".join(f"{name}{list(one.shape)}" for name, one in found.items())
            return Item(form, len(data), None, names)
        return Item(form, len(data), found.shape, str(found.dtype))

    def checked(form: str, data: bytes) -> Item:
        (json if form == "json" else text)(data)
        return Item(form, len(data))

    return {"picture": picture, "sound": sound, "array": arrays, "json": checked, "text": checked}

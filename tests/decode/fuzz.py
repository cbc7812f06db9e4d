"""Decode mutated files of one kind and print, as JSON, how it went.

``python fuzz.py KIND COUNT [SEED]``: a program of its own, so that a crash or a hang of a
codec is the end of this process only. Warnings of the codecs are not what is looked for.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from nogil_loader import decode
from nogil_loader.testing import broken

LIMIT = 1 << 20
"""Pixels, samples and bytes: enough for every seed, and little enough to be quick."""


def decoders(kind: str) -> list[Callable[[object], object]]:
    if kind == "image":
        ops: list[decode.image | decode.audio | decode.array | decode.text | decode.json] = [
            decode.image(max_pixels=LIMIT),
            decode.image((8, 8), crop="center", mode="L", max_pixels=LIMIT),
            decode.image(16, crop=0.5, mode="RGBA", max_pixels=LIMIT),
            decode.image(mode=None, dtype=None, max_pixels=LIMIT),
            decode.image(mode="LA", dtype="uint16", draft=False, max_pixels=LIMIT),
        ]
    elif kind == "audio":
        ops = [
            decode.audio(max_samples=LIMIT),
            decode.audio(channels=1, offset=50, frames=100, dtype="int16", max_samples=LIMIT),
            decode.audio(allow_truncated=True, dtype="float64", max_samples=LIMIT),
        ]
    elif kind == "array":
        ops = [
            decode.array(max_bytes=LIMIT),
            decode.array("x", native=False, max_bytes=LIMIT),
            decode.array(memory_map=True, max_bytes=LIMIT),
        ]
    else:
        ops = [decode.text(), decode.text("utf-16"), decode.json(), decode.json(strict=True)]
    return [op.bind() for op in ops]


def seeds(kind: str) -> list[bytes]:
    if kind == "image":
        from nogil_loader.testing import broken_pictures

        return [case.data for case in broken_pictures.pictures() if case.error is None]
    if kind == "audio":
        return [case.data for case in broken.sounds() if case.error is None]
    if kind == "array":
        return [case.data for case in broken.arrays() if case.error is None]
    value = {"text": "naïve ☃ \U0001f600", "numbers": [0, -1.5e300, 2**70], "deep": [[[{}]]]}
    return [json.dumps(value, ensure_ascii=ascii).encode() for ascii in (True, False)]


def main(kind: str, count: int, seed: int = 0) -> dict[str, object]:
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    files, ops = seeds(kind), decoders(kind)
    outcomes = {"decoded": 0, "refused": 0}
    undocumented: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutated"
        for turn in range(count):
            data = broken.mutated(rng.choice(files), rng)
            op = rng.choice(ops)
            value: bytes | Path = data
            if turn % 8 == 0:
                path.write_bytes(data)
                value = path
            try:
                op(value)
                outcomes["decoded"] += 1
            except decode.DecodeError:
                outcomes["refused"] += 1
            except Exception:
                undocumented.append(f"turn {turn}, {data!r}: {traceback.format_exc(limit=-3)}")
    return {**outcomes, "undocumented": undocumented[:5]}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))

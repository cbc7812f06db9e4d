"""Sample data for tests, benchmarks and first steps: the same bytes from the same seed.

Guarantees
- Every sample is a function of (seed, index) and its parameters, never of the number of
  threads that make it, so a set can be made in parallel and extended later.
- Photographs compress and decode like photographs, text repeats words like text, sounds and
  arrays look like recordings and features: a benchmark on them is no benchmark of noise.
- Functions only; nothing is shared, so any number of threads may call them at once.

Equal bytes hold for equal versions of NumPy, Pillow and their codecs.
"""

from __future__ import annotations

import functools
import io
import json
import random
import tarfile
import wave
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nogil_loader import runtime

CLASSES = ("beach", "forest", "market", "mountain", "street")


def photo(
    index: int, *, seed: int = 0, size: tuple[int, int] = (500, 375), quality: int = 90
) -> bytes:
    """A JPEG (4:2:0) of ``size`` = (width, height) pixels that compresses like a photograph.

    Natural images owe their spectrum, amplitudes falling as 1 / frequency, and their edges
    to objects that hide each other: shapes of all sizes are laid over one another and given
    textures with that spectrum, in luma and more weakly in chroma, and a little noise. At
    the default size and quality a file has 60-100 kB and takes about 15 ms to make.
    Source: the dead-leaves model, e.g. Lee, Mumford and Huang, "Occlusion models for natural
    images", IJCV 41 (2001). Needs Pillow.

    >>> 50_000 < len(photo(0)) < 110_000
    True
    """
    from PIL import Image, ImageDraw

    rng = np.random.default_rng([seed, index])
    width, height = size
    canvas = Image.new("YCbCr", size, tuple(rng.integers((60, 105, 105), (200, 150, 150)).tolist()))
    draw = ImageDraw.Draw(canvas)
    leaves = 150
    radii = min(size) / (2 + 60 * rng.random(leaves))
    centres = rng.random((leaves, 2)) * size
    colours = rng.normal((120, 122, 134), (45, 11, 13), (leaves, 3)).clip(0, 255).astype(int)
    stretch = rng.uniform(0.5, 1.5, leaves)
    for (x, y), r, s, colour in zip(
        centres.tolist(), radii.tolist(), stretch.tolist(), colours.tolist(), strict=True
    ):
        shape = draw.ellipse if s < 1 else draw.rectangle
        shape((x - r, y - r * s, x + r, y + r * s), fill=tuple(colour))
    pixels = np.asarray(canvas).astype(np.float32)
    noise = rng.standard_normal((height, width), dtype=np.float32)
    pixels[..., 0] += rng.uniform(20, 36) * texture(rng, height, width, 1.2) + 2 * noise
    pixels[..., 1] += 6 * texture(rng, height, width, 1.6)
    pixels[..., 2] += 6 * texture(rng, height, width, 1.6)
    picture = Image.merge(
        "YCbCr", [Image.fromarray(plane) for plane in np.moveaxis(_bytes(pixels), 2, 0)]
    )
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return out.getvalue()


def texture(rng: np.random.Generator, height: int, width: int, slope: float) -> NDArray[np.float32]:
    """A random field of mean 0 and deviation 1, amplitudes falling as 1 / frequency**slope."""
    vertical = np.fft.fftfreq(height).astype(np.float32)[:, None]
    frequency = np.hypot(vertical, np.fft.rfftfreq(width).astype(np.float32))
    frequency[0, 0] = np.inf  # no constant part
    waves = rng.standard_normal((2, *frequency.shape), dtype=np.float32)
    spectrum = (waves[0] + 1j * waves[1]) * frequency ** np.float32(-slope)
    field = np.fft.irfft2(spectrum, s=(height, width)).astype(np.float32)
    return np.asarray(field / field.std(), dtype=np.float32)


def _bytes(pixels: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write_photos(
    folder: Path,
    count: int,
    *,
    seed: int = 0,
    size: tuple[int, int] = (500, 375),
    quality: int = 90,
    threads: int | None = None,
) -> list[Path]:
    """Write ``count`` photographs as ``folder/CLASS/000000.jpg``, classes in turn.

    Uses as many threads as there are usable cores, or ``threads``. Returns the paths in the
    order of their indices.
    """
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    paths = [folder / CLASSES[i % len(CLASSES)] / f"{i:06}.jpg" for i in range(count)]
    make = functools.partial(photo, seed=seed, size=size, quality=quality)
    _write_all(paths, make, threads)
    return paths


def _write_all(paths: list[Path], make: Callable[[int], bytes], threads: int | None) -> None:
    def write(index: int) -> None:
        paths[index].write_bytes(make(index))

    with ThreadPoolExecutor(threads or runtime.usable_cores()) as pool:
        for _ in pool.map(write, range(len(paths))):
            pass


# The commonest words of English come first, as their rank decides how often they are drawn.
_COMMON = """
    the of and to in a is that for it as was with be by on not he his but at are this have from
    or had an they which one you were all her she there would their we him been has when who
    will no more if out so up said what its about than into them can only other time new some
    could these two may first then do any like my now over such our man me even most made after
    also did many off before must well back through years where much your way down should
    because long each just state those people too how little good world very make year still see
    work life men day get here between both under last never same house while part might great
    come since against right used take three himself few place during without again small water
    river harbour light morning evening window garden paper engine signal station winter copper
    island letter captain market bridge mountain silver thunder lantern meadow orchard compass
    village forest planet measure quiet sudden yellow ancient narrow broken
"""
_WORDS = tuple(_COMMON.split())
_WEIGHTS = tuple(1 / (rank + 2.7) for rank in range(len(_WORDS)))  # the Zipf-Mandelbrot law


def record(index: int, *, seed: int = 0) -> dict[str, object]:
    """A document of about 0.7 kB as JSON: text of 60-140 words with nested fields about it.

    >>> sorted(record(3))
    ['author', 'id', 'published', 'stats', 'tags', 'text', 'title']
    """
    rng = random.Random(f"{seed}/{index}")  # a string is hashed alike by every process
    words = rng.choices(_WORDS, _WEIGHTS, k=rng.randint(60, 140))
    sentences = []
    while words:
        cut = rng.randint(5, 18)
        sentence, words = words[:cut], words[cut:]
        sentences.append(" ".join(sentence).capitalize() + rng.choice(("." * 8) + "?!"))
    return {
        "id": index,
        "title": " ".join(rng.choices(_WORDS[40:], k=4)).title(),
        "text": " ".join(sentences),
        "author": {
            "name": f"{rng.choice(_WORDS[-30:]).title()} {rng.choice(_WORDS[-60:]).title()}",
            "joined": f"{rng.randint(1998, 2026)}-{rng.randint(1, 12):02}",
            "followers": int(rng.paretovariate(1.1) * 10),
        },
        "tags": rng.sample(_WORDS[-40:], rng.randint(1, 5)),
        "stats": {"views": int(rng.paretovariate(0.9) * 100), "score": round(rng.random(), 4)},
        "published": rng.random() < 0.9,
    }


def write_json_lines(path: Path, count: int, *, seed: int = 0) -> Path:
    """Write ``count`` records, one JSON object on each line of ``path`` (UTF-8)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for index in range(count):
            file.write(json.dumps(record(index, seed=seed), ensure_ascii=False) + "\n")
    return path


def clip(
    index: int, *, seed: int = 0, seconds: float = 1.0, rate: int = 16_000, channels: int = 1
) -> NDArray[np.int16]:
    """A sound of shape (frames, channels): a gliding tone with overtones in coloured noise."""
    rng = np.random.default_rng([seed, index])
    frames = round(seconds * rate)
    time = np.arange(frames) / rate
    pitch = rng.uniform(90, 300) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(0.5, 3) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(rng.uniform(0.2, 1) / k * np.sin(k * phase) for k in range(1, 9))
    loudness = 0.5 - 0.5 * np.cos(2 * np.pi * rng.uniform(1, 4) * time)
    noise = np.stack([texture(rng, 1, 2 * frames, 0.7)[0, :frames] for _ in range(channels)], 1)
    sound = 0.12 * (voice * loudness)[:, None] + 0.02 * noise
    return np.asarray(np.clip(sound, -1, 1) * 32767, dtype=np.int16)


def wav(sound: NDArray[np.int16], rate: int = 16_000) -> bytes:
    """A 16-bit WAV file of samples shaped (frames, channels)."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(sound.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(sound.astype("<i2").tobytes())
    return out.getvalue()


def flac(sound: NDArray[np.int16], rate: int = 16_000) -> bytes:
    """A 16-bit FLAC file of samples shaped (frames, channels). Needs libsndfile."""
    from nogil_loader.testing import sounds

    return sounds.encode(sound / 32768, rate, "FLAC PCM_16")


def write_clips(
    folder: Path,
    count: int,
    *,
    seed: int = 0,
    seconds: float = 1.0,
    kind: str = "wav",
    threads: int | None = None,
) -> list[Path]:
    """Write ``count`` mono 16 kHz clips as ``folder/000000.wav``, or ``.flac``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:06}.{kind}" for i in range(count)]
    encode = {"wav": wav, "flac": flac}[kind]

    def make(index: int) -> bytes:
        return encode(clip(index, seed=seed, seconds=seconds))

    _write_all(paths, make, threads)
    return paths


def features(
    index: int, *, seed: int = 0, shape: tuple[int, ...] = (192, 196)
) -> NDArray[np.float32]:
    """A float32 array of ``shape``; the default has 150 kB."""
    rng = np.random.default_rng([seed, index])
    return rng.standard_normal(shape, dtype=np.float32)


def write_arrays(
    folder: Path,
    count: int,
    *,
    seed: int = 0,
    shape: tuple[int, ...] = (192, 196),
    kind: str = "npy",
    threads: int | None = None,
) -> list[Path]:
    """Write ``count`` arrays as ``folder/000000.npy``, or ``.npz`` with members x and y."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:06}.{kind}" for i in range(count)]

    def make(index: int) -> bytes:
        out = io.BytesIO()
        array = features(index, seed=seed, shape=shape)
        if kind == "npz":
            np.savez(out, x=array, y=np.int64(index))
        else:
            np.save(out, array)
        return out.getvalue()

    _write_all(paths, make, threads)
    return paths


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """Write (name, data) pairs, in their order, as a tar shard; every date is zero."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as shard:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))
    return path

"""Sample data is the same from the same seed and looks like what it stands for."""

from __future__ import annotations

import io
import json
import tarfile
import wave
import zlib
from pathlib import Path

import numpy as np
import pytest

from nogil_loader.testing import media


def test_a_photo_is_a_function_of_seed_and_index() -> None:
    pytest.importorskip("PIL")
    small = (100, 75)
    assert media.photo(3, seed=1, size=small) == media.photo(3, seed=1, size=small)
    assert media.photo(3, seed=1, size=small) != media.photo(4, seed=1, size=small)
    assert media.photo(3, seed=1, size=small) != media.photo(3, seed=2, size=small)


def test_photos_compress_and_look_like_photographs() -> None:
    image = pytest.importorskip("PIL.Image")
    for index in range(4):
        data = media.photo(index)
        assert 55_000 < len(data) < 100_000
        with image.open(io.BytesIO(data)) as picture:
            assert (picture.format, picture.size, picture.mode) == ("JPEG", (500, 375), "RGB")
            luma, cb, cr = np.moveaxis(np.asarray(picture.convert("YCbCr"), np.float64), 2, 0)
        assert luma.std() > 25
        assert min(cb.std(), cr.std()) > 5
        # Amplitudes fall about as 1 / frequency, hence power by frequency**-2 or so.
        power = np.abs(np.fft.rfft(luma - luma.mean(), axis=1)).mean(0) ** 2
        bins = np.arange(4, 120)
        slope = np.polyfit(np.log(bins), np.log(power[bins]), 1)[0]
        assert -3.2 < slope < -1.4


def test_photos_do_not_depend_on_the_number_of_threads(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    one, three = (
        media.write_photos(tmp_path / str(threads), 7, size=(64, 48), threads=threads)
        for threads in (1, 3)
    )
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in three]
    assert [p.relative_to(tmp_path / "3").as_posix() for p in three][:2] == [
        "beach/000000.jpg",
        "forest/000001.jpg",
    ]


def test_records_are_the_same_in_every_process_and_repeat_words_like_text(tmp_path: Path) -> None:
    path = media.write_json_lines(tmp_path / "deep" / "a.jsonl", 200, seed=5)
    data = path.read_bytes()
    assert zlib.crc32(data) == 569379581  # whatever this process hashes strings with
    records = [json.loads(line) for line in data.splitlines()]
    assert [r["id"] for r in records] == list(range(200))
    assert records[7] == media.record(7, seed=5)
    assert 400 < len(data) / 200 < 1200
    assert 0.25 < len(zlib.compress(data)) / len(data) < 0.55


def test_a_clip_survives_its_wav_file() -> None:
    sound = media.clip(2, seconds=0.25, rate=8000, channels=2)
    assert (sound.shape, sound.dtype) == ((2000, 2), np.int16)
    with wave.open(io.BytesIO(media.wav(sound, 8000))) as file:
        assert (file.getnchannels(), file.getframerate(), file.getnframes()) == (2, 8000, 2000)
        assert np.array_equal(np.frombuffer(file.readframes(2000), "<i2").reshape(-1, 2), sound)
    assert 500 < np.abs(sound).max() < 32767


def test_clips_and_arrays_are_written_in_order(tmp_path: Path) -> None:
    clips = media.write_clips(tmp_path / "clips", 3, seconds=0.1)
    assert clips[2].read_bytes() == media.wav(media.clip(2, seconds=0.1))
    npy = media.write_arrays(tmp_path / "npy", 3, shape=(4, 5))
    assert np.array_equal(np.load(npy[1]), media.features(1, shape=(4, 5)))
    npz = media.write_arrays(tmp_path / "npz", 2, shape=(4, 5), kind="npz")
    with np.load(npz[1]) as members:
        assert np.array_equal(members["x"], media.features(1, shape=(4, 5)))
        assert members["y"] == 1


def test_a_tar_shard_holds_its_members_in_order_and_no_dates(tmp_path: Path) -> None:
    members = [("a/1.txt", b"one"), ("a/ünïcode-" + "x" * 120, b"two"), ("empty", b"")]
    shard = media.write_tar(tmp_path / "s.tar", members)
    with tarfile.open(shard) as tar:
        read = [(m.name, tar.extractfile(m)) for m in tar]
        assert [(name, file.read() if file else None) for name, file in read] == members
    assert media.write_tar(tmp_path / "t.tar", members).read_bytes() == shard.read_bytes()

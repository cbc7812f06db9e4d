"""decode.audio: every format and depth, parts of sounds, and headers that lie."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from nogil_loader import decode
from nogil_loader.decode import _audio, _sndfile_ctypes, _sound
from nogil_loader.testing.sounds import FORMATS, encode

RATE = 16_000
LOSSY = ("WAV PCM_U8", "WAV ULAW", "Ogg VORBIS", "Ogg OPUS", "MP3")
# Opus has rates of its own, and every rate is 48 kHz inside.
RATES = dict.fromkeys(FORMATS, RATE) | {"Ogg OPUS": 48_000, "MP3": 44_100}


def tone(frames: int = 6000, channels: int = 1, rate: int = RATE) -> NDArray[np.float64]:
    """Two sines a channel, well inside the range, that fade in and out."""
    t = np.arange(frames)[:, None] / rate
    pitch = 220.0 * (1 + np.arange(channels))
    fade = np.minimum(1, np.minimum(t, t[::-1]) * 50)
    sound: NDArray[np.float64] = fade * (
        0.5 * np.sin(2 * np.pi * pitch * t) + 0.2 * np.sin(2 * np.pi * 997 * t)
    )
    return sound


try:
    _sndfile_ctypes.path()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)


def samples_of(value: object, **options: object) -> NDArray[np.generic]:
    result = decode.audio(**options)(value)  # type: ignore[arg-type]
    assert isinstance(result, np.ndarray)
    return result


def wav(
    body: bytes, *, length: int | None = None, riff: int | None = None, tail: bytes = b""
) -> bytes:
    """16-bit mono WAV by hand, with any lengths in its header."""
    fmt = struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
    data = b"data" + struct.pack("<I", len(body) if length is None else length) + body
    inner = b"WAVEfmt " + struct.pack("<I", 16) + fmt + data + tail
    return b"RIFF" + struct.pack("<I", len(inner) if riff is None else riff) + inner


PCM = (np.arange(-500, 500) * 31).astype("<i2")


class TestFormats:
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("channels", [1, 2])
    def test_every_format_comes_back_as_frames_by_channels(self, form: str, channels: int) -> None:
        rate = RATES[form]
        sound = tone(6000, channels, rate)
        data = encode(sound, rate, form)
        result = decode.audio(with_rate=True)(data)
        assert isinstance(result, tuple)
        array, got_rate = result
        assert got_rate == rate
        assert array.dtype == np.float32
        assert array.shape == (6000, channels)
        assert array.flags.c_contiguous
        error = np.abs(array.astype(float) - sound).max()
        assert error < (0.06 if form in LOSSY else 1e-4)

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32"])
    @pytest.mark.parametrize("form", FORMATS)
    def test_every_dtype_says_the_same(self, form: str, dtype: str) -> None:
        data = encode(tone(3000, 1, RATES[form]), RATES[form], form)
        array = samples_of(data, dtype=dtype)
        assert array.dtype == dtype
        scale = {"int16": 2.0**15, "int32": 2.0**31}.get(dtype, 1.0)
        reference = samples_of(data, dtype="float64").astype(float)
        assert np.abs(array.astype(float) / scale - reference).max() < 2.0**-14

    def test_16_bit_samples_are_exact(self) -> None:
        data = wav(PCM.tobytes())
        np.testing.assert_array_equal(samples_of(data, dtype="int16")[:, 0], PCM)
        np.testing.assert_array_equal(samples_of(data)[:, 0], PCM.astype(np.float32) / 32768)

    def test_24_bit_samples_keep_their_bits(self) -> None:
        values = np.array([0.5, -1.0, 2.0**-23, -(2.0**-23), 0.999])
        array = samples_of(encode(values, RATE, "WAV PCM_24"), dtype="int32")[:, 0]
        levels = np.rint(values * (2**23 - 1)).astype(np.int64)  # libsndfile's full scale
        np.testing.assert_array_equal(array, levels * 256)

    def test_floats_beyond_the_range_are_kept_as_floats_and_clipped_as_integers(self) -> None:
        data = encode(np.array([0.25, 1.5, -3.0]), RATE, "WAV FLOAT")
        np.testing.assert_array_equal(
            samples_of(data)[:, 0], np.array([0.25, 1.5, -3.0], np.float32)
        )
        assert samples_of(data, dtype="int16")[:, 0].tolist() == [8192, 32767, -32768]

    @pytest.mark.parametrize("channels", [6, 24, 255])
    def test_many_channels(self, channels: int) -> None:
        sound = tone(50, channels)
        array = samples_of(encode(sound, RATE, "WAVEX PCM_24"))
        assert np.abs(array.astype(float) - sound).max() < 1e-6

    def test_both_ways_to_libsndfile_give_the_same_bits(self) -> None:
        if _sound.needs_ctypes():
            pytest.skip("soundfile would switch the GIL on")
        pytest.importorskip("soundfile")
        from nogil_loader.decode import _sndfile_cffi

        for form, rate in RATES.items():
            data = encode(tone(9000, 2, rate), rate, form)
            for start in (0, 4321):
                arrays = []
                for library in (_sndfile_ctypes.library(), _sndfile_cffi.library()):
                    sound = library(data)
                    assert sound is not None
                    if start and not sound.seek(start):  # an MP3
                        assert sound.read(np.empty((start, 2), np.float32)) == start
                    array = np.empty((9000 - start, 2), np.float32)
                    assert sound.read(array) == 9000 - start
                    sound.close()
                    arrays.append(array)
                np.testing.assert_array_equal(arrays[0], arrays[1], err_msg=form)


class TestPcm:
    """16-bit WAV, which NumPy reads, is what libsndfile makes of it."""

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32"])
    @pytest.mark.parametrize("channels", [1, 2, 7])
    def test_every_level_is_the_same_bit_for_bit(self, dtype: str, channels: int) -> None:
        levels = np.arange(-32768, 32768).astype("<i2")[: 65536 // channels * channels]
        fmt = struct.pack("<HHIIHH", 1, channels, RATE, 2 * RATE * channels, 2 * channels, 16)
        body = b"WAVEfmt \x10\0\0\0" + fmt + b"data" + struct.pack("<I", levels.nbytes)
        data = b"RIFF" + struct.pack("<I", len(body) + levels.nbytes) + body + levels.tobytes()
        got = samples_of(data, dtype=dtype)
        sound = _sndfile_ctypes.library()(data)
        assert sound is not None
        expected = np.empty((sound.frames, channels), dtype)
        assert sound.read(expected) == len(got) == len(expected)
        assert (sound.rate, sound.channels) == (RATE, channels)
        sound.close()
        np.testing.assert_array_equal(got, expected)
        assert got.tobytes() == expected.tobytes()
        assert got.flags.writeable

    def test_it_needs_no_library(self) -> None:
        class NoLibrary:
            def __call__(self, content: object, /) -> None:
                raise AssertionError("asked for libsndfile")

        plan = decode.audio()._plan()._replace(open=NoLibrary())
        data = wav(PCM.tobytes())
        array = _audio._decode(plan, data)
        assert isinstance(array, np.ndarray)
        assert array.shape == (1000, 1)

    @pytest.mark.parametrize("channels", [1, 2])
    def test_the_short_way_and_the_long_one_give_the_same(
        self, channels: int, tmp_path: Path
    ) -> None:
        data = encode(tone(3000, channels), RATE, "WAV PCM_16")
        path = tmp_path / "a.wav"
        path.write_bytes(data)
        for op in (
            decode.audio(dtype="int16"),
            decode.audio(RATE, offset=2990, frames=20),
            decode.audio(channels=2, offset=100, frames=2000),
            decode.audio(offset=4000),
            decode.audio(offset=2990, frames=20, pad=True),
            decode.audio(RATE, with_rate=True),
        ):
            plan = op._plan()
            expected = _audio._sound(plan, data, partial(_audio._slice, data), len(data))
            for value in (data, path):
                got = op(value)
                if plan.with_rate:
                    assert got[1] == expected[1] == RATE
                    got, longer = got[0], expected[0]
                else:
                    longer = expected
                assert isinstance(got, np.ndarray) and isinstance(longer, np.ndarray)
                assert got.dtype == longer.dtype
                np.testing.assert_array_equal(got, longer)

    def test_a_file_of_more_than_a_megabyte(self, tmp_path: Path) -> None:
        levels = np.arange(700_000).astype("<i2")
        path = tmp_path / "long.wav"
        path.write_bytes(wav(levels.tobytes()))
        np.testing.assert_array_equal(samples_of(path, dtype="int16")[:, 0], levels)


class TestInputs:
    def test_bytes_buffers_and_paths_give_the_same(self, tmp_path: Path) -> None:
        for form in ("WAV PCM_16", "FLAC PCM_16", "MP3"):
            data = encode(tone(5000, 1, 44_100), 44_100, form)
            path = tmp_path / "sound.raw"  # the name lies; the content counts
            path.write_bytes(data)
            expected = samples_of(data)
            for value in (bytearray(data), memoryview(b"xx" + data)[2:], path, str(path)):
                np.testing.assert_array_equal(samples_of(value), expected)

    def test_no_descriptor_stays_open(self, tmp_path: Path) -> None:
        path = tmp_path / "a.wav"
        path.write_bytes(wav(PCM.tobytes()))
        cut = tmp_path / "cut.wav"
        cut.write_bytes(wav(PCM.tobytes())[:-2])
        before = os.listdir("/proc/self/fd")
        for _ in range(20):
            samples_of(path)
            with pytest.raises(decode.TruncatedError):
                samples_of(cut)
        assert len(os.listdir("/proc/self/fd")) == len(before)

    def test_the_path_is_named_in_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.wav"
        path.write_bytes(wav(PCM.tobytes())[:-2])
        with pytest.raises(decode.TruncatedError, match=r"cut\.wav: .* 2000 bytes .* 1998"):
            samples_of(path)
        with pytest.raises(FileNotFoundError):
            samples_of(tmp_path / "none.wav")

    def test_a_raw_extension_is_not_believed(self, tmp_path: Path) -> None:
        path = tmp_path / "speech.gsm"
        path.write_bytes(bytes(330))
        with pytest.raises(decode.UnsupportedError, match="no sound of a known format"):
            samples_of(path)


class TestParts:
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize(("offset", "frames"), [(0, 100), (1234, 2000), (5990, 100), (5999, 1)])
    def test_a_part_is_that_part_of_the_whole(self, form: str, offset: int, frames: int) -> None:
        data = encode(tone(6000, 2, RATES[form]), RATES[form], form)
        whole = samples_of(data)
        part = samples_of(data, offset=offset, frames=frames)
        np.testing.assert_array_equal(part, whole[offset : offset + frames])
        np.testing.assert_array_equal(samples_of(data, offset=offset), whole[offset:])

    def test_a_part_of_a_long_mp3_is_not_found_by_guessing(self) -> None:
        data = encode(tone(20_000, 1, 44_100), 44_100, "MP3")
        part = samples_of(data, offset=9_001, frames=5_000)
        np.testing.assert_array_equal(part, samples_of(data)[9_001:14_001])

    def test_beyond_the_end_there_is_less_or_nothing(self) -> None:
        data = wav(PCM.tobytes())
        assert samples_of(data, frames=5000).shape == (1000, 1)
        assert samples_of(data, offset=990, frames=100).shape == (10, 1)
        assert samples_of(data, offset=5000).shape == (0, 1)
        assert samples_of(data, frames=0).shape == (0, 1)

    def test_pad_fills_up_with_silence(self) -> None:
        array = samples_of(wav(PCM.tobytes()), frames=1500, pad=True, dtype="int16")
        assert array.shape == (1500, 1)
        np.testing.assert_array_equal(array[:1000, 0], PCM)
        assert not array[1000:].any()


class TestChannels:
    def test_one_channel_is_the_mean_of_all(self) -> None:
        sound = tone(500, 4)
        array = samples_of(encode(sound, RATE, "WAV DOUBLE"), channels=1, dtype="float64")
        np.testing.assert_allclose(array[:, 0].astype(float), sound.mean(axis=1), atol=1e-12)

    def test_opposite_16_bit_channels_cancel(self) -> None:
        left = tone(500)
        data = encode(np.concatenate([left, -left], axis=1), RATE, "WAV PCM_16")
        assert np.abs(samples_of(data, channels=1, dtype="int16")).max() <= 1

    def test_one_channel_becomes_many(self) -> None:
        array = samples_of(wav(PCM.tobytes()), channels=3, dtype="int16")
        assert array.shape == (1000, 3)
        assert (array == PCM[:, None]).all()

    def test_other_numbers_are_refused(self) -> None:
        data = encode(tone(50, 6), RATE, "WAV PCM_16")
        with pytest.raises(decode.UnsupportedError, match="6 channels can become 1 or stay 6"):
            samples_of(data, channels=2)


class TestRate:
    @pytest.fixture(autouse=True)
    def _scipy(self) -> None:
        pytest.importorskip("scipy.signal")

    @pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000])
    def test_a_tone_stays_that_tone(self, rate: int) -> None:
        data = encode(tone(RATE), RATE, "WAV FLOAT")
        result = decode.audio(rate, with_rate=True)(data)
        assert isinstance(result, tuple)
        array, got_rate = result
        assert got_rate == rate
        assert array.shape == (rate, 1)
        expected = tone(rate, 1, rate)
        middle = slice(rate // 10, -rate // 10)
        assert np.abs(array[middle].astype(float) - expected[middle]).max() < 2e-3

    @pytest.mark.parametrize("rate", [8_000, 11_025, 44_100])
    @pytest.mark.parametrize(("offset", "frames"), [(0, 500), (777, 1000), (2001, 10**6)])
    def test_a_part_is_that_part_of_the_whole(self, rate: int, offset: int, frames: int) -> None:
        data = encode(tone(6000, 2), RATE, "WAV DOUBLE")
        whole = samples_of(data, rate=rate, dtype="float64")
        assert len(whole) == -(-6000 * rate // RATE)
        part = samples_of(data, rate=rate, dtype="float64", offset=offset, frames=frames)
        np.testing.assert_allclose(
            part.astype(float), whole[offset : offset + frames].astype(float), atol=1e-12
        )

    def test_integers_are_rounded_after_the_filter(self) -> None:
        data = encode(tone(4000), RATE, "WAV PCM_16")
        array = samples_of(data, rate=8_000, dtype="int16")
        exact = samples_of(data, rate=8_000, dtype="float64").astype(float)
        assert array.dtype == np.int16
        assert np.abs(array - exact * 2**15).max() <= 0.5

    def test_without_scipy_the_error_names_the_extra(self) -> None:
        script = (
            "import sys; sys.modules['scipy.signal'] = None\n"
            "from nogil_loader import decode\n"
            "data = sys.stdin.buffer.read()\n"
            "assert decode.audio(16000)(data).shape == (1000, 1)\n"  # nothing to resample
            "try: decode.audio(8000)(data)\n"
            "except ImportError as error: print(error)\n"
        )
        out = subprocess.run(
            [sys.executable, "-c", script],
            input=wav(PCM.tobytes()),
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert b"nogil_loader[resample]" in out.stdout


class TestHeaders:
    @pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0x7FFFF024])
    @pytest.mark.parametrize("riff", [None, 0xFFFFFFFF, 0])
    def test_a_length_that_says_unknown_lasts_to_the_end(
        self, length: int, riff: int | None
    ) -> None:
        data = wav(PCM.tobytes(), length=length, riff=riff)
        np.testing.assert_array_equal(samples_of(data, dtype="int16")[:, 0], PCM)

    @pytest.mark.parametrize("riff", [0xFFFFFFFF, 0, 36])
    def test_a_length_never_filled_in_lasts_to_the_end(self, tmp_path: Path, riff: int) -> None:
        data = wav(PCM.tobytes(), length=0, riff=riff)
        path = tmp_path / "killed.wav"
        path.write_bytes(data)
        for value in (data, path):
            np.testing.assert_array_equal(samples_of(value, dtype="int16")[:, 0], PCM)

    def test_no_samples_before_another_chunk_are_no_samples(self) -> None:
        data = wav(b"", tail=b"LIST" + struct.pack("<I", 4) + b"INFO")
        assert samples_of(data).shape == (0, 1)
        assert samples_of(wav(b"")).shape == (0, 1)
        assert samples_of(wav(b""), frames=10, pad=True).shape == (10, 1)

    @pytest.mark.parametrize("length", [2002, 100_000, 0x7FFE0000])
    def test_more_announced_than_there_is_truncated(self, length: int) -> None:
        data = wav(PCM.tobytes(), length=length)
        with pytest.raises(decode.TruncatedError, match=f"{length} bytes of samples"):
            samples_of(data)
        kept = samples_of(data, allow_truncated=True, dtype="int16")
        np.testing.assert_array_equal(kept[:, 0], PCM)

    def test_less_announced_than_there_is_what_is_announced(self) -> None:
        assert samples_of(wav(PCM.tobytes(), length=1000)).shape == (500, 1)

    @pytest.mark.parametrize(
        "form", ["WAV PCM_16", "WAVEX PCM_24", "RF64 PCM_16", "AIFF PCM_16", "AU PCM_16",
                 "FLAC PCM_16", "Ogg VORBIS", "Ogg OPUS", "MP3"],
    )  # fmt: skip
    @pytest.mark.parametrize("keep", [0.0, 0.002, 0.5, 0.97])
    def test_data_cut_anywhere_is_refused(self, form: str, keep: float) -> None:
        data = encode(tone(20_000, 1, RATES[form]), RATES[form], form)
        cut = data[: int(len(data) * keep)]
        with pytest.raises(decode.TruncatedError if keep in (0.0, 0.97) else decode.DecodeError):
            samples_of(cut)

    @pytest.mark.parametrize("form", ["WAV PCM_16", "AIFF PCM_16", "FLAC PCM_16", "MP3"])
    def test_what_is_left_of_cut_data_can_be_asked_for(self, tmp_path: Path, form: str) -> None:
        data = encode(tone(20_000, 1, RATES[form]), RATES[form], form)
        path = tmp_path / "cut"
        path.write_bytes(data[: len(data) // 2])
        whole = samples_of(data)
        for value in (path, path.read_bytes()):
            part = samples_of(value, allow_truncated=True)
            assert 4_000 < len(part) < 12_000
            stop = len(part) - 1200  # the last frame of an MP3 may lack its other half
            np.testing.assert_array_equal(part[:stop], whole[:stop])

    @pytest.mark.parametrize("form", ["Ogg VORBIS", "Ogg OPUS"])
    def test_ogg_cut_between_two_pages_is_refused(self, form: str) -> None:
        data = encode(tone(48_000 * 3, 1, 48_000), 48_000, form)
        last = data.rindex(b"OggS\0")
        assert data.count(b"OggS\0") > 3
        with pytest.raises(decode.TruncatedError, match="page that ends an Ogg stream"):
            samples_of(data[:last])

    def test_flac_of_unknown_length_lasts_to_the_end(self) -> None:
        data = flac_with_length(encode(tone(100_000), RATE, "FLAC PCM_16"), 0)
        expected = samples_of(encode(tone(100_000), RATE, "FLAC PCM_16"))
        np.testing.assert_array_equal(samples_of(data), expected)
        np.testing.assert_array_equal(
            samples_of(data, offset=70_001, frames=20_000), expected[70_001:90_001]
        )
        assert samples_of(data, offset=200_000).shape == (0, 1)
        with pytest.raises(decode.TooLargeError):
            samples_of(data, max_samples=70_000)

    def test_flac_that_announces_more_than_it_has_is_truncated(self) -> None:
        data = flac_with_length(encode(tone(5000), RATE, "FLAC PCM_16"), 9000)
        with pytest.raises(decode.TruncatedError, match="after frame 5000 of 9000"):
            samples_of(data)
        assert samples_of(data, allow_truncated=True).shape == (5000, 1)

    def test_a_header_alone_fills_no_memory(self) -> None:
        data = flac_with_length(encode(tone(5000), RATE, "FLAC PCM_16"), 1 << 35)
        with pytest.raises(decode.TooLargeError, match="34359738368 frames"):
            samples_of(data)

    def test_the_limit_counts_what_is_read(self) -> None:
        data = wav(PCM.tobytes())
        with pytest.raises(decode.TooLargeError, match="1000 frames of 1 channels"):
            samples_of(data, max_samples=999)
        assert samples_of(data, max_samples=999, frames=999).shape == (999, 1)

    @pytest.mark.parametrize("data", [b"junk" * 100, bytes(1000), b"RIFF\0\0\0\0AVI ", b"OggS"])
    def test_what_is_no_sound_is_refused(self, data: bytes) -> None:
        with pytest.raises(decode.DecodeError):
            samples_of(data)


def flac_with_length(data: bytes, frames: int) -> bytes:
    """The 36 bits of STREAMINFO that count frames, replaced."""
    fields = int.from_bytes(data[18:26], "big") >> 36 << 36 | frames
    return data[:18] + fields.to_bytes(8, "big") + data[26:]


class TestValue:
    def test_equal_decoders_are_equal_and_print_as_the_code_that_makes_them(self) -> None:
        op = decode.audio(16_000, channels=1, dtype="int16")
        assert repr(op) == "decode.audio(rate=16000, channels=1, dtype='int16')"
        assert eval(repr(op)) == op == pickle.loads(pickle.dumps(op))

    @pytest.mark.parametrize(
        "options",
        [
            {"rate": 0},
            {"channels": 0},
            {"frames": -1},
            {"offset": -1},
            {"dtype": "uint8"},
            {"pad": True},
            {"max_samples": 0},
        ],
    )
    def test_what_cannot_be_meant_is_refused_when_the_decoder_is_made(
        self, options: dict[str, object]
    ) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            decode.audio(**options)  # type: ignore[arg-type]

    def test_four_threads_get_identical_arrays_from_one_decoder(self) -> None:
        data = [encode(tone(3000, 1, r), r, f) for f, r in RATES.items()] + [b"OggS junk", b"junk"]
        op = decode.audio()
        expected = [outcome(op, d) for d in data]
        results: list[list[object]] = [[] for _ in range(4)]
        start = threading.Barrier(4)

        def work(k: int) -> None:
            own = op.bind() if k % 2 else op
            start.wait()
            results[k].extend(outcome(own, d) for _ in range(3) for d in data)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            assert result == expected * 3

    def test_decoding_leaves_the_gil_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "a.flac"
        path.write_bytes(encode(tone(), RATE, "FLAC PCM_16"))
        script = (
            "import sys; from nogil_loader import decode\n"
            "enabled = getattr(sys, '_is_gil_enabled', lambda: True)\n"
            "before = enabled()\n"
            "assert decode.audio()(sys.argv[1]).shape == (6000, 1)\n"
            "assert enabled() == before, 'the GIL was switched on'\n"
        )
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)


def outcome(op: Callable[[bytes], object], data: bytes) -> object:
    """What a decoder makes of the data, so that two can be compared."""
    try:
        array = op(data)
    except decode.DecodeError as error:
        return type(error), str(error)
    assert isinstance(array, np.ndarray)
    return array.shape, array.tobytes()

"""decode.image: what every kind of picture becomes, and what is refused."""

from __future__ import annotations

import io
import pickle
import struct
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

PIL = pytest.importorskip("PIL")
from PIL import Image, ImageFile, ImageOps  # noqa: E402

from nogil_loader import decode  # noqa: E402

RNG = np.random.default_rng(3)


def photo(height: int, width: int) -> NDArray[np.uint8]:
    """Smooth enough that JPEG and resizing change it little."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    planes = [x, y, (x + y) / 2]
    return np.stack([(40 + 170 * p).round() for p in planes], axis=-1).astype(np.uint8)


def encoded(picture: Image.Image, form: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def png_with(picture: Image.Image, form: str = "PNG", **options: object) -> bytes:
    return encoded(picture, form, **options)


PHOTO = photo(60, 80)


class TestShapes:
    def test_a_colour_picture_is_height_width_3_in_uint8(self) -> None:
        array = decode.image()(encoded(Image.fromarray(PHOTO), "PNG"))
        assert array.dtype == np.uint8
        np.testing.assert_array_equal(array, PHOTO)

    @pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4)])
    @pytest.mark.parametrize("stored", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
    def test_every_mode_has_three_axes(self, mode: str, channels: int, stored: str) -> None:
        source = Image.fromarray(PHOTO)
        if stored == "I;16":
            source = Image.fromarray(PHOTO[:, :, 0].astype(np.uint16) * 257)
        array = decode.image((20, 30), mode=mode)(encoded(source.convert(stored), "PNG"))
        assert array.shape == (20, 30, channels)
        assert array.dtype == np.uint8

    @pytest.mark.parametrize(
        ("stored", "channels"), [("1", 1), ("L", 1), ("LA", 2), ("P", 3), ("RGB", 3), ("RGBA", 4)]
    )
    def test_mode_none_gives_the_channels_the_file_needs(self, stored: str, channels: int) -> None:
        array = decode.image(mode=None)(encoded(Image.fromarray(PHOTO).convert(stored), "PNG"))
        assert array.shape == (60, 80, channels)

    def test_one_int_is_the_shorter_side_and_keeps_the_aspect_ratio(self) -> None:
        assert decode.image(30)(encoded(Image.fromarray(PHOTO), "PNG")).shape == (30, 40, 3)

    def test_one_int_with_a_crop_is_both_sides(self) -> None:
        data = encoded(Image.fromarray(PHOTO), "PNG")
        assert decode.image(30, crop="center")(data).shape == (30, 30, 3)
        assert decode.image(30, crop=(0, 0, 20, 10))(data).shape == (30, 30, 3)


class TestInputs:
    def test_bytes_buffers_and_paths_give_the_same(self, tmp_path: Path) -> None:
        data = encoded(Image.fromarray(PHOTO), "JPEG")
        path = tmp_path / "photo.png"  # the name lies; the content counts
        path.write_bytes(data)
        op = decode.image(16)
        expected = op(data)
        for value in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
            np.testing.assert_array_equal(op(value), expected)  # type: ignore[arg-type]
        np.testing.assert_array_equal(op(path), expected)
        np.testing.assert_array_equal(op(str(path)), expected)

    def test_other_values_are_a_type_error(self) -> None:
        with pytest.raises(TypeError, match=r"decode\.image takes bytes.*not int"):
            decode.image()(3)  # type: ignore[arg-type]

    def test_a_missing_file_is_the_system_s_own_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"nothing\.jpg"):
            decode.image()(tmp_path / "nothing.jpg")

    def test_a_path_is_named_in_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.jpg"
        path.write_bytes(encoded(Image.fromarray(PHOTO), "JPEG")[:-60])
        with pytest.raises(decode.TruncatedError, match=r"cut\.jpg: JPEG: the data ends before"):
            decode.image()(path)


class TestOrientation:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
    def test_exif_orientation_is_applied(self, form: str, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options = {"lossless": True} if form == "WEBP" else {}
        data = encoded(Image.fromarray(PHOTO), form, exif=exif, **options)
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        np.testing.assert_array_equal(decode.image()(data), np.asarray(upright))

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("crop", [None, "center", 0.5, (3, 5, 33, 55), (0.1, 0.3, 0.5, 0.8)])
    def test_crops_are_of_the_upright_picture(self, orientation: int, crop: object) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = Image.fromarray(photo(80, 60)[::-1])
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded(stored, "PNG", exif=exif))))
        op = decode.image((24, 20), crop=crop)  # type: ignore[arg-type]
        turned = op(encoded(stored, "PNG", exif=exif)).astype(int)
        plain = op(encoded(upright, "PNG")).astype(int)
        assert np.abs(turned - plain).max() <= 1

    # Pillow itself reads the block when it looks for a resolution.
    @pytest.mark.filterwarnings("ignore:Corrupt EXIF")
    def test_a_broken_exif_block_counts_as_none(self) -> None:
        data = encoded(Image.fromarray(PHOTO), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
        assert decode.image()(data).shape == (60, 80, 3)


class TestTransparency:
    def test_alpha_shows_the_background_and_never_the_hidden_colours(self) -> None:
        hidden = np.zeros((4, 6, 4), np.uint8)
        hidden[..., 0] = 255
        hidden[:, 3:, 3] = 255
        data = encoded(Image.fromarray(hidden), "PNG")
        array = decode.image()(data)
        assert (array[:, :3] == 255).all()
        assert (array[:, 3:] == (255, 0, 0)).all()
        green = decode.image(background=(0, 200, 0))(data)
        assert (green[:, :3] == (0, 200, 0)).all()

    def test_a_transparent_palette_colour_shows_the_background(self) -> None:
        picture = Image.new("P", (4, 3), 1)
        picture.putpalette([255, 0, 0, 0, 0, 255])
        picture.putpixel((0, 0), 0)
        for form in ("PNG", "GIF"):
            array = decode.image(background=(9, 8, 7))(encoded(picture, form, transparency=0))
            assert array[0, 0].tolist() == [9, 8, 7]
            assert array[1, 1].tolist() == [0, 0, 255]

    @pytest.mark.parametrize(("stored", "clear"), [("L", 7), ("RGB", (7, 7, 7))])
    def test_a_transparent_colour_shows_the_background(self, stored: str, clear: object) -> None:
        picture = Image.new(stored, (2, 1), clear)  # type: ignore[arg-type]
        picture.putpixel((1, 0), (90,) * len(picture.getbands()))
        array = decode.image(mode="L")(encoded(picture, "PNG", transparency=clear))
        assert array[0, :, 0].tolist() == [255, 90]

    def test_transparent_16_bit_grey_shows_the_background(self) -> None:
        picture = Image.fromarray(np.array([[700, 65535, 257]], np.uint16))
        data = encoded(picture, "PNG", transparency=700)
        op = decode.image(mode="L", dtype="uint16", background=(2, 2, 2))
        assert op(data).ravel().tolist() == [514, 65535, 257]
        with pytest.raises(decode.UnsupportedError, match="transparent level"):
            decode.image(mode="LA")(data)

    def test_resizing_does_not_bleed_hidden_colours(self) -> None:
        checker = np.zeros((16, 16, 4), np.uint8)
        checker[..., 1] = 255
        checker[::2, ::2] = (0, 0, 255, 255)
        array = decode.image(4, mode="RGBA")(encoded(Image.fromarray(checker), "PNG"))
        assert array[..., 1].max() == 0


class TestColour:
    @pytest.mark.parametrize("adobe", [True, False])
    def test_cmyk_jpeg_is_inverted_only_with_adobe_s_marker(self, adobe: bool) -> None:
        inks = np.zeros((16, 16, 4), np.uint8)
        inks[:] = (200, 20, 40, 30)
        expected = np.asarray(Image.fromarray(inks, "CMYK").convert("RGB"))[0, 0].astype(int)
        if adobe:
            data = encoded(Image.fromarray(inks, "CMYK"), "JPEG", quality=100)
            assert b"Adobe" in data
        else:
            data = encoded(Image.fromarray(255 - inks, "CMYK"), "JPEG", quality=100)
            at = data.index(b"\xff\xee")
            length = struct.unpack(">H", data[at + 2 : at + 4])[0]
            data = data[:at] + data[at + 2 + length :]
        got = decode.image()(data)[8, 8].astype(int)
        assert np.abs(got - expected).max() <= 4

    def test_cmyk_tiff_is_converted(self) -> None:
        inks = Image.new("CMYK", (3, 2), (255, 0, 0, 0))
        assert decode.image()(encoded(inks, "TIFF"))[0, 0].tolist() == [0, 255, 255]

    def test_grey_comes_from_the_luma_of_a_jpeg(self) -> None:
        data = encoded(Image.fromarray(PHOTO), "JPEG", quality=95)
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("L")).astype(int)
        assert np.abs(decode.image(mode="L")(data)[:, :, 0] - expected).max() <= 2

    def test_lab_is_refused_by_name(self) -> None:
        with pytest.raises(decode.UnsupportedError, match="Lab colour"):
            decode.image()(encoded(Image.new("LAB", (4, 4)), "TIFF"))


class TestIndices:
    LABELS = (np.arange(12 * 16).reshape(12, 16) % 21).astype(np.uint8)

    def labels(self, mode: str) -> Image.Image:
        picture = Image.fromarray(self.LABELS)
        if mode == "P":
            picture = picture.convert("P")
            picture.putpalette([*range(255, 192, -1)])
            picture.putdata(self.LABELS.ravel().tolist())
        return picture

    @pytest.mark.parametrize("mode", ["P", "L"])
    @pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP"])
    def test_mode_p_gives_the_stored_numbers(self, mode: str, form: str) -> None:
        data = encoded(self.labels(mode), form)
        op = decode.image(mode="P", interpolation="nearest")
        np.testing.assert_array_equal(op(data)[:, :, 0], self.LABELS)
        half = decode.image((6, 8), mode="P", interpolation="nearest")(data)
        np.testing.assert_array_equal(half[:, :, 0], self.LABELS[1::2, 1::2])

    def test_one_bit_gives_zeros_and_ones(self) -> None:
        data = encoded(Image.fromarray(self.LABELS > 9), "PNG")
        array = decode.image(mode="P", interpolation="nearest")(data)
        np.testing.assert_array_equal(array[:, :, 0], self.LABELS > 9)

    def test_colours_and_16_bits_are_no_indices(self) -> None:
        op = decode.image(mode="P", interpolation="nearest")
        with pytest.raises(decode.UnsupportedError, match="this picture is RGB"):
            op(encoded(Image.fromarray(PHOTO), "PNG"))
        with pytest.raises(decode.UnsupportedError, match="uint16"):
            op(encoded(Image.fromarray(self.LABELS.astype(np.uint16)), "PNG"))

    def test_indices_are_not_averaged_or_scaled(self) -> None:
        with pytest.raises(ValueError, match="nearest"):
            decode.image(mode="P")
        with pytest.raises(ValueError, match="nearest"):
            decode.image(mode="P", interpolation="nearest", dtype="uint16")


class TestDepth:
    @pytest.mark.parametrize("form", ["PNG", "TIFF", "big-endian TIFF", "PPM"])
    def test_16_bit_grey_is_scaled_to_8_bits_not_clipped(self, form: str) -> None:
        values = np.array([[0, 128, 129, 257, 32768, 65535]], np.uint16)
        data = grey16(values, form)
        assert decode.image(mode="L")(data).ravel().tolist() == [0, 0, 1, 1, 128, 255]
        kept = decode.image(mode="L", dtype="uint16")(data)
        assert kept.dtype == np.uint16
        assert kept.ravel().tolist() == values.ravel().tolist()
        assert decode.image(mode=None, dtype=None)(data).dtype == np.uint16

    def test_8_bits_fill_the_range_of_16(self) -> None:
        array = decode.image(mode="L", dtype="uint16")(b"P5 3 1 255 " + bytes([0, 1, 255]))
        assert array.ravel().tolist() == [0, 257, 65535]

    def test_32_bit_values_are_refused_unless_asked_for_as_stored(self) -> None:
        for values in (np.array([[-5, 70000]], np.int32), np.array([[0.5, -2.0]], np.float32)):
            data = encoded(Image.fromarray(values), "TIFF")
            with pytest.raises(decode.UnsupportedError, match="dtype=None"):
                decode.image()(data)
            array = decode.image(mode="L", dtype=None)(data)
            assert array.dtype == values.dtype
            np.testing.assert_array_equal(array[:, :, 0], values)

    def test_16_bit_colour_is_not_passed_off_as_16_bits(self) -> None:
        rows = np.full((2, 3, 3), 0x1234, ">u2")
        data = raw_png(rows, depth=16, colour=2)
        assert decode.image()(data)[0, 0].tolist() == [0x12] * 3
        with pytest.raises(decode.UnsupportedError, match="16-bit colour"):
            decode.image(dtype="uint16")(data)
        with pytest.raises(decode.UnsupportedError, match="16-bit colour"):
            decode.image(dtype="uint16")(b"P6 3 2 65535 " + rows.tobytes())


def grey16(values: NDArray[np.uint16], form: str) -> bytes:
    if form == "PPM":
        return b"P5 %d %d 65535 " % values.shape[::-1] + values.astype(">u2").tobytes()
    if form == "big-endian TIFF":
        picture = Image.frombytes("I;16B", values.shape[::-1], values.astype(">u2").tobytes())
        data = encoded(picture, "TIFF")
        assert data.startswith(b"MM")
        return data
    return encoded(Image.fromarray(values), form)


def raw_png(rows: NDArray[np.generic], depth: int, colour: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    height, width = rows.shape[:2]
    body = b"".join(b"\0" + row.tobytes() for row in rows)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(body))
        + chunk(b"IEND", b"")
    )


class TestScaling:
    @pytest.mark.parametrize("crop", [None, "center", 0.6, (100, 50, 500, 450)])
    def test_draft_stays_close_to_decoding_at_full_scale(self, crop: object) -> None:
        data = encoded(Image.fromarray(photo(480, 640)), "JPEG", quality=95)
        options = {"size": (64, 64), "crop": crop}
        fast = decode.image(**options)(data).astype(int)  # type: ignore[arg-type]
        exact = decode.image(**options, draft=False)(data).astype(int)  # type: ignore[arg-type]
        assert np.abs(fast - exact).max() <= 2

    @pytest.mark.parametrize("side", [1, 2, 3, 5, 7, 8, 15, 16, 17, 31])
    def test_draft_never_leaves_less_than_is_asked_for(self, side: int) -> None:
        noise = RNG.integers(0, 255, (side, side + 3, 3), np.uint8)
        data = encoded(Image.fromarray(noise), "JPEG", quality=95)
        for size in range(1, side + 2):
            assert decode.image((size, size))(data).shape == (size, size, 3)
        whole = decode.image(draft=False)(data)
        np.testing.assert_array_equal(decode.image(whole.shape[:2])(data), whole)

    def test_crop_and_resize_are_what_pillow_does_in_two_steps(self) -> None:
        picture = Image.fromarray(RNG.integers(0, 255, (60, 80, 3), np.uint8))
        data = encoded(picture, "PNG")
        for name in ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"):
            method = Image.Resampling[name.upper()]
            expected = np.asarray(picture.resize((20, 20), method, (10, 0, 70, 60)))
            got = decode.image(20, crop="center", interpolation=name)(data)
            np.testing.assert_array_equal(got, expected)

    def test_a_share_is_the_centred_box_made_smaller(self) -> None:
        data = encoded(Image.fromarray(PHOTO), "PNG")
        np.testing.assert_array_equal(decode.image(crop=0.5)(data), PHOTO[15:45, 25:55])

    def test_a_crop_outside_the_picture_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        path = tmp_path / "small.png"
        path.write_bytes(encoded(Image.fromarray(PHOTO), "PNG"))
        with pytest.raises(decode.DecodeError, match=r"small\.png: the crop .* 80 x 60 pixels"):
            decode.image(crop=(0, 0, 100, 10))(path)


class TestRandomCrop:
    DATA = encoded(Image.fromarray(PHOTO), "PNG")

    def test_the_generator_decides_and_nothing_else(self) -> None:
        op = decode.image(16, crop=decode.random_crop())
        one = op(self.DATA, np.random.default_rng(5))
        np.testing.assert_array_equal(op.bind()(self.DATA, np.random.default_rng(5)), one)
        assert (op(self.DATA, np.random.default_rng(6)) != one).any()

    def test_boxes_lie_inside_and_keep_to_scale_and_ratio(self) -> None:
        crop = decode.random_crop(scale=(0.3, 0.5), ratio=(0.8, 1.25))
        rng = np.random.default_rng(1)
        for _ in range(500):
            left, top, right, bottom = crop(300, 400, rng)
            assert 0 <= left < right <= 400
            assert 0 <= top < bottom <= 300
            assert 0.29 < (right - left) * (bottom - top) / 120_000 < 0.51
            assert 0.78 < (right - left) / (bottom - top) < 1.28

    def test_a_picture_too_narrow_for_the_ratio_gives_the_centred_box(self) -> None:
        box = decode.random_crop(ratio=(1.0, 1.0), scale=(1.0, 1.0))(
            10, 1000, np.random.default_rng(1)
        )
        assert box == (495.0, 0.0, 505.0, 10.0)

    def test_without_a_generator_the_error_says_what_to_write(self) -> None:
        with pytest.raises(TypeError, match="rng=True"):
            decode.image(16, crop=decode.random_crop())(self.DATA)

    def test_an_error_of_the_user_s_own_crop_is_not_translated(self) -> None:
        def crop(height: int, width: int, rng: object) -> tuple[int, int, int, int]:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            decode.image(16, crop=crop)(self.DATA)


class TestRefusals:
    @pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
    def test_truncated_pictures_are_refused(self, form: str) -> None:
        picture = Image.fromarray(RNG.integers(0, 255, (60, 80, 3), np.uint8))
        data = encoded(picture, form)
        for keep in (0.3, 0.6, 0.95):
            with pytest.raises(decode.TruncatedError):
                decode.image()(data[: int(len(data) * keep)])

    @pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
    def test_also_when_the_program_told_pillow_to_make_up_pixels(
        self, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        picture = Image.fromarray(RNG.integers(0, 255, (60, 80, 3), np.uint8))
        data = encoded(picture, form)
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        np.testing.assert_array_equal(decode.image()(data).shape, (60, 80, 3))
        for keep in (0.3, 0.6, 0.95):
            with pytest.raises(decode.DecodeError):
                decode.image()(data[: int(len(data) * keep)])

    def test_the_pixel_limit_is_the_call_s_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = encoded(Image.fromarray(PHOTO), "PNG")
        with pytest.raises(decode.TooLargeError, match="80 x 60 pixels are more than max_pixels"):
            decode.image(max_pixels=4799)(data)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own would refuse
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert decode.image(max_pixels=4800)(data).shape == (60, 80, 3)
            assert decode.image(max_pixels=None)(data).shape == (60, 80, 3)
        assert Image.MAX_IMAGE_PIXELS == 10

    def test_a_bomb_is_refused_before_it_is_decoded(self) -> None:
        rows = np.zeros((1, 1), np.uint8)
        data = bytearray(raw_png(rows, depth=8, colour=0))
        data[16:24] = struct.pack(">II", 60_000, 60_000)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
        with pytest.raises(decode.TooLargeError, match="60000 x 60000"):
            decode.image(32)(data)

    def test_a_result_above_the_limit_is_refused_too(self) -> None:
        line = encoded(Image.new("L", (5000, 1)), "PNG")
        with pytest.raises(decode.TooLargeError, match="the result, 1120000 x 224"):
            decode.image(224)(line)

    @pytest.mark.parametrize("data", [b"", b"junk", b"%!PS-Adobe-3.0 EPSF-3.0", bytes(100)])
    def test_what_is_no_picture_is_refused(self, data: bytes) -> None:
        with pytest.raises(decode.DecodeError, match="no picture of a known format"):
            decode.image()(data)

    def test_a_format_without_its_codec_is_named(self) -> None:
        with pytest.raises(decode.UnsupportedError, match=r"HEIF.*pillow-heif"):
            decode.image()(b"\0\0\0\x18ftypheic" + bytes(40))

    def test_an_animation_gives_its_first_frame(self) -> None:
        frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
        data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
        assert decode.image()(data)[0, 0].tolist() == [255, 0, 0]


class TestValue:
    def test_equal_decoders_are_equal_and_print_as_the_code_that_makes_them(self) -> None:
        op = decode.image((224, 192), crop=decode.random_crop(scale=(0.2, 1.0)), mode="L")
        text = repr(op)
        assert text == (
            "decode.image(size=(224, 192), crop=decode.random_crop(scale=(0.2, 1.0)), mode='L')"
        )
        assert eval(text) == op
        assert pickle.loads(pickle.dumps(op)) == op
        assert repr(decode.image()) == "decode.image()"

    @pytest.mark.parametrize(
        "options",
        [
            {"size": 0},
            {"size": (1, 2, 3)},
            {"size": 2.5},
            {"mode": "CMYK"},
            {"interpolation": "cubic"},
            {"crop": "left"},
            {"crop": 1.5},
            {"crop": (0.0, 0.0, 2.0, 1.0)},
            {"crop": (5, 0, 5, 9)},
            {"crop": (0, 0, 0.5, 1)},
            {"background": (0, 0)},
            {"max_pixels": 0},
            {"dtype": "float32"},
        ],
    )
    def test_what_cannot_be_meant_is_refused_when_the_decoder_is_made(
        self, options: dict[str, object]
    ) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            decode.image(**options)  # type: ignore[arg-type]

    def test_four_threads_get_identical_arrays_from_one_decoder(self) -> None:
        data = [encoded(Image.fromarray(photo(90 + k, 120)), "JPEG") for k in range(8)]
        op = decode.image(32, crop="center")
        expected = [op(d) for d in data]
        results: list[list[NDArray[np.generic]]] = [[] for _ in range(4)]
        start = threading.Barrier(4)

        def work(k: int) -> None:
            own = op.bind() if k % 2 else op
            start.wait()
            results[k].extend(own(d) for _ in range(5) for d in data)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            assert len(result) == 40
            for array, want in zip(result, expected * 5, strict=True):
                np.testing.assert_array_equal(array, want)

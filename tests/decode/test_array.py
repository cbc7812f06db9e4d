"""decode.array: every npy and npz that NumPy writes, and many that it would not."""

from __future__ import annotations

import io
import os
import pickle
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from nogil_loader import decode

Any = np.generic


def npy(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    npy_format.write_array(file, array, version=version)
    return file.getvalue()


def npz(arrays: Mapping[str, NDArray[Any]], compress: bool = False) -> bytes:
    file = io.BytesIO()
    save: Callable[..., None] = np.savez_compressed if compress else np.savez
    save(file, **arrays)
    return file.getvalue()


def with_header(text: str, body: bytes = b"", version: int = 1) -> bytes:
    raw = text.encode("utf-8")
    length = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + length + raw + body


def one(data: bytes, **options: object) -> NDArray[Any]:
    result = decode.array(**options)(data)  # type: ignore[arg-type]
    assert isinstance(result, np.ndarray)
    return result


DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    hnp.array_dtypes(hnp.scalar_dtypes(), allow_subarrays=True),
)


class TestNpy:
    @given(
        array=hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)),
        version=st.sampled_from([(1, 0), (2, 0), (3, 0)]),
        fortran=st.booleans(),
    )
    def test_gives_what_numpy_gives(
        self, array: NDArray[Any], version: tuple[int, int], fortran: bool
    ) -> None:
        try:
            data = npy(np.asarray(array, order="F" if fortran else "C"), version)
        except UnicodeEncodeError:  # field names beyond latin-1 need version 3
            data = npy(array, (3, 0))
        expected = np.load(io.BytesIO(data))
        for native in (True, False):
            got = one(data, native=native)
            assert got.shape == expected.shape
            assert got.dtype == (expected.dtype.newbyteorder("=") if native else expected.dtype)
            assert got.flags.aligned
            assert (got.astype(expected.dtype) if native else got).tobytes() == expected.tobytes()

    def test_fortran_order_is_kept_without_a_copy(self) -> None:
        data = npy(np.asfortranarray(np.arange(12.0).reshape(3, 4)))
        got = one(data)
        assert got.flags.f_contiguous
        assert not got.flags.c_contiguous
        assert not got.flags.owndata

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_byte_orders_become_native_unless_kept(self, order: str) -> None:
        array = np.array([1, 2, 3], order + "i4")
        assert one(npy(array)).dtype.isnative
        np.testing.assert_array_equal(one(npy(array)), [1, 2, 3])
        kept = one(npy(array), native=False)
        assert kept.dtype == array.dtype
        np.testing.assert_array_equal(kept, [1, 2, 3])

    def test_bytes_give_a_read_only_view_and_bytearrays_a_writable_one(self) -> None:
        data = npy(np.arange(4))
        assert not one(data).flags.writeable
        assert not one(data).flags.owndata
        shared = bytearray(data)
        view = decode.array()(shared)
        assert isinstance(view, np.ndarray)
        view[0] = 77
        np.testing.assert_array_equal(one(bytes(shared)), [77, 1, 2, 3])

    def test_a_path_gives_memory_of_its_own_or_a_map(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npy"
        path.write_bytes(npy(np.arange(4)))
        own = decode.array()(path)
        mapped = decode.array(memory_map=True)(str(path))
        assert isinstance(own, np.ndarray)
        assert isinstance(mapped, np.ndarray)
        own[0] = 5
        assert not mapped.flags.writeable
        np.testing.assert_array_equal(mapped, [0, 1, 2, 3])
        np.testing.assert_array_equal(own, [5, 1, 2, 3])

    def test_a_pipe_whose_size_is_unknown_is_read_to_its_end(self, tmp_path: Path) -> None:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        data = npy(np.arange(1000))
        writer = threading.Thread(target=path.write_bytes, args=(data,))
        writer.start()
        got = decode.array()(path)
        writer.join()
        np.testing.assert_array_equal(got, np.arange(1000))

    @pytest.mark.parametrize("offset", range(1, 9))
    def test_data_at_odd_addresses_is_copied_to_an_aligned_array(self, offset: int) -> None:
        data = bytes(offset) + npy(np.arange(5.0))
        got = decode.array()(memoryview(data)[offset:])
        assert isinstance(got, np.ndarray)
        assert got.flags.aligned
        np.testing.assert_array_equal(got, np.arange(5.0))

    def test_headers_of_python_2_are_read(self) -> None:
        text = "{'descr': '<i2', 'fortran_order': False, 'shape': (2L, 3L), }\n"
        np.testing.assert_array_equal(one(with_header(text, bytes(12))), np.zeros((2, 3)))

    def test_keys_in_another_order_are_read(self) -> None:
        text = "{'shape': (2,), 'descr': '|u1', 'fortran_order': False}"
        assert one(with_header(text, b"\1\2")).tolist() == [1, 2]

    def test_what_follows_the_elements_is_ignored(self) -> None:
        assert one(npy(np.arange(3)) + b"more").tolist() == [0, 1, 2]


class TestRefusals:
    def test_pickled_arrays_are_refused_and_nothing_is_run(self, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        data = npy(np.array([Bomb(str(mark))], object))
        for form in (data, npz({"x": np.array([Bomb(str(mark))], object)})):
            with pytest.raises(decode.UnsupportedError, match="pickled=True"):
                decode.array()(form)
        assert not mark.exists()
        one(data, pickled=True)
        assert mark.exists()

    def test_pickled_arrays_are_read_when_asked_for(self) -> None:
        data = npy(np.array([{"a": 1}, None], object))
        assert one(data, pickled=True).tolist() == [{"a": 1}, None]
        with pytest.raises(decode.DecodeError, match="pickled array that can't be read"):
            one(data[:-3], pickled=True)

    @pytest.mark.parametrize("keep", [0, 3, 7, 9, 40, 127, 129, 159])
    def test_data_cut_anywhere_is_a_truncated_error(self, keep: int) -> None:
        data = npy(np.arange(4))
        assert len(data) == 160
        with pytest.raises(decode.TruncatedError):
            decode.array()(data[:keep])

    def test_the_path_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.npy"
        path.write_bytes(npy(np.arange(4))[:-1])
        for memory_map in (True, False):
            with pytest.raises(decode.TruncatedError, match=r"cut\.npy: .*32 bytes.* 31"):
                decode.array(memory_map=memory_map)(path)
        path.write_bytes(b"")
        for memory_map in (True, False):
            with pytest.raises(decode.TruncatedError, match=r"cut\.npy: the data ends"):
                decode.array(memory_map=memory_map)(path)
        with pytest.raises(FileNotFoundError):
            decode.array()(tmp_path / "none.npy")

    @pytest.mark.parametrize(
        "text",
        [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }",
            "{'descr': '<f4', 'fortran_order': 1, 'shape': (1,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': 3, }",
            "{'descr': '<q4', 'fortran_order': False, 'shape': (1,), }",
            "{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (1,), }",
            "{'descr': '<f4', 'shape': (1,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 100 + "), }",
            "{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }",
            "(" * 5000,
            "[1]",
            "",
        ],
    )
    def test_headers_that_make_no_sense_are_refused(self, text: str) -> None:
        with pytest.raises(decode.DecodeError):
            decode.array()(with_header(text, bytes(64)))

    @pytest.mark.parametrize("shape", ["(10**9,)", f"({2**62}, {2**62})", f"({10**18},)"])
    def test_a_shape_larger_than_the_data_allocates_nothing(self, shape: str) -> None:
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
        with pytest.raises(decode.DecodeError):
            decode.array()(with_header(text, bytes(64)))

    def test_unknown_versions_are_refused_by_number(self) -> None:
        data = bytearray(npy(np.arange(4)))
        data[6] = 9
        with pytest.raises(decode.UnsupportedError, match="version 9"):
            decode.array()(data)

    def test_another_kind_of_file_is_refused_by_its_first_bytes(self) -> None:
        with pytest.raises(decode.UnsupportedError, match="neither npy nor npz"):
            decode.array()(b"\x89PNG\r\n\x1a\n")


class Bomb:
    """What runs when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(self.path),)


ARRAYS: dict[str, NDArray[Any]] = {
    "x": np.arange(6.0).reshape(2, 3),
    "y": np.array(7, np.int16),
    "empty": np.zeros((0, 3), np.float32),
    "text": np.array(["a", "bc"]),
}


class TestNpz:
    @pytest.mark.parametrize("compress", [False, True])
    def test_gives_a_dict_in_the_file_s_order(self, compress: bool) -> None:
        got = decode.array()(npz(ARRAYS, compress))
        assert isinstance(got, dict)
        assert list(got) == list(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(got[name], array)
            assert got[name].dtype == array.dtype
            assert got[name].flags.aligned

    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("memory_map", [False, True])
    def test_one_member_alone(self, tmp_path: Path, compress: bool, memory_map: bool) -> None:
        path = tmp_path / "a.npz"
        path.write_bytes(npz(ARRAYS, compress))
        got = decode.array("y", memory_map=memory_map)(path)
        assert isinstance(got, np.ndarray)
        assert got.shape == ()
        assert got == 7

    def test_the_first_array_of_a_file_is_aligned_without_a_copy(self, tmp_path: Path) -> None:
        path = tmp_path / "a.npz"
        for name in ("x", "longer name"):
            path.write_bytes(npz({name: np.arange(5.0), "other": np.arange(3)}))
            array = decode.array(name)(path)
            assert isinstance(array, np.ndarray)
            assert array.flags.aligned and array.flags.writeable and not array.flags.owndata
            np.testing.assert_array_equal(array, np.arange(5.0))

    def test_a_missing_member_is_an_error_that_lists_those_there_are(self) -> None:
        with pytest.raises(decode.DecodeError, match="no array 'z'; there are: x, y, empty, text"):
            decode.array("z")(npz(ARRAYS))
        with pytest.raises(decode.DecodeError, match="one array and no names"):
            decode.array("z")(npy(np.arange(3)))

    def test_an_empty_archive_is_an_empty_dict(self) -> None:
        assert decode.array()(npz({})) == {}

    def test_names_beyond_ascii_and_long_archives(self) -> None:
        arrays = {f"número {k}": np.array(k) for k in range(300)}
        got = decode.array()(npz(arrays))
        assert isinstance(got, dict)
        assert {name: int(value) for name, value in got.items()} == {
            name: int(value) for name, value in arrays.items()
        }

    def test_zip64_directories_are_read(self) -> None:
        data = npz({"x": np.arange(3)})
        end = data.rindex(b"PK\5\6")
        _, _, _, _, count, size, offset, _ = struct.unpack("<4s4H2LH", data[end:])
        end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset)
        locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
        wide = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
        got = decode.array("x")(data[:end] + end64 + locator + wide)
        np.testing.assert_array_equal(got, [0, 1, 2])

    def test_an_archive_behind_other_data_and_with_a_comment_is_read(self) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", npy(np.arange(3)))
            archive.comment = b"PK said: a comment"
        shifted = npz({"first": np.arange(9)}) + file.getvalue()
        np.testing.assert_array_equal(decode.array("x")(shifted), [0, 1, 2])

    @pytest.mark.parametrize("compress", [False, True])
    def test_a_changed_byte_is_found_by_the_checksum(self, compress: bool) -> None:
        data = bytearray(npz({"x": np.random.default_rng(1).integers(0, 9, 1000)}, compress))
        data[400] ^= 0x55
        with pytest.raises(decode.DecodeError, match=r"x\.npy.*(checksum|damaged|directory)"):
            decode.array()(data)

    @pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.99])
    def test_a_cut_archive_is_a_truncated_error(self, keep: float) -> None:
        data = npz(ARRAYS)
        with pytest.raises(decode.TruncatedError, match="cut short"):
            decode.array()(data[: int(len(data) * keep)])

    def test_a_small_file_cannot_fill_the_memory(self) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", bytes(50_000_000))
        data = bytearray(file.getvalue())
        with pytest.raises(decode.TooLargeError, match="50000000 bytes > max_bytes=1000000"):
            decode.array(max_bytes=1_000_000)(data)
        at = data.rindex(b"PK\1\2") + 24  # a directory that lies about the size
        data[at : at + 4] = struct.pack("<L", 1000)
        with pytest.raises(decode.DecodeError, match="1001 bytes; the directory says 1000"):
            decode.array(max_bytes=1_000_000)(data)

    def test_other_compressions_and_encryption_are_named(self) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
            archive.writestr("x.npy", npy(np.arange(3)))
        with pytest.raises(decode.UnsupportedError, match="compression method 14"):
            decode.array()(file.getvalue())
        data = bytearray(npz({"x": np.arange(3)}))
        data[data.rindex(b"PK\1\2") + 8] |= 1
        with pytest.raises(decode.UnsupportedError, match="encrypted"):
            decode.array()(data)

    def test_other_archives_are_told_apart_from_npz(self) -> None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("readme.txt", b"hello, world")
        with pytest.raises(decode.UnsupportedError, match=r"readme\.txt.*no npy"):
            decode.array()(file.getvalue())


class TestValue:
    def test_equal_decoders_are_equal_and_print_as_the_code_that_makes_them(self) -> None:
        op = decode.array("x", native=False)
        assert repr(op) == "decode.array(member='x', native=False)"
        assert eval(repr(op)) == op == pickle.loads(pickle.dumps(op))

    def test_a_negative_limit_is_refused(self) -> None:
        with pytest.raises(ValueError, match="max_bytes=-1"):
            decode.array(max_bytes=-1)

    def test_four_threads_get_identical_arrays_from_one_decoder(self) -> None:
        rng = np.random.default_rng(0)
        arrays = {f"a{k}": rng.random((50, 20)) for k in range(4)}
        data = npz(arrays, True)
        op = decode.array()
        start = threading.Barrier(4)
        failures: list[str] = []

        def work() -> None:
            start.wait()
            for _ in range(20):
                got = op(data)
                assert isinstance(got, dict)
                failures.extend(n for n, a in arrays.items() if not np.array_equal(got[n], a))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert zlib.crc32(data) == zlib.crc32(npz(arrays, True))

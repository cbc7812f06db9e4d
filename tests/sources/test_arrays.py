from __future__ import annotations

import io
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.lib import format as npy_format

from nogil_loader.sources.arrays import Arrays
from nogil_loader.sources.base import Sample, Source
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError, UnsupportedMemberError
from tests import fuzzed

Check = Callable[[Source], list[Sample]]
Array = np.ndarray[tuple[int, ...], np.dtype]
Rows = dict[str, Array]


def rows(source: Arrays) -> list[Array]:
    """Of a source of one array without a name."""
    reader = source.open()
    read = reader.bind()
    return [cast(Array, read(index)) for index in range(len(reader))]


def npy(array: object, version: tuple[int, int] | None = None) -> bytes:
    made = io.BytesIO()
    npy_format.write_array(made, np.asarray(array), version=version)
    return made.getvalue()


def test_rows_of_a_dict_of_arrays_and_files(check: Check, tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.arange(5) * 2.0)
    x = np.arange(15).reshape(5, 3)
    samples = check(Arrays({"x": x, "y": tmp_path / "y.npy"}))
    assert len(samples) == 5
    third = cast(Rows, samples[3])
    assert third["x"].tolist() == [9, 10, 11]
    assert third["y"] == 6.0
    assert third["y"].dtype == np.float64


def test_windows_of_rows(check: Check) -> None:
    data = np.arange(10)
    for window, stride, wanted in (
        (4, None, [0, 4]),
        (4, 3, [0, 3, 6]),
        (3, 1, list(range(8))),
        (1, 5, [0, 5]),
        (10, 1, [0]),
    ):
        samples = check(Arrays(data, window=window, stride=stride))
        assert [cast(Array, sample).tolist() for sample in samples] == [
            list(range(start, start + window)) for start in wanted
        ]
    assert Arrays(data, window=4, stride=3).open().ref(1) == "array[3:7]"
    both = check(Arrays({"x": data, "y": data * 2}, window=3, stride=2))
    assert [cast(Rows, sample)["y"].tolist() for sample in both][1] == [4, 6, 8]


def test_rows_are_views_and_those_of_files_are_read_only(tmp_path: Path) -> None:
    data = np.zeros((4, 2))
    assert np.shares_memory(rows(Arrays(data))[1], data)
    np.save(tmp_path / "a.npy", data)
    row = rows(Arrays(tmp_path / "a.npy"))[1]
    assert type(row) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 1


def test_rows_outlive_their_reader(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(3, 2))
    reader = Arrays(tmp_path / "a.npy").open()
    row = reader.bind()(2)
    reader.close()
    assert cast(Array, row).tolist() == [4, 5]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(3, 2),
        np.asfortranarray(np.arange(24.0).reshape(4, 3, 2)),
        np.zeros((3, 0)),
        np.array([(1, 2.5), (3, 4.5)], [("a", "<i2"), ("b", ">f8")]),
        np.array(["a", "é"]),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.array(["2026-11-30"], "M8[D]"),
    ],
    ids=lambda array: str(getattr(array, "dtype", array)),
)
def test_every_order_dtype_and_version_is_read(
    tmp_path: Path, array: np.ndarray[tuple[int, ...], np.dtype], version: tuple[int, int]
) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(npy(array, version))
    got = rows(Arrays(path))
    assert len(got) == len(array)
    for one, other in zip(got, array, strict=True):
        assert one.dtype == array.dtype
        assert np.array_equal(one, other)
        assert one.shape == array.shape[1:]


def test_field_names_beyond_latin_1_are_read(tmp_path: Path) -> None:
    array = np.array([(1,), (2,)], [("Σ", "<i4")])
    with pytest.warns(UserWarning, match="format"):
        np.save(tmp_path / "a.npy", array)
    assert rows(Arrays(tmp_path / "a.npy"))[1]["Σ"] == 2


def test_npz_files_give_their_names_as_fields(check: Check, tmp_path: Path) -> None:
    x, y = np.arange(8).reshape(4, 2), np.array(list("abcd"))
    for save, mapped in ((np.savez, True), (np.savez_compressed, False)):
        save(tmp_path / "a.npz", x=x, y=y)
        source = Arrays(tmp_path / "a.npz")
        samples = check(source)
        assert cast(Rows, samples[2])["x"].tolist() == [4, 5]
        assert cast(Rows, samples[2])["y"] == "c"
        reader = source.open()
        assert isinstance(reader._columns["x"].base, np.memmap) == mapped
        reader.close()


def test_lengths_must_be_equal() -> None:
    with pytest.raises(ValueError, match="x has 3, y has 4"):
        Arrays({"x": np.zeros(3), "y": np.zeros(4)}).open()


def test_nothing_to_read_is_an_error() -> None:
    for source, reason in (
        (Arrays({}), "no array"),
        (Arrays(np.zeros((0, 3))), "no row"),
        (Arrays(np.zeros(3), window=4), "window of 4 rows: 3 rows"),
    ):
        with pytest.raises(EmptySourceError, match=reason):
            source.open()


def test_misuse_is_refused() -> None:
    for arguments in ({"window": 0}, {"window": 2, "stride": 0}, {"stride": 2}):
        with pytest.raises(ValueError, match=r"window|stride"):
            Arrays(np.zeros(3), **arguments)
    with pytest.raises(ValueError, match="0 dimensions"):
        Arrays({"x": np.array(3)}).open()


def test_python_objects_are_refused(tmp_path: Path) -> None:
    objects = np.array([{}, []], object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=objects)
    for source in (
        Arrays(tmp_path / "a.npy"),
        Arrays(tmp_path / "a.npz"),
        Arrays({"x": objects}),
    ):
        with pytest.raises(UnsupportedMemberError, match="Python objects"):
            source.open()


def test_damage_is_an_error_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    good = npy(np.arange(100))
    np.savez(tmp_path / "good.npz", x=np.arange(100))
    npz = (tmp_path / "good.npz").read_bytes()
    for reason, data in {
        "cut short": good[:-1],
        "npy header": good[:40],
        "no valid npy header: EOF": b"",
        "magic": b"x" * 200,
        "not known": b"\x93NUMPY\x09\x00" + good[8:],
        "npz": npz[:-30].replace(b"PK\x03\x04", b"PK\x03\x05", 1) + npz[-30:],
    }.items():
        path.write_bytes(data)
        with pytest.raises(BrokenFileError) as caught:
            Arrays(path).open()
        assert "a.npy" in str(caught.value)
        assert reason in str(caught.value) or reason == "npz"
    with pytest.raises(FileNotFoundError, match="gone"):
        Arrays(tmp_path / "gone.npy").open()


def test_mutated_files_give_documented_errors_only(tmp_path: Path) -> None:
    rng = random.Random(13)
    path = tmp_path / "a.npy"
    np.savez(tmp_path / "s.npz", x=np.arange(9), y=np.zeros(9))
    seeds = [npy(np.arange(30).reshape(10, 3)), (tmp_path / "s.npz").read_bytes()]
    outcomes = {"read": 0, "refused": 0}
    for turn in range(fuzzed.count("npy")):
        data = bytearray(seeds[turn % 2])
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(min(len(data), 130)) if turn % 4 < 3 else -rng.randint(1, 200)
            data[place] = rng.choice(b"0123456789,()'<>|fiO\0\xff")
        path.write_bytes(data)
        try:
            rows(Arrays(path))
            outcomes["read"] += 1
        except (BrokenFileError, UnsupportedMemberError, EmptySourceError):
            outcomes["refused"] += 1
        except ValueError as error:
            if not re.search(r"rows in every array|0 dimensions", str(error)):
                raise
            outcomes["refused"] += 1
    assert min(outcomes.values()) > fuzzed.count("npy") // 20, outcomes


def test_equal_data_are_equal_sources() -> None:
    assert Arrays({"x": np.arange(3)}) == Arrays({"x": np.arange(3)})
    assert Arrays({"x": np.arange(3)}) != Arrays({"x": np.arange(4)})
    assert Arrays("a.npy") == Arrays("a.npy") != Arrays("a.npy", window=2)
    assert Arrays("a.npy") != Arrays(np.arange(3))


def test_the_fingerprint_sees_values_shapes_and_windows() -> None:
    data = np.arange(12)
    sources = [Arrays(data), Arrays(data + 1), Arrays(data, window=2), Arrays(data.reshape(12, 1)),
               Arrays({"x": data}), Arrays(data, window=2, stride=1)]  # fmt: skip
    assert len({source.open().fingerprint() for source in sources}) == len(sources)

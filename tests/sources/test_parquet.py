from __future__ import annotations

import datetime
import random
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from nogil_loader.sources.base import Sample, Source
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError, ObjectChangedError
from nogil_loader.sources.parquet import Parquet, ParquetReader

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

Check = Callable[[Source], list[Sample]]


def write(path: Path, columns: dict[str, object], rows: int = 7) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=rows)
    return path


def all_of(source: Parquet) -> list[dict[str, object]]:
    reader = source.open()
    read = reader.bind()
    samples = [cast("dict[str, object]", read(index)) for index in range(len(reader))]
    reader.close()
    return samples


def test_rows_of_files_are_read_the_same_by_all(check: Check, tmp_path: Path) -> None:
    for number in range(3):
        first = number * 20
        write(
            tmp_path / f"{number}.parquet",
            {
                "n": list(range(first, first + 20)),
                "text": [f"t{n}" for n in range(first, first + 20)],
            },
        )
    source = Parquet(f"{tmp_path}/*.parquet", keep_groups=2)
    samples = check(source)
    assert samples == [{"n": n, "text": f"t{n}"} for n in range(60)]
    assert source.open().ref(45) == f"{tmp_path}/2.parquet[5]"


def test_chosen_columns_come_in_the_order_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"a": [1], "b": [2], "c": [3]})
    assert list(all_of(Parquet(path, columns=["c", "a"]))[0]) == ["c", "a"]


def test_each_type_gives_its_documented_value(tmp_path: Path) -> None:
    day = datetime.date(2026, 11, 30)
    columns = {
        "int8": pa.array([1, -2], pa.int8()),
        "float32": pa.array([1.5, 2.5], pa.float32()),
        "bool": pa.array([True, False]),
        "null": pa.array([None, 7], pa.int32()),
        "nothing": pa.array([None, None], pa.float64()),
        "text": pa.array(["é", None]),
        "bytes": pa.array([b"\xff\0", b""]),
        "list": pa.array([[1, 2, 3], []], pa.list_(pa.int16())),
        "holes": pa.array([[1, None], None], pa.list_(pa.int64())),
        "nolist": pa.array([None, [1.0]], pa.list_(pa.float32())),
        "struct": pa.array([{"x": 1}, {"x": None}]),
        "category": pa.array(["u", "v"]).dictionary_encode(),
        "date": pa.array([day, day]),
        "decimal": pa.array([Decimal("1.50"), None]),
        "texts": pa.array([["a"], []]),
    }
    first, second = all_of(Parquet(write(tmp_path / "a.parquet", columns)))
    assert (first["int8"], type(first["int8"])) == (1, np.int8)
    assert (second["float32"], type(second["float32"])) == (2.5, np.float32)
    assert (first["bool"], type(first["bool"])) == (True, np.bool_)
    assert first["null"] is None
    assert (second["null"], type(second["null"])) == (7, np.int32)
    assert (first["nothing"], second["nothing"]) == (None, None)
    assert (first["text"], second["text"]) == ("é", None)
    assert (first["bytes"], second["bytes"]) == (b"\xff\0", b"")
    numbers = cast("np.ndarray[tuple[int], np.dtype[np.int16]]", first["list"])
    assert numbers.tolist() == [1, 2, 3]
    assert numbers.dtype == np.int16
    assert len(cast("list[int]", second["list"])) == 0
    assert (first["holes"], second["holes"]) == ([1, None], None)
    assert first["nolist"] is None
    assert (first["struct"], second["struct"]) == ({"x": 1}, {"x": None})
    assert (first["category"], second["category"]) == ("u", "v")
    assert first["date"] == np.datetime64("2026-11-30")
    assert (first["decimal"], second["decimal"]) == (Decimal("1.50"), None)
    assert (first["texts"], second["texts"]) == (["a"], [])


def test_rows_in_any_order_are_right_with_few_groups_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"n": list(range(100))}, rows=9)
    reader = Parquet(path, keep_groups=1).open()
    read = reader.bind()
    order = list(range(100))
    random.Random(3).shuffle(order)
    assert [read(index)["n"] for index in order] == order  # type: ignore[index]
    assert len(reader._kept) == 1
    reader.close()


def test_a_group_is_decoded_once_for_all_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", {"n": list(range(100))}, rows=25)
    reader = Parquet(path).open()
    decoded: list[int] = []
    decode = ParquetReader._decode

    def counting(self: ParquetReader, group: int) -> object:
        decoded.append(group)
        return decode(self, group)

    monkeypatch.setattr(ParquetReader, "_decode", counting)

    def work() -> None:
        read = reader.bind()
        for index in range(100):
            read(index)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(decoded) == [0, 1, 2, 3]
    reader.close()


def test_missing_and_different_columns_are_errors_with_the_names(tmp_path: Path) -> None:
    one = write(tmp_path / "1.parquet", {"a": [1], "b": ["x"]})
    with pytest.raises(ValueError, match=r"1\.parquet has no column 'c'; it has a, b"):
        Parquet(one, columns=["c"]).open()
    other = write(tmp_path / "2.parquet", {"a": [1.5], "b": ["x"]})
    with pytest.raises(ValueError, match=r"'a' is int64 in .*1\.parquet and double in .*2"):
        Parquet([one, other]).open()
    assert len(Parquet([one, other], columns=["b"]).open()) == 2


def test_missing_empty_and_broken_files_are_their_own_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        Parquet(tmp_path / "gone.parquet").open()
    empty = write(tmp_path / "a.parquet", {"a": pa.array([], pa.int64())})
    with pytest.raises(EmptySourceError, match=r"no row in .*a\.parquet"):
        Parquet(empty).open()
    path = write(tmp_path / "b.parquet", {"a": list(range(1000))})
    good = path.read_bytes()
    for data in (good[:-1], b"", b"x" * 100):
        path.write_bytes(data)
        with pytest.raises(BrokenFileError, match=r"b\.parquet"):
            Parquet(path).open()


def test_a_damaged_row_group_is_an_error_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    text = [f"some text {n}" * 5 for n in range(500)]
    pq.write_table(pa.table({"a": text}), path, compression="zstd", write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[40:80] = bytes(40)
    path.write_bytes(data)
    reader = Parquet(path).open()
    with pytest.raises(BrokenFileError, match=r"a\.parquet: row group 0 is damaged"):
        reader.bind()(0)
    reader.close()


def test_a_file_that_changed_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"a": [1, 2]})
    reader = Parquet(path).open()
    write(path, {"a": [3, 4, 5]})
    with pytest.raises(ObjectChangedError, match=r"a\.parquet changed"):
        reader.bind()(0)
    reader.close()


def test_misuse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="keep_groups"):
        Parquet("a", keep_groups=0)
    with pytest.raises(TypeError, match="tuple"):
        Parquet("a", columns="n")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r'pip install "nogil_loader\[parquet\]"'):
        Parquet("a").open()

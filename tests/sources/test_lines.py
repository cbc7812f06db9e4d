from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nogil_loader.sources import lines as lines_module
from nogil_loader.sources.base import Sample, Source
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError
from nogil_loader.sources.lines import Lines

Check = Callable[[Source], list[Sample]]
Make = Callable[[dict[str, bytes]], Path]


def contents(samples: list[Sample]) -> list[bytes]:
    got = []
    for sample in samples:
        assert isinstance(sample, bytes)
        got.append(sample)
    return got


def plainly(content: bytes) -> list[bytes]:
    """The same lines by another way."""
    pieces = content.split(b"\n")
    if pieces[-1] == b"":
        pieces.pop()
        ended = len(pieces)
    else:
        ended = len(pieces) - 1
    return [
        piece.removesuffix(b"\r") if number < ended else piece
        for number, piece in enumerate(pieces)
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"\xff", b""])), min_size=1))
def test_lines_are_the_bytes_between_line_ends(tmp_path: Path, files: list[list[bytes]]) -> None:
    wanted: list[bytes] = []
    paths = []
    for number, pieces in enumerate(files):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(b"".join(pieces))
        paths.append(path)
        wanted += plainly(path.read_bytes())
    source = Lines(paths, keep_index="memory")
    if not wanted:
        with pytest.raises(EmptySourceError, match=r"0\.txt"):
            source.open()
        return
    reader = source.open()
    read = reader.bind()
    assert contents([read(index) for index in range(len(reader))]) == wanted
    reader.close()


def test_files_are_read_the_same_by_all(check: Check, make: Make) -> None:
    root = make({"a.txt": b"1\n\n2\n", "b.txt": b"", "c.txt": b"3\r\n4"})
    source = Lines(f"{root}/*.txt", keep_index=root / "index")
    assert contents(check(source)) == [b"1", b"", b"2", b"3", b"4"]
    reader = source.open()
    assert [reader.ref(index) for index in (0, 2, 3)] == [
        f"{root}/a.txt:1",
        f"{root}/a.txt:3",
        f"{root}/c.txt:1",
    ]
    reader.close()


def test_lines_cross_the_chunks_of_the_index(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"".join(b"%d\n" % number for number in range(500))
    root = make({"a": content})
    monkeypatch.setattr(lines_module, "CHUNK", 7)
    reader = Lines(root / "a", keep_index="memory").open()
    read = reader.bind()
    assert contents([read(index) for index in range(500)]) == content.split()
    reader.close()


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_are_told_by_content(
    check: Check, make: Make, pack: Callable[[bytes], bytes]
) -> None:
    content = b"".join(b"line %d\n" % number for number in range(1000))
    root = make({"a.txt": pack(content) + pack(b"more\n"), "b.gz": b"not compressed\n"})
    samples = contents(check(Lines((root / "a.txt", root / "b.gz"))))
    assert samples == [*content.splitlines(), b"more", b"not compressed"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_damaged_compressed_files_are_errors_with_their_name(
    make: Make, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(os.urandom(5000))
    broken = packed[:2500] + bytes(50) + packed[2550:]
    root = make({"cut": packed[:-100], "broken": broken})
    for name in ("cut", "broken"):
        with pytest.raises(BrokenFileError, match=name):
            Lines(root / name, keep_index="memory").open()


def test_an_index_is_kept_and_made_again_when_the_file_changes(make: Make) -> None:
    root = make({"a": b"1\n2\n"})
    source = Lines(root / "a", keep_index="beside")
    source.open().close()
    kept = root / "a.nlindex"
    before = kept.stat().st_ino
    source.open().close()
    assert kept.stat().st_ino == before, "the kept index was not used"
    (root / "a").write_bytes(b"1\n2\n3\n")
    reader = source.open()
    assert len(reader) == 3
    reader.close()
    kept.write_bytes(kept.read_bytes()[:50])
    reader = source.open()
    assert len(reader) == 3
    reader.close()


def test_a_folder_that_cannot_be_written_only_costs_time(make: Make) -> None:
    root = make({"a": b"1\n2\n", "file": b""})
    reader = Lines(root / "a", keep_index=root / "file" / "below").open()
    assert len(reader) == 2
    reader.close()


def test_missing_files_and_folders_are_their_own_errors(make: Make, tmp_path: Path) -> None:
    root = make({"a/b": b""})
    with pytest.raises(FileNotFoundError, match="gone"):
        Lines(root / "gone").open()
    with pytest.raises(IsADirectoryError, match="a"):
        Lines(root / "a").open()
    with pytest.raises(EmptySourceError, match=r"\*\.txt"):
        Lines(f"{root}/*.txt").open()
    with pytest.raises(EmptySourceError, match="b"):
        Lines(root / "a" / "b", keep_index="memory").open()


def test_the_index_is_eight_bytes_a_line(make: Make) -> None:
    count = 100_000
    root = make({"a": b"x\n" * count})
    reader = Lines(root / "a", keep_index="memory").open()
    assert len(reader) == count
    assert reader.nbytes < 8 * count + 100
    assert isinstance(reader._starts, np.ndarray)
    reader.close()

from __future__ import annotations

import os
import resource
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.sources import blobs as blobs_module
from nogil_loader.sources.blobs import LocalBlobs, coalesced, open_blobs, read_parts
from nogil_loader.sources.errors import BrokenFileError, ObjectChangedError


def make(folder: Path, count: int) -> list[str]:
    paths = []
    for number in range(count):
        path = folder / f"{number}.bin"
        path.write_bytes(b"%06d" % number * 10)
        paths.append(str(path))
    return paths


def test_any_thread_reads_any_place(tmp_path: Path) -> None:
    blobs = LocalBlobs(make(tmp_path, 20))
    wrong: list[object] = []

    def work(step: int) -> None:
        read = blobs.bind()
        for turn in range(400):
            number = turn * step % 20
            if read(number, 6 * (turn % 10), 6) != b"%06d" % number:
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(step,)) for step in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    blobs.close()


def test_no_more_than_so_many_files_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "KEPT_OPEN", 3)
    before = len(os.listdir("/proc/self/fd"))
    blobs = LocalBlobs(make(tmp_path, 20))
    read = blobs.bind()
    assert [read(number, 0, 6) for number in range(20)] == [b"%06d" % n for n in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 3
    blobs.close()
    blobs.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_thousands_of_files_stay_below_the_limit_of_the_process(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        blobs = LocalBlobs(make(tmp_path, 400))
        read = blobs.bind()
        assert all(read(number, 0, 6) == b"%06d" % number for number in range(400))
        blobs.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_read_past_the_end_names_the_file_and_the_place(tmp_path: Path) -> None:
    blobs = LocalBlobs(make(tmp_path, 1))
    with pytest.raises(BrokenFileError, match=r"0\.bin ends at 60: 10 bytes were expected at 55"):
        blobs.bind()(0, 55, 10)
    blobs.close()


def test_a_file_that_changed_before_it_was_read_is_an_error(tmp_path: Path) -> None:
    paths = make(tmp_path, 1)
    blobs = LocalBlobs(paths)
    Path(paths[0]).write_bytes(b"another one")
    with pytest.raises(ObjectChangedError, match=r"0\.bin changed"):
        blobs.bind()(0, 0, 6)
    blobs.close()


def test_reading_after_close_is_an_error(tmp_path: Path) -> None:
    blobs = LocalBlobs(make(tmp_path, 1))
    read = blobs.bind()
    blobs.close()
    with pytest.raises(ValueError, match="closed"):
        read(0, 0, 6)


def test_paths_and_addresses_do_not_mix() -> None:
    with pytest.raises(ValueError, match="cannot be mixed"):
        open_blobs(["a.tar", "http://localhost/b.tar"])


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=12),
    st.integers(0, 15),
)
def test_near_parts_are_read_together_and_come_out_apart(
    steps: list[tuple[int, int]], gap: int
) -> None:
    data = bytes(index % 251 for index in range(1000))
    parts, place = [], 0
    for step, size in steps:
        parts.append((place + step, size))
        place += step + size
    reads: list[tuple[int, int]] = []

    def read(_: int, offset: int, size: int) -> bytes:
        reads.append((offset, size))
        return data[offset : offset + size]

    assert read_parts(read, 0, parts, gap) == [data[at : at + size] for at, size in parts]
    assert reads == coalesced(parts, gap)
    for (start, size), (after, _) in pairwise(reads):
        assert after > start + size + gap


def test_a_file_address_is_a_path(tmp_path: Path) -> None:
    (path,) = make(tmp_path, 1)
    blobs = open_blobs([f"file://{path}"])
    assert blobs.bind()(0, 6, 6) == b"000000"
    blobs.close()

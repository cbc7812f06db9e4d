"""Caches: what is kept, what is found damaged, and what happens when there is no room."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader.caches.folder import FolderCache
from nogil_loader.caches.memory import MemoryCache


def sample_of(index: int) -> dict[str, object]:
    return {"x": np.arange(index, index + 100, dtype=np.float32), "name": f"n{index}"}


def same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.sample"))


def test_a_folder_gives_back_what_was_put(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path, None, "key")
    for index in (0, 1, 5000):
        cache.put(index, sample_of(index))
    again = FolderCache(tmp_path, None, "key")
    for index in (0, 1, 5000):
        hit, sample = again.get(index)
        assert hit and same(sample, sample_of(index))
    assert again.get(2) == (False, None)


def test_arrays_of_a_folder_hit_are_read_only_and_outlive_their_file(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path, None, "key")
    cache.put(0, sample_of(0))
    sample = cache.get(0)[1]
    assert isinstance(sample, dict)
    files(tmp_path)[0].unlink()
    assert same(sample, sample_of(0))
    with pytest.raises(ValueError, match="read-only"):
        sample["x"][0] = 1


@pytest.mark.parametrize("place", [0, 4, 9, 20, 200, -1])
def test_a_damaged_byte_is_a_miss_and_the_file_goes(tmp_path: Path, place: int) -> None:
    cache = FolderCache(tmp_path, None, "key")
    cache.put(0, sample_of(0))
    path = files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[place] ^= 0x55
    path.write_bytes(data)
    assert cache.get(0) == (False, None)
    assert not path.exists()


@pytest.mark.parametrize("size", [0, 3, 15, 40, 300])
def test_a_cut_file_is_a_miss(tmp_path: Path, size: int) -> None:
    cache = FolderCache(tmp_path, None, "key")
    cache.put(0, sample_of(0))
    path = files(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:size])
    assert cache.get(0) == (False, None)


def test_another_version_finds_nothing(tmp_path: Path) -> None:
    FolderCache(tmp_path, None, "one").put(0, 1)
    assert FolderCache(tmp_path, None, "two").get(0) == (False, None)


def test_a_full_folder_stops_inserting_and_goes_on_reading(tmp_path: Path) -> None:
    cache = FolderCache(tmp_path, 1500, "key")
    for index in range(10):
        cache.put(index, sample_of(index))
    kept = [index for index in range(10) if cache.get(index)[0]]
    assert kept and len(kept) < 10 and cache.full
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 1500


def test_a_full_disk_stops_inserting_and_leaves_no_half_file(tmp_path: Path) -> None:
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from nogil_loader.caches.folder import FolderCache
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
cache = FolderCache({str(tmp_path)!r}, None, "key")
cache.put(0, b"x" * 100)
cache.put(1, b"x" * 5000)
assert cache.full and cache.get(0) == (True, b"x" * 100) and cache.get(1) == (False, None)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
    assert not list(tmp_path.rglob("*.new"))


def test_processes_share_a_folder(tmp_path: Path) -> None:
    code = f"""
import numpy as np
from nogil_loader.caches.folder import FolderCache
cache = FolderCache({str(tmp_path)!r}, None, "key")
for index in range(200):
    hit, sample = cache.get(index)
    assert not hit or (sample == index).all(), sample
    cache.put(index, np.full(1000, index))
"""
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [child.wait(120) for child in children] == [0, 0, 0]
    cache = FolderCache(tmp_path, None, "key")
    assert all(cache.get(index)[0] for index in range(200))
    assert not list(tmp_path.rglob("*.new"))


def test_processes_that_fill_a_folder_together_keep_to_its_bytes(tmp_path: Path) -> None:
    code = f"""
import sys
import numpy as np
from nogil_loader.caches.folder import FolderCache
cache = FolderCache({str(tmp_path)!r}, 1_000_000, "key")
print(flush=True)
sys.stdin.readline()
for index in range(200):
    cache.put(int(sys.argv[1]) + index, np.zeros(5000))
assert cache.full
"""
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen([sys.executable, "-c", code, f"{first}"], stdin=pipe, stdout=pipe)
        for first in (0, 1000, 2000)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        child.communicate(b"\n", timeout=60)
        assert child.returncode == 0
    used = sum(path.stat().st_size for path in tmp_path.rglob("*.*"))
    assert 900_000 < used <= 1_000_000 + 2 * 3 * 41_000


def test_a_sample_that_another_process_made_too_counts_once(tmp_path: Path) -> None:
    one, other = (FolderCache(tmp_path, 1_000_000, "key") for _ in range(2))
    for index in range(15):
        one.put(index, bytes(40_000))
        other.put(index, bytes(40_000))
    for index in range(15, 30):
        other.put(index, bytes(40_000))
    assert len(files(tmp_path)) == 24


def test_a_writer_that_is_killed_leaves_whole_samples_or_none(tmp_path: Path) -> None:
    code = f"""
import numpy as np
from nogil_loader.caches.folder import FolderCache
cache = FolderCache({str(tmp_path)!r}, None, "key")
print(flush=True)
for turn in range(10**6):
    cache.put(turn % 20, np.full(100_000, turn % 20))
"""
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            while not files(tmp_path):
                assert child.poll() is None
            child.kill()
    cache = FolderCache(tmp_path, None, "key")
    hits = [(index, cache.get(index)) for index in range(20)]
    assert any(hit for _, (hit, _) in hits)
    for index, (hit, sample) in hits:
        assert not hit or (np.asarray(sample) == index).all()


def test_what_a_crash_left_half_written_is_removed_an_hour_later(tmp_path: Path) -> None:
    FolderCache(tmp_path, None, "key").put(0, 1)
    folder = files(tmp_path)[0].parent
    old, fresh = folder / "1.sample.1-1.new", folder / "2.sample.1-1.new"
    for path in (old, fresh):
        path.write_bytes(b"half")
    an_hour_ago = time.time() - 3601
    os.utime(old, (an_hour_ago, an_hour_ago))
    assert FolderCache(tmp_path, None, "key").get(0) == (True, 1)
    assert fresh.exists() and not old.exists()


def test_memory_hits_are_read_only_and_bounded() -> None:
    cache = MemoryCache(1000, sizeof=lambda sample: 400)
    for index in range(5):
        cache.put(index, sample_of(index))
    assert [cache.get(index)[0] for index in range(5)] == [True, True, False, False, False]
    hit = cache.get(0)[1]
    assert isinstance(hit, dict)
    with pytest.raises(ValueError, match="read-only"):
        hit["x"][0] = 1


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_a_cached_pipeline_makes_no_sample_again(tmp_path: Path, where: str) -> None:
    made: list[int] = []

    def make(index: int) -> dict[str, object]:
        made.append(index)
        return sample_of(index)

    place = "memory" if where == "memory" else tmp_path
    plain = nl.from_sequence(range(40)).map(make)
    cached = plain.cache(place, max_bytes=1 << 20).shuffle(3).batch(8)
    want = [list(nl.from_sequence(range(40)).map(sample_of).shuffle(3).batch(8).run(epoch=e))
            for e in range(3)]  # fmt: skip
    if where == "folder":
        got = [list(cached.run(epoch=epoch)) for epoch in range(3)]
        assert sorted(made) == list(range(40))
    else:  # epochs overlap, and a sample that two of them ask for at once is made twice
        got = [list(run) for run in cached.epochs(3)]
        assert set(made) == set(range(40)) and len(made) <= 80
    for one, other in zip(want, got, strict=True):
        assert all(same(a, b) for a, b in zip(one, other, strict=True))


def test_failures_are_never_cached(tmp_path: Path) -> None:
    calls: list[int] = []

    def fails_first(index: int) -> int:
        calls.append(index)
        if index == 3 and calls.count(3) == 1:
            raise OSError("once")
        return index

    pipeline = nl.from_sequence(range(6)).map(fails_first, on_error="skip").cache(tmp_path)
    assert list(pipeline) == [0, 1, 2, 4, 5]
    assert list(pipeline) == list(range(6))
    count = len(calls)
    assert list(pipeline) == list(range(6)) and len(calls) == count


def test_substitutes_are_never_cached_and_take_the_place_of_the_field(tmp_path: Path) -> None:
    broken = [True]

    def fails(value: int) -> int:
        if value == 2 and broken[0]:
            raise OSError("broken")
        return value * 10

    data = nl.from_sequence([{"x": i, "y": -i} for i in range(4)])
    pipeline = data.map(fails, key="x", on_error=lambda ref, error: -1).cache(tmp_path)
    assert [sample["x"] for sample in pipeline] == [0, 10, -1, 30]
    broken[0] = False
    assert [(sample["x"], sample["y"]) for sample in pipeline] == [
        (0, 0),
        (10, -1),
        (20, -2),
        (30, -3),
    ]


def test_randomness_above_a_cache_is_refused_unless_frozen() -> None:
    def noise(value: int, rng: np.random.Generator) -> float:
        return value + float(rng.random())

    noisy = nl.from_sequence(range(5)).map(noise, rng=True)
    with pytest.raises(ValueError, match="freeze_rng=True"):
        noisy.cache("memory")
    frozen = noisy.cache("memory", freeze_rng=True)
    runs = [list(run) for run in frozen.epochs(2)]
    assert runs[0] == runs[1]

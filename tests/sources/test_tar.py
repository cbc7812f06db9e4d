from __future__ import annotations

import io
import logging
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nogil_loader.sources import saved, tar_format
from nogil_loader.sources.base import Sample, Source, StreamReader, StreamSource
from nogil_loader.sources.errors import (
    BrokenFileError,
    EmptySourceError,
    TruncatedFileError,
    UnsupportedMemberError,
)
from nogil_loader.sources.tar import Tar
from nogil_loader.sources.tar_stream import TarStream
from nogil_loader.testing import broken
from tests import fuzzed

Check = Callable[[Source], list[Sample]]
Members = list[tuple[str, bytes]]

MODES = {"plain": "w", "gzip": "w:gz", "bzip2": "w:bz2", "xz": "w:xz"}


def write(path: Path, members: Members, mode: str = "w", form: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(str(path), mode, format=form) as file:  # type: ignore[call-overload]
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def pairs(first: int, count: int, size: int = 100) -> Members:
    return [
        (f"d/{number:04d}.{field}", f"{field}{number}".encode() * size)
        for number in range(first, first + count)
        for field in ("jpg", "cls")
    ]


def expected(members: Members) -> list[dict[str, object]]:
    """The samples by the naming rule, written another way."""
    made: dict[str, dict[str, object]] = {}
    for name, content in members:
        folder, last = os.path.split(name.removeprefix("./"))
        if last.startswith("."):
            continue
        base, _, field = last.partition(".")
        key = f"{folder}/{base}" if folder else base
        made.setdefault(key, {"__key__": key})[field.lower()] = content
    return list(made.values())


def all_of(source: Tar) -> list[Sample]:
    reader = source.open()
    read = reader.bind()
    samples = [read(index) for index in range(len(reader))]
    reader.close()
    return samples


def test_shards_are_read_the_same_by_all(check: Check, tmp_path: Path) -> None:
    wanted = []
    for number in range(3):
        members = pairs(number * 20, 20)
        write(tmp_path / f"{number}.tar", members, form=number % 3)
        wanted += expected(members)
    source = Tar(f"{tmp_path}/*.tar", keep_index=tmp_path / "index")
    assert check(source) == wanted
    assert len(os.listdir(tmp_path / "index")) == 3
    reader = source.open()
    assert reader.ref(21) == f"{tmp_path}/1.tar:d/0021"
    reader.close()


names = st.sampled_from(
    [f"{folder}{base}.{field}" for folder in ("", "./", "a.b/", "é/") for base in ("1", "2", "x")
     for field in ("jpg", "JPEG", "seg.png", "")]
    + ["README", "._1.jpg", "a/.hidden", "n" * 120 + ".txt"]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(names, st.binary(max_size=700)), unique_by=lambda pair: pair[0].lower()))
def test_samples_follow_the_naming_wherever_their_members_lie(
    tmp_path: Path, members: Members
) -> None:
    # "1.jpg" and "./1.jpg" are one name.
    unique = {name.removeprefix("./").lower().rstrip("."): (name, data) for name, data in members}
    members = list(unique.values())
    source = Tar(write(tmp_path / "a.tar", members), keep_index="memory")
    wanted = expected(members)
    if not wanted:
        with pytest.raises(EmptySourceError, match=r"a\.tar"):
            source.open()
        return
    assert all_of(source) == wanted


def test_members_out_of_order_are_joined(check: Check, tmp_path: Path) -> None:
    members = pairs(0, 30)
    random.Random(5).shuffle(members)
    source = Tar(write(tmp_path / "a.tar", members), keep_index=tmp_path / "i")
    assert check(source) == expected(members)


def test_members_out_of_order_in_several_shards_keep_their_shard(tmp_path: Path) -> None:
    members = [("1.a", b"a"), ("2.a", b"b"), ("1.b", b"c")]
    for number in range(3):
        write(tmp_path / f"{number}.tar", [(name, b"%d" % number + b) for name, b in members])
    samples = all_of(Tar(f"{tmp_path}/*.tar", keep_index="memory"))
    assert samples[2:4] == [
        {"__key__": "1", "a": b"1a", "b": b"1c"},
        {"__key__": "2", "a": b"1b"},
    ]


def test_equal_hashes_of_different_keys_do_not_join_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.tar", [("1.a", b"a"), ("2.a", b"b"), ("1.b", b"c"), ("3.a", b"d")])
    monkeypatch.setattr("nogil_loader.sources.tar_index.hash", lambda key: 7, raising=False)
    keys = [sample["__key__"] for sample in all_of(Tar(path, keep_index="memory"))]  # type: ignore[index]
    assert keys == ["1", "2", "3"]


def test_a_member_that_is_there_twice_is_an_error_unless_the_last_counts(tmp_path: Path) -> None:
    for members in (
        [("1.jpg", b"old"), ("1.jpg", b"new")],
        [("1.jpg", b"old"), ("2.jpg", b"x"), ("1.JPG", b"new")],
    ):
        path = write(tmp_path / "a.tar", members)
        with pytest.raises(BrokenFileError, match=r"a\.tar has 1\.(jpg|JPG) twice"):
            Tar(path, keep_index="memory").open()
        samples = all_of(Tar(path, duplicates="last", keep_index="memory"))
        assert samples[0] == {"__key__": "1", "jpg": b"new"}


def test_chosen_fields_come_in_the_order_asked_and_a_lack_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [("1.jpg", b"j"), ("1.cls", b"c"), ("2.jpg", b"k")])
    reader = Tar(path, fields=("cls", "jpg"), keep_index="memory").open()
    read = reader.bind()
    assert list(read(0)) == ["__key__", "cls", "jpg"]  # type: ignore[call-overload]
    with pytest.raises(KeyError, match=r"a\.tar:2 has no member \.cls"):
        read(1)
    reader.close()


def test_sparse_files_and_links_are_refused_by_name_when_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as file:
        file.addfile(tarfile.TarInfo("1.jpg"))
        for flag, name in ((tarfile.LNKTYPE, "2.jpg"), (tarfile.SYMTYPE, "3.jpg"), (b"S", "4.jpg")):
            member = tarfile.TarInfo(name)
            member.type = flag
            member.linkname = "1.jpg"
            file.addfile(member)
        file.addfile(tarfile.TarInfo("5.jpg"))
    reader = Tar(path, keep_index="memory").open()
    read = reader.bind()
    assert len(reader) == 5
    for index, kind in ((1, "a hard link"), (2, "a symbolic link"), (3, "a sparse file")):
        with pytest.raises(UnsupportedMemberError, match=rf"a\.tar:{index + 1}\.jpg is {kind}"):
            read(index)
    assert read(4) == {"__key__": "5", "jpg": b""}
    reader.close()

    stream = TarStream(path).open()
    keys: list[object] = []
    while True:
        try:
            sample = next(stream)
        except UnsupportedMemberError as error:
            keys.append(str(error).split(" is ")[0][-5:])
        except StopIteration:
            break
        else:
            keys.append(sample["__key__"])  # type: ignore[index]
    assert keys == ["1", "2.jpg", "3.jpg", "4.jpg", "5"]
    stream.close()


def test_a_shard_made_sparse_by_gnu_tar_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "1.bin", "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"data")
    for number, options in enumerate(("--format=gnu", "--format=posix")):
        path = tmp_path / f"{number}.tar"
        code = os.system(f"cd {tmp_path} && tar {options} --sparse -cf {path.name} 1.bin")
        if code:
            pytest.skip("there is no tar command here")
        reader = Tar(path, keep_index="memory").open()
        with pytest.raises(UnsupportedMemberError, match=r"1\.bin is a sparse file"):
            reader.bind()(0)
        reader.close()


def test_a_cut_shard_is_an_error_or_gives_its_whole_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = pairs(0, 3)
    path = write(tmp_path / "a.tar", members)
    data = path.read_bytes()
    lying = list(tar_format.scan(lambda at, size: data[at : at + size], "a"))
    for size in [*range(1, lying[-1].end, 61), *(member.end for member in lying)]:
        path.write_bytes(data[:size])
        begun = [member for member in lying if member.start < size]
        last = begun[-1]
        keep = Tar(path, truncated="keep", keep_index="memory")
        if size >= last.data + last.size:  # nothing but padding is missing
            wanted = expected(members[: len(begun)])
            assert all_of(Tar(path, keep_index="memory")) == all_of(keep) == wanted
            continue
        with pytest.raises(TruncatedFileError, match=r"a\.tar is cut short"):
            Tar(path, keep_index="memory").open()
        # Cut within a header, nobody knows whether the sample before it is whole.
        lost = last if size >= last.data else begun[-2] if len(begun) > 1 else last
        key = os.fsdecode(tar_format.key_and_field(lost.name)[0])
        wanted = [sample for sample in expected(members[: len(begun)]) if sample["__key__"] != key]
        if size < last.data:
            wanted = [
                sample for sample in expected(members[: len(begun) - 1]) if sample["__key__"] != key
            ]
        if wanted:
            assert all_of(keep) == wanted
        else:
            with pytest.raises(EmptySourceError):
                keep.open()
    assert "is left out" in caplog.text


def test_a_missing_end_mark_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.tar", [("1.a", b"x" * 512)])
    path.write_bytes(path.read_bytes()[:1024])
    assert len(all_of(Tar(path, keep_index="memory"))) == 1
    assert "no end mark" in caplog.text
    caplog.clear()
    assert len(list(TarStream(path).open())) == 1
    assert "no end mark" in caplog.text


def test_folders_alone_and_missing_shards_are_their_own_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as file:
        member = tarfile.TarInfo("folder")
        member.type = tarfile.DIRTYPE
        file.addfile(member)
    with pytest.raises(EmptySourceError, match=r"no sample in .*a\.tar"):
        Tar(path, keep_index="memory").open()
    with pytest.raises(FileNotFoundError, match="gone"):
        Tar(tmp_path / "gone.tar").open()
    with pytest.raises(EmptySourceError, match=r"no tar file matches"):
        Tar(f"{tmp_path}/none*.tar").open()
    (tmp_path / "zero.tar").write_bytes(b"")
    with pytest.raises(BrokenFileError, match="empty"):
        Tar(tmp_path / "zero.tar", keep_index="memory").open()


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_compressed_shards_are_refused_with_the_cure(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.tar", pairs(0, 2), MODES[kind])
    with pytest.raises(UnsupportedMemberError, match=rf"{kind}.*stream=True"):
        Tar(path, keep_index="memory").open()


def test_an_index_is_used_until_its_shard_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", pairs(0, 3))
    source = Tar(path, keep_index="beside")
    source.open().close()
    kept = tmp_path / "a.tar.nlindex"
    before = kept.stat().st_ino
    source.open().close()
    assert kept.stat().st_ino == before
    write(path, pairs(7, 4))
    assert all_of(source) == expected(pairs(7, 4))
    assert kept.stat().st_ino != before
    Tar(path, keep_index="beside", duplicates="last").open().close()


def test_an_index_is_kept_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(tmp_path / "a.tar", pairs(0, 3))
    Tar(path).open().close()
    (index,) = (tmp_path / "cache" / "nogil-loader" / "index").iterdir()
    assert index.suffix == saved.SUFFIX


def test_building_an_index_says_how_far_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "EVERY_SECONDS", 0.0)
    path = write(tmp_path / "a.tar", pairs(0, 2000, size=1))
    with caplog.at_level(logging.INFO, "nogil_loader.sources"):
        Tar(path, keep_index="memory").open().close()
    lines = [record.message for record in caplog.records if "indexing 1 x tar" in record.message]
    assert len(lines) >= 3
    assert "100 %" in lines[-1]


def test_the_index_is_twelve_bytes_a_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", pairs(0, 3000, size=1))
    reader = Tar(path, keep_index="memory").open()
    assert reader.nbytes < 12 * 3000 + 100
    reader.close()


def test_the_fingerprint_sees_shards_and_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", pairs(0, 3))
    seen = set()
    for source in (
        Tar(path, keep_index="memory"),
        Tar(path, fields=("jpg",), keep_index="memory"),
        Tar([path, write(tmp_path / "b.tar", pairs(0, 3))], keep_index="memory"),
    ):
        reader = source.open()
        seen.add(reader.fingerprint())
        reader.close()
    assert len(seen) == 3


# The stream.


@pytest.mark.parametrize("kind", MODES)
def test_a_stream_gives_what_random_access_gives(tmp_path: Path, kind: str) -> None:
    members = pairs(0, 10)
    for number in range(2):
        write(tmp_path / f"{number}.tar", members[number * 10 :][:10], MODES[kind])
    source = TarStream(f"{tmp_path}/*.tar")
    assert isinstance(source, StreamSource)
    reader = source.open()
    assert isinstance(reader, StreamReader)
    assert list(reader) == expected(members)
    assert reader.ref(6) == f"{tmp_path}/1.tar:d/0006"
    reader.close()
    reader.close()


@pytest.mark.parametrize("kind", MODES)
def test_a_stream_resumes_after_every_sample(tmp_path: Path, kind: str) -> None:
    members = pairs(0, 8)
    shards = [write(tmp_path / f"{n}.tar", members[n * 8 :][:8], MODES[kind]) for n in range(2)]
    source = TarStream(shards)
    wanted = expected(members)
    reader = source.open()
    for count in range(len(wanted) + 1):
        again = source.open(resume=reader.snapshot())
        assert list(again) == wanted[count:]
        again.close()
        if count < len(wanted):
            assert next(reader) == wanted[count]
    reader.close()


def test_a_pipe_is_read_as_it_comes(tmp_path: Path) -> None:
    data = write(tmp_path / "a.tar", pairs(0, 4)).read_bytes()
    reading, writing = os.pipe()
    os.write(writing, data[:3000])
    stream = TarStream(lambda: os.fdopen(reading, "rb", buffering=0)).open()
    assert next(stream) == expected(pairs(0, 4))[0]
    os.write(writing, data[3000:])
    os.close(writing)
    assert list(stream) == expected(pairs(0, 4))[1:]
    stream.close()


def test_a_stream_whose_members_lie_apart_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [("1.a", b""), ("2.a", b""), ("1.b", b"")])
    stream = TarStream(path).open()
    assert next(stream) == {"__key__": "1", "a": b""}
    with pytest.raises(BrokenFileError, match="do not lie together"):
        list(stream)
    stream.close()


@pytest.mark.parametrize("kind", MODES)
def test_a_stream_cut_short_gives_whole_samples_and_an_error(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.tar", [(f"{n}.bin", os.urandom(5000)) for n in range(20)],
                 MODES[kind])  # fmt: skip
    path.write_bytes(path.read_bytes()[:52_345])
    stream = TarStream(path).open()
    got: list[Sample] = []
    with pytest.raises(BrokenFileError, match=r"a\.tar"):
        got.extend(stream)
    assert all(len(sample["bin"]) == 5000 for sample in got)  # type: ignore[index]
    assert kind == "bzip2" or len(got) >= 7
    stream.close()


def test_a_stream_refuses_doubles_and_lacks_like_random_access(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [("1.a", b"x"), ("1.a", b"y"), ("2.b", b"z")])
    stream = TarStream(path).open()
    with pytest.raises(BrokenFileError, match="twice"):
        next(stream)
    stream.close()
    stream = TarStream(path, fields=("a",), duplicates="last").open()
    assert next(stream) == {"__key__": "1", "a": b"y"}
    with pytest.raises(KeyError, match=r"2 has no member \.a"):
        next(stream)
    stream.close()


@pytest.mark.parametrize("place", ["x", 3, {"shard": 1}, {"shard": "a", "offset": 0}])
def test_a_wrong_place_is_refused(place: object) -> None:
    with pytest.raises(ValueError, match="not a place"):
        TarStream("a.tar").open(resume=place)  # type: ignore[arg-type]


def test_damage_gives_documented_errors_or_what_both_readers_agree_on(tmp_path: Path) -> None:
    rng = random.Random(14)
    path = tmp_path / "a.tar"
    seeds = [
        write(
            path, [*pairs(0, 4, 9), ("n" * 90 + "/" + "m" * 60 + ".x.txt", b"")], form=form
        ).read_bytes()
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    ]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(fuzzed.count("tar")):
        path.write_bytes(_resealed(broken.mutated(rng.choice(seeds), rng), rng))
        options: dict[str, object] = {"duplicates": rng.choice(("raise", "last"))}
        try:
            found = all_of(Tar(path, keep_index="memory", **options))  # type: ignore[arg-type]
        except (BrokenFileError, UnsupportedMemberError, EmptySourceError) as error:
            assert "a.tar" in str(error)
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        stream = TarStream(path, **options).open()  # type: ignore[arg-type]
        try:
            assert list(stream) == found
        except BrokenFileError as error:
            assert "do not lie together" in str(error)
        finally:
            stream.close()
    assert min(outcomes.values()) > fuzzed.count("tar") // 20, outcomes


def _resealed(data: bytes, rng: random.Random) -> bytes:
    """Half of the time with the checksum of the first header made right again, so that the
    damage in it is looked at."""
    if len(data) < 512 or rng.random() < 0.5:
        return data
    head = data[:148] + b" " * 8 + data[156:512]
    return data[:148] + b"%06o\0 " % sum(head) + data[156:]

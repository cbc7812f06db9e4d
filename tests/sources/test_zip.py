from __future__ import annotations

import io
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nogil_loader.sources.base import Sample, Source
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError, UnsupportedMemberError
from nogil_loader.sources.zip import Zip
from tests import fuzzed

Check = Callable[[Source], list[Sample]]


def write(path: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def all_of(source: Zip) -> list[Sample]:
    reader = source.open()
    try:
        read = reader.bind()
        return [read(index) for index in range(len(reader))]
    finally:
        reader.close()


def test_archives_are_read_the_same_by_all(check: Check, tmp_path: Path) -> None:
    wanted = []
    for number in range(2):
        members = [(f"{number}/{n}.txt", os.urandom(n * 7) + bytes(n * 50)) for n in range(20)]
        write(tmp_path / f"{number}.zip", members, (0, zipfile.ZIP_DEFLATED)[number])
        wanted += [{"path": name, "bytes": content} for name, content in members]
    source = Zip(f"{tmp_path}/*.zip", keep_index=tmp_path / "index")
    assert check(source) == wanted
    reader = source.open()
    assert reader.ref(21) == f"{tmp_path}/1.zip:1/1.txt"
    assert reader.nbytes == 8 * 40
    reader.close()


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0/\\."), min_size=1, max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(
        st.lists(texts, min_size=1, max_size=3).map("/".join), st.binary(max_size=400), min_size=1
    ),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2]),
    # zipfile itself is misled by a comment with the mark of the end in it.
    st.binary(max_size=80).filter(lambda comment: b"PK" not in comment),
    st.binary(max_size=80),
)
def test_it_reads_what_zipfile_reads(
    tmp_path: Path, members: dict[str, bytes], method: int, comment: bytes, before: bytes
) -> None:
    path = tmp_path / "a.zip"
    with open(path, "wb") as target:
        target.write(before)
        with zipfile.ZipFile(target, "w", method) as file:
            file.comment = comment
            for name, content in members.items():
                file.writestr(name, content)
    with zipfile.ZipFile(path) as file:
        wanted = [{"path": name, "bytes": file.read(name)} for name in file.namelist()]
    assert all_of(Zip(path, keep_index="memory")) == wanted


def test_a_comment_may_contain_the_mark_of_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.comment = b"PK\x05\x06" * 9
        file.writestr("1.txt", b"x")
    assert all_of(Zip(path, keep_index="memory")) == [{"path": "1.txt", "bytes": b"x"}]


def test_zip64_archives_and_streamed_members_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    made = io.BytesIO()

    class Unseekable(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            return made.write(data)  # type: ignore[arg-type]

    with zipfile.ZipFile(Unseekable(), "w") as file:
        with file.open("1.txt", "w", force_zip64=True) as member:
            member.write(b"content")
        file.writestr("2.txt", b"other")
    path.write_bytes(made.getvalue())
    assert all_of(Zip(path, keep_index="memory")) == [
        {"path": "1.txt", "bytes": b"content"},
        {"path": "2.txt", "bytes": b"other"},
    ]


def test_more_than_65535_members_are_read(tmp_path: Path) -> None:
    # Written by hand, since zipfile takes seconds: every entry leads to the one empty member.
    count = 65_540
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 1, 0) + b"n"
    directory = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\1\2", 45, 20, 0, 0, 0, 33, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0)
        + b"%05d" % number
        for number in range(count)
    )
    size, offset = len(directory), len(local)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, offset + size, 1)
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, size, offset, 0)
    path = tmp_path / "a.zip"
    path.write_bytes(local + directory + end)
    with zipfile.ZipFile(path) as file:
        assert len(file.namelist()) == count
    for before in (b"", b"something in front"):
        path.write_bytes(before + local + directory + end)
        reader = Zip(path, keep_index="memory").open()
        assert len(reader) == count
        assert reader.bind()(count - 1) == {"path": f"{count - 1}", "bytes": b""}
        reader.close()


def test_names_of_old_archives_are_code_page_437(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", [("cafe.txt", b"x")])
    path.write_bytes(path.read_bytes().replace(b"cafe", b"caf\x82"))
    assert all_of(Zip(path, keep_index="memory")) == [{"path": "café.txt", "bytes": b"x"}]


def test_very_long_names_and_comments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    name = "n" * 5000
    with zipfile.ZipFile(path, "w") as file:
        info = zipfile.ZipInfo(name)
        info.comment = b"c" * 60_000
        file.writestr(info, b"x")
    assert all_of(Zip(path, keep_index="memory")) == [{"path": name, "bytes": b"x"}]


def test_labels_count_the_first_folders_of_all_archives(check: Check, tmp_path: Path) -> None:
    write(tmp_path / "1.zip", [("dog/1", b""), ("cat/2", b"")])
    write(tmp_path / "2.zip", [("ant/3", b""), ("dog/4", b"")])
    source = Zip(f"{tmp_path}/*.zip", labels="folder", keep_index=tmp_path / "i")
    assert [sample["label"] for sample in check(source)] == [2, 1, 0, 2]  # type: ignore[index]
    reader = source.open()
    assert reader.classes == ("ant", "cat", "dog")
    reader.close()
    write(tmp_path / "3.zip", [("stray", b"")])
    with pytest.raises(ValueError, match=r"3\.zip:stray"):
        source.open()


def test_folders_hidden_names_and_other_extensions_are_passed_over(tmp_path: Path) -> None:
    names = ["a/", "a/1.JPG", "a/.2.jpg", "__MACOSX/a/1.jpg", ".git/x.jpg", "./4.jpg", "5.txt"]
    path = write(tmp_path / "a.zip", [(name, b"") for name in names])
    samples = all_of(Zip(path, extensions=(".jpg",), keep_index="memory"))
    assert [sample["path"] for sample in samples] == ["a/1.JPG", "./4.jpg"]  # type: ignore[index]
    with pytest.raises(EmptySourceError, match=r"a\.zip"):
        Zip(path, extensions=(".png",), keep_index="memory").open()


def test_encrypted_and_unknown_methods_are_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", [("1.txt", b"x")], zipfile.ZIP_LZMA)
    with pytest.raises(UnsupportedMemberError, match=r"a\.zip:1\.txt is packed with lzma"):
        all_of(Zip(path, keep_index="memory"))
    data = bytearray(write(path, [("1.txt", b"x")]).read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(UnsupportedMemberError, match=r"1\.txt is encrypted"):
        all_of(Zip(path, keep_index="memory"))


def test_damage_is_an_error_with_the_archive_and_the_member(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zip", [("1.txt", random.Random(1).randbytes(200) + bytes(300))])
    good = path.read_bytes()
    directory = good.rindex(b"PK\x01\x02")

    def patched(place: int, value: bytes) -> bytes:
        return good[:place] + value + good[place + len(value) :]

    broken = {
        "no directory at its end": good[:-5],
        "not a zip archive": b"x" * 1000,
        "or cut short": b"",
        "does not fit": patched(len(good) - 6, struct.pack("<L", 1 << 30)),
        "damaged directory": patched(directory, b"XX"),
        "no header where": patched(0, b"XX"),
        "is damaged": patched(60, b"\xff\xff\xff\xff"),
        "its checksum differs": patched(directory + 16, b"\0\0\0\0"),
        "the directory says 7": patched(directory + 24, struct.pack("<L", 7)),
    }
    for reason, data in broken.items():
        path.write_bytes(data)
        with pytest.raises(BrokenFileError) as caught:
            all_of(Zip(path, keep_index="memory"))
        assert reason in str(caught.value)
        assert "a.zip" in str(caught.value)


def test_mutated_archives_give_documented_errors_only(tmp_path: Path) -> None:
    rng = random.Random(12)
    path = tmp_path / "a.zip"
    seeds = [
        write(path, [("1.txt", b"content " * 20), ("é/2.bin", b"")], method).read_bytes()
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
    ]
    outcomes = {"read": 0, "refused": 0, "unnamed": 0}
    for turn in range(fuzzed.count("zip")):
        data = bytearray(seeds[turn % 3])
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(data) // 3, len(data)) if rng.random() < 0.7 else 0
            if rng.random() < 0.8:
                data[place] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
            else:
                del data[place : place + rng.randint(1, 40)]
            if not data:
                break
        path.write_bytes(data)
        try:
            all_of(Zip(path, keep_index="memory"))
            outcomes["read"] += 1
        except (BrokenFileError, UnsupportedMemberError, EmptySourceError) as error:
            outcomes["refused" if "a.zip" in str(error) else "unnamed"] += 1
    assert not outcomes["unnamed"]
    assert min(outcomes["read"], outcomes["refused"]) > fuzzed.count("zip") // 20, outcomes

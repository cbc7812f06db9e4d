from __future__ import annotations

import io
import random
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nogil_loader.sources.errors import BrokenFileError, TruncatedFileError
from nogil_loader.sources.tar_format import is_hidden, key_and_field, plain, scan
from tests import fuzzed

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def archive(members: list[tuple[str, bytes]], form: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as file:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return made.getvalue()


def members(data: bytes) -> list[tuple[bytes, bytes, str]]:
    return [
        (member.name, data[member.data : member.data + member.size], member.kind)
        for member in scan(lambda offset, size: data[offset : offset + size], "x.tar")
    ]


def header(
    name: bytes, size: bytes = b"0", flag: bytes = b"0", magic: bytes = b"ustar\x0000", **at: bytes
) -> bytes:
    """One header block made by hand, for what no writer writes."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[156:157] = flag
    block[257 : 257 + len(magic)] = magic
    for place, value in at.items():
        start = int(place[1:])
        block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


letters = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=60)
paths = st.lists(letters.filter(lambda part: part not in (".", "..")), min_size=1, max_size=4).map(
    "/".join
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(paths, st.binary(max_size=1500)), max_size=6),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_it_reads_what_tarfile_reads(given: list[tuple[str, bytes]], form: int) -> None:
    data = archive(given, form)
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        wanted = []
        for member in file:
            content = file.extractfile(member)
            assert content is not None
            name = member.name.encode("utf-8", "surrogateescape").removeprefix(b"./")
            wanted.append((name, content.read(), "file"))
    assert members(data) == wanted


@pytest.mark.parametrize("form", FORMATS)
def test_parts_of_ordinary_files_are_read_the_same_without_verifying(form: int) -> None:
    data = archive([("a/1.jpg", b"x" * 700), ("./2.é", b""), ("d/" * 60 + "3", b"y")], form)
    part = data[: data.rindex(b"y") + 512]
    found = plain(part)
    if form == tarfile.USTAR_FORMAT:
        assert found is not None
    if found is not None:
        assert found == list(scan(lambda at, size: part[at : at + size], "x.tar", within=True))


def test_names_of_100_and_255_bytes_and_more_are_whole() -> None:
    for form in FORMATS:
        lengths = (99, 100, 101, 200) if form == tarfile.USTAR_FORMAT else (99, 100, 101, 5000)
        for length in lengths:
            name = ("d" * 50 + "/") * (length // 51)
            name += "f" * (length - len(name))
            assert members(archive([(name, b"x")], form)) == [(name.encode(), b"x", "file")]


def test_names_that_are_not_utf8_are_kept() -> None:
    for form in FORMATS:
        data = archive([("caf\udce9/\udcff.jpg", b"x")], form)
        assert members(data) == [(b"caf\xe9/\xff.jpg", b"x", "file")]


def test_a_size_may_be_in_base_256_or_in_a_pax_record() -> None:
    body = b"z" * 600
    padded = body + bytes(1024 - 600)
    big = b"\x80" + (600).to_bytes(11)
    assert members(header(b"a", big) + padded) == [(b"a", body, "file")]
    record = b"12 size=600\n"
    pax = header(b"x", b"%o" % len(record), b"x") + record + bytes(512 - len(record))
    assert members(pax + header(b"a", b"0") + padded) == [(b"a", body, "file")]


def test_every_kind_of_member_is_told_apart() -> None:
    kinds = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a character device",
             b"4": "a block device", b"5": "folder", b"6": "a pipe", b"7": "file",
             b"S": "a sparse file", b"Z": "of unknown type b'Z'"}  # fmt: skip
    for flag, kind in kinds.items():
        assert members(header(b"a", flag=flag)) == [(b"a", b"", kind)]
    assert members(header(b"a/", flag=b"\0", magic=b""))[0][2] == "folder"
    # A hard link may state the size of what it links to, but no content follows.
    linked = header(b"a", b"1000", b"1") + header(b"b")
    assert [name for name, _, _ in members(linked)] == [b"a", b"b"]


def test_sparse_files_are_told_in_all_their_forms() -> None:
    record = b"22 GNU.sparse.major=1\n"
    pax = header(b"x", b"%o" % len(record), b"x") + record + bytes(512 - len(record))
    assert members(pax + header(b"a"))[0][2] == "a sparse file"
    # The old form, with a second header of its own, then another member.
    more = bytearray(512)
    old = header(b"a", b"3", b"S", b"ustar  \0", _482=b"\1") + bytes(more) + b"abc" + bytes(509)
    assert [name for name, _, _ in members(old + header(b"b"))] == [b"a", b"b"]


def test_archives_after_one_another_are_read_through() -> None:
    one, other = archive([("a", b"1")], tarfile.PAX_FORMAT), archive([("b", b"2")], FORMATS[0])
    assert [name for name, _, _ in members(one + other)] == [b"a", b"b"]


def test_a_global_header_is_passed_over_unless_it_names_all_members() -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", pax_headers={"comment": "from git"}) as file:
        file.addfile(tarfile.TarInfo("a"))
    assert members(made.getvalue()) == [(b"a", b"", "file")]
    record = b"10 path=x\n"
    data = header(b"g", b"%o" % len(record), b"g") + record + bytes(512 - len(record))
    with pytest.raises(BrokenFileError, match="global header"):
        members(data + header(b"a"))


BROKEN = {
    "empty (0 bytes)": b"",
    "no valid header at 0": b"not a tar archive at all" * 100,
    "no valid header at 1024": header(b"a", b"1") + b"x" + bytes(511) + b"\1" * 512,
    "cut short": header(b"a") + header(b"b")[:300],
    "no valid header at 1536": header(b"a") + bytes(1024) + b"garbage" * 100,
    "for a number": header(b"a", b"12x"),
    "for a number in": header(b"a", b"9"),
    "damaged PAX record": header(b"x", b"5", b"x") + b"hello" + bytes(507) + header(b"a"),
    "damaged PAX": header(b"x", b"14", b"x") + b"99 path=long\n" + bytes(499) + header(b"a"),
    "extension header of": header(b"L", b"77777777", b"L"),
    "extension header for nothing": header(b"L", b"1", b"L") + b"n" + bytes(511) + bytes(1024),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_damage_is_an_error_with_the_archive_and_the_reason(reason: str) -> None:
    with pytest.raises(BrokenFileError) as caught:
        members(BROKEN[reason])
    assert "x.tar" in str(caught.value)
    assert reason in str(caught.value)


def test_extension_headers_cut_short_are_truncation() -> None:
    data = archive([("n" * 300, b"x")], tarfile.GNU_FORMAT)
    for size in (600, 1024, 1200):
        with pytest.raises(TruncatedFileError, match="cut short"):
            members(data[:size])


def test_old_writers_with_signed_checksums_are_read() -> None:
    block = bytearray(header(b"caf\xe9"))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in block)
    assert members(bytes(block)) == [(b"caf\xe9", b"", "file")]


def test_keys_end_at_the_first_dot_of_the_last_component() -> None:
    for name, wanted in {
        b"1.jpg": (b"1", b"jpg"),
        b"a.b/c.d/1.seg.PNG": (b"a.b/c.d/1", b"seg.png"),
        b"README": (b"README", b""),
        b"a/b.": (b"a/b", b""),
        b"\xff.\xfe": (b"\xff", b"\xfe"),
    }.items():
        assert key_and_field(name) == wanted
    assert [is_hidden(name) for name in (b".a", b"x/._1.jpg", b"x.y/z", b"z")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_mutated_archives_give_documented_errors_only() -> None:
    rng = random.Random(11)
    seeds = [
        archive([("a/1.jpg", b"x" * 700), ("b" * 150, b"y"), ("é", b"")], form)
        for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    ] + [*BROKEN.values()]
    outcomes = {"read": 0, "refused": 0}
    for turn in range(fuzzed.count("tar format")):
        data = bytearray(seeds[turn % len(seeds) if turn % 4 == 0 else turn % 2])
        for _ in range(rng.randint(1, 4)):
            if not data:
                break
            place = rng.randrange(len(data))
            kind = rng.randrange(4)
            if kind == 0:
                data[place] = rng.randrange(256)
            elif kind == 1:
                del data[place:]
            elif kind == 2:
                data[place:place] = rng.randbytes(rng.choice((1, 512)))
            else:
                # A field of a header, with its checksum made right again.
                start = place // 512 * 512
                if start + 512 <= len(data):
                    data[start + rng.choice((124, 130, 156, 345, 257))] = rng.randrange(256)
                    data[start + 148 : start + 156] = b" " * 8
                    total = sum(data[start : start + 512])
                    data[start + 148 : start + 156] = b"%06o\0 " % total
        try:
            members(bytes(data))
            outcomes["read"] += 1
        except BrokenFileError as error:
            outcomes["refused" if "x.tar" in str(error) else "unnamed"] += 1
    assert min(outcomes.values()) > fuzzed.count("tar format") // 20, outcomes

"""A whole data set, read once: what is in it is counted, what is broken is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nogil_loader.cli import check
from nogil_loader.cli._terminal import UsageError
from nogil_loader.testing import media

pytest.importorskip("PIL")

ROOT = Path(__file__).parents[2]


def run(*words: str) -> tuple[int, str, str]:
    child = subprocess.run(
        [sys.executable, "-W", "error", "-m", "nogil_loader.cli", "check", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(Path(words[0]).parent)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return child.returncode, child.stdout, child.stderr


def findings(data: Path | str, decode: bool = True) -> check.Findings:
    reader = check.open_data(str(data))
    try:
        return check.check(reader, decode, 2, "txt")
    finally:
        reader.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Six pictures of two sizes, one cut short, one page of text that calls itself one."""
    paths = media.write_photos(tmp_path / "data", 4, size=(64, 48))
    media.write_photos(tmp_path / "data" / "more", 2, size=(48, 64))
    (tmp_path / "data" / "cut.jpg").write_bytes(paths[0].read_bytes()[:700])
    (tmp_path / "data" / "words.jpg").write_text("these are words")
    return tmp_path / "data"


def test_what_is_broken_is_named_and_the_rest_is_counted(pictures: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    code, out, err = run(str(pictures), "--decode", "--workers", "2", "--quarantine", str(bad))
    assert code == 1
    assert "Traceback" not in err
    assert out.startswith("8 samples, ")
    assert "48x64x3 (4), 64x48x3 (2); uint8" in out
    assert "2 broken:" in out
    entries = list(map(json.loads, bad.read_text().splitlines()))
    assert all(one["stage"] == "inspect" and one["type"] for one in entries)
    listed = {Path(one["sample"]).name: one["message"] for one in entries}
    assert set(listed) == {"cut.jpg", "words.jpg"}
    assert "ends before the picture does" in listed["cut.jpg"]
    assert "no picture of a known format" in listed["words.jpg"]


def test_without_decoding_what_can_be_read_is_whole(pictures: Path) -> None:
    code, out, _ = run(str(pictures), "--json")
    found = json.loads(out)
    assert (code, found["samples"], found["broken"]) == (0, 8, [])
    assert found["kinds"]["JPEG"]["count"] == 7
    assert found["kinds"]["jpg"]["count"] == 1  # by its name alone


def test_members_of_tar_shards_are_decoded_by_content(tmp_path: Path) -> None:
    photo, sound = media.photo(0, size=(64, 48)), media.wav(media.clip(0, seconds=0.5))
    members = [("a.jpg", photo), ("a.json", b'{"n": 1}'), ("b.jpg", photo), ("b.json", b"{")]
    media.write_tar(tmp_path / "shards" / "0.tar", members)
    media.write_tar(tmp_path / "shards" / "1.tar", [("c.wav", sound), ("c.txt", b"hello")])
    found = findings(tmp_path / "shards")
    assert found.samples == 3
    assert [bad.type for bad in found.broken] == ["DecodeError"]
    assert "b" in found.broken[0].sample
    counts = {name: kind.count for name, kind in found.kinds.items()}
    assert counts == {"JPEG": 1, "json": 1, "WAV": 1, "txt": 1}
    assert found.kinds["WAV"].seconds == pytest.approx(0.5)
    assert found.kinds["WAV"].shapes == {"16000 Hz, 1 ch": 1}


def test_a_member_whose_checksum_is_wrong_does_not_end_the_check(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("one.txt", "two.txt", "three.txt"):
            archive.writestr(name, name * 20)
    data = bytearray(path.read_bytes())
    data[data.index(b"two.txttwo.txt") + 10] ^= 1
    path.write_bytes(data)
    found = findings(path)
    assert len(found.broken) == 1
    assert "two.txt" in found.broken[0].sample
    assert found.kinds["txt"].count == 2


def test_lines_and_rows_of_arrays_are_samples(tmp_path: Path) -> None:
    media.write_json_lines(tmp_path / "a.jsonl", 50)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("{never closed\n")
    code, out, _ = run(str(tmp_path / "a.jsonl"), "--decode")
    assert code == 1
    assert "51 samples" in out
    assert "a.jsonl:51" in out
    np.save(tmp_path / "rows.npy", np.zeros((7, 3, 2), np.float32))
    found = findings(tmp_path / "rows.npy")
    assert found.kinds["array"].shapes == {"3x2": 7}
    assert found.kinds["array"].size == 7 * 24


def test_a_shard_that_cannot_be_opened_is_broken_and_the_others_are_read(tmp_path: Path) -> None:
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(3):
        members = [(f"{5 * number + n:04}.txt", b"words") for n in range(5)]
        media.write_tar(shards / f"{number}.tar", members)
    cut = shards / "1.tar"
    cut.write_bytes(cut.read_bytes()[:2300])
    code, out, _ = run(str(shards), "--json")
    found = json.loads(out)
    assert (code, found["samples"]) == (1, 10)
    (bad,) = found["broken"]
    assert (bad["sample"], bad["type"]) == (str(cut), "TruncatedFileError")
    assert bad["position"] is None


@pytest.mark.parametrize("what", ["missing", "empty", "odd.xyz", "cut.tar"])
def test_nothing_to_check_is_one_line_and_status_two(what: str, tmp_path: Path) -> None:
    data = tmp_path / what
    if what == "empty":
        data.mkdir()
    elif what == "odd.xyz":
        data.write_text("x")
    elif what == "cut.tar":
        data.write_bytes(b"no tar at all" * 100)
    code, out, err = run(str(data))
    assert (code, out) == (2, "")
    assert err.startswith("nogil-loader: ")
    assert err.count("\n") == 1
    assert what in err


def test_an_address_that_cannot_be_listed_says_so() -> None:
    with pytest.raises(UsageError, match="a web server cannot list"):
        check.open_data("https://example.invalid/folder")


def test_shapes_beyond_a_bound_are_counted_together() -> None:
    kind = check.Kind()
    for width in range(check.SHAPES + 5):
        kind.add(check.Item("PNG", 1, (1, width + 1), "uint8"))
    assert len(kind.shapes) == check.SHAPES + 1
    assert kind.shapes["other"] == 5

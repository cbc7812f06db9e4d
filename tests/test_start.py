"""The functions that begin a pipeline hand everything on to their sources."""

from __future__ import annotations

from pathlib import Path

import pytest

import nogil_loader as nl
from nogil_loader.sources.http import Patience
from nogil_loader.sources.lines import Lines
from nogil_loader.sources.store import Store
from nogil_loader.sources.tar import Tar
from nogil_loader.sources.tar_stream import TarStream
from nogil_loader.sources.zip import Zip

PATIENT = Patience(tries=2, timeout=1.0, backoff=0.5)
BEGUN = [
    (
        nl.from_tar(
            "a.tar",
            fields=["jpg"],
            truncated="keep",
            duplicates="last",
            threads=3,
            keep_index="beside",
        ),
        Tar("a.tar", ("jpg",), "keep", "last", 3, "beside"),
    ),
    (
        nl.from_tar("a.tar", fields=["jpg"], duplicates="last", stream=True),
        TarStream("a.tar", ("jpg",), "last"),
    ),
    (
        nl.from_zip("a.zip", labels="folder", extensions=(".jpg",), threads=3, keep_index="memory"),
        Zip("a.zip", "folder", (".jpg",), 3, "memory"),
    ),
    (
        nl.from_lines("a.txt", threads=3, keep_index="index", scratch="/scratch"),
        Lines("a.txt", 3, "index", "/scratch"),
    ),
    (
        nl.from_store(
            "s3://a", extensions=(".jpg",), threads=3, options={"region": "x"}, patience=PATIENT
        ),
        Store("s3://a", (".jpg",), 3, (("region", "x"),), PATIENT),
    ),
    (nl.from_store("s3://a"), Store("s3://a")),
]


@pytest.mark.parametrize(("begun", "source"), BEGUN, ids=lambda item: type(item).__name__)
def test_every_option_reaches_the_source(begun: nl.Pipeline[object], source: object) -> None:
    assert begun.source == source


@pytest.mark.parametrize("begun", [begun for begun, _ in BEGUN], ids=repr)
def test_what_is_printed_makes_the_same_pipeline(begun: nl.Pipeline[object]) -> None:
    assert eval(repr(begun), {"nl": nl, "Patience": Patience}) == begun


def test_options_of_an_index_are_refused_for_a_stream() -> None:
    for options in ({"truncated": "keep"}, {"threads": 2}, {"keep_index": "memory"}):
        with pytest.raises(ValueError, match=r"stream=True.*leave out"):
            nl.from_tar("a.tar", stream=True, **options)  # type: ignore[arg-type]


def test_an_index_is_kept_where_the_user_says(tmp_path: Path) -> None:
    lines = tmp_path / "a.txt"
    lines.write_bytes(b"one\ntwo\n")
    assert list(nl.from_lines(lines, keep_index=tmp_path / "index")) == [b"one", b"two"]
    assert len(list((tmp_path / "index").iterdir())) == 1

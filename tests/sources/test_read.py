from __future__ import annotations

import os
from pathlib import Path

import pytest

from nogil_loader.sources.read import read


def test_every_kind_of_path_gives_the_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    content = bytes(range(256)) * 1000
    path.write_bytes(content)
    for form in (path, str(path), os.fsencode(path)):
        assert read(form) == content


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.bin"
    with open(path, "wb") as file:
        file.write(b"x")
    assert read(os.fsdecode(path)) == b"x"


def test_an_error_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.jpg"):
        read(tmp_path / "missing.jpg")
    with pytest.raises(IsADirectoryError, match="test_an_error"):
        read(tmp_path)

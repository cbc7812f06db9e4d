from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nogil_loader.sources.base import Sample, Source
from nogil_loader.sources.errors import EmptySourceError
from nogil_loader.sources.files import Files

Check = Callable[[Source], list[Sample]]
Make = Callable[[dict[str, bytes]], Path]


def paths(source: Files) -> list[str]:
    """The paths below the root, in order."""
    reader = source.open()
    root = os.path.join(os.fspath(source.root), "")
    read = reader.bind()
    got = []
    for index in range(len(reader)):
        sample = read(index)
        assert isinstance(sample, dict)
        path = sample["path"]
        assert isinstance(path, str)
        assert path == reader.ref(index)
        assert path.startswith(root)
        got.append(path[len(root) :])
    return got


def test_a_folder_is_read_the_same_by_all(check: Check, make: Make) -> None:
    root = make({f"{n % 7}/{n:03d}.jpg": b"" for n in range(100)})
    samples = check(Files(root, "**/*.jpg", labels="folder"))
    assert samples[0] == {"path": f"{root}/0/000.jpg", "label": 0}
    assert samples[-1] == {"path": f"{root}/6/097.jpg", "label": 6}


def test_the_order_is_by_the_bytes_of_each_component(make: Make) -> None:
    names = ["b/a", "b-a", "b/B", "B", "é", "z", "b/a2", "a/x/y", "a/x.y", "10", "9"]
    root = make(dict.fromkeys(names, b""))
    wanted = sorted(names, key=lambda name: [os.fsencode(part) for part in name.split("/")])
    assert paths(Files(root)) == wanted


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*.jpg", ["1.jpg"]),
        ("**/*.jpg", ["1.jpg", "a/2.jpg", "a/b/3.jpg"]),
        ("*/*.jpg", ["a/2.jpg"]),
        ("a/**/*.jpg", ["a/2.jpg", "a/b/3.jpg"]),
        ("**/b/*", ["a/b/3.jpg"]),
        ("**/b/**/*", ["a/b/3.jpg", "a/b/c/4.png"]),
        ("**", ["1.jpg", "a/2.jpg", "a/b/3.jpg", "a/b/c/4.png"]),
        ("**/**/4.*", ["a/b/c/4.png"]),
        ("a/[0-9].jpg", ["a/2.jpg"]),
        (".h/*", [".h/6.jpg"]),
        ("**/.*", [".5.jpg"]),
    ],
)
def test_patterns_match_by_component(make: Make, pattern: str, wanted: list[str]) -> None:
    names = ["1.jpg", "a/2.jpg", "a/b/3.jpg", "a/b/c/4.png", ".5.jpg", ".h/6.jpg"]
    assert paths(Files(make(dict.fromkeys(names, b"")), pattern)) == wanted


def test_extensions_match_in_any_case(make: Make) -> None:
    root = make(dict.fromkeys(["a.JPG", "b.jpeg", "c.png", "d"], b""))
    assert paths(Files(root, extensions=(".jpg", ".jpeg"))) == ["a.JPG", "b.jpeg"]


def test_labels_are_numbers_of_the_first_folder(make: Make) -> None:
    root = make(dict.fromkeys(["dog/x/1", "cat/2", "empty/.hidden", "dog/3", "Zebra/4"], b""))
    reader = Files(root, labels="folder").open()
    assert reader.classes == ("Zebra", "cat", "dog")
    read = reader.bind()
    labels = [read(index)["label"] for index in range(len(reader))]  # type: ignore[index]
    assert labels == [0, 1, 2, 2]


def test_labels_may_be_a_function_of_the_path_below_the_root(check: Check, make: Make) -> None:
    root = make({"a/1": b"", "a/22": b""})
    samples = check(Files(root, labels=len))
    assert [sample["label"] for sample in samples] == [3, 4]  # type: ignore[index]


def test_a_file_without_a_class_is_an_error(make: Make) -> None:
    root = make({"a/1": b"", "stray": b""})
    with pytest.raises(ValueError, match="stray"):
        Files(root, labels="folder").open()


def test_names_that_are_not_utf8_come_through(make: Make) -> None:
    name = os.fsdecode(b"caf\xe9/\xff\xfe.jpg")
    root = make({name: b"here"})
    (path,) = paths(Files(root, "**/*.jpg"))
    assert path == name
    assert Path(root, path).read_bytes() == b"here"


def test_links_are_followed_and_loops_are_not(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    root = make({"a/1": b"", "b/2": b""})
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "self").symlink_to("self")
    (root / "b" / "other").symlink_to(root / "a")
    (root / "b" / "gone").symlink_to("nowhere")
    with caplog.at_level(logging.WARNING, "nogil_loader.sources"):
        found = paths(Files(root))
    assert found == ["a/1", "a/self", "b/2", "b/gone", "b/other/1", "b/other/self"]
    assert "a/up leads back" in caplog.text


def test_pipes_are_passed_over_loudly(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    root = make({"1.jpg": b""})
    os.mkfifo(root / "2.jpg")
    (root / "3.jpg").symlink_to("2.jpg")
    assert paths(Files(root)) == ["1.jpg"]
    assert "2.jpg is not a regular file" in caplog.text
    assert "3.jpg is not a regular file" in caplog.text


def test_missing_empty_and_unmatched_are_different_errors(make: Make, tmp_path: Path) -> None:
    root = make({"a.txt": b""})
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Files(tmp_path / "nowhere").open()
    with pytest.raises(NotADirectoryError, match=r"a\.txt"):
        Files(root / "a.txt").open()
    with pytest.raises(EmptySourceError, match=r"\*\.jpg"):
        Files(root, "*.jpg").open()
    with pytest.raises(EmptySourceError, match=r"\.png or \.jpg"):
        Files(root, extensions=(".png", ".jpg")).open()


@pytest.mark.parametrize("pattern", ["", "/a", "a//b", "../a", "a/"])
def test_patterns_stay_below_the_root(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Files("x", pattern)


def test_a_single_string_of_extensions_is_refused() -> None:
    with pytest.raises(TypeError, match="tuple"):
        Files("x", extensions=".jpg")


def test_the_fingerprint_sees_names_sizes_times_and_rules(make: Make) -> None:
    root = make({"a/1": b"one", "b/2": b"two"})
    seen = [Files(root).open().fingerprint(), Files(root, labels="folder").open().fingerprint()]
    (root / "b" / "2").write_bytes(b"other")
    seen.append(Files(root).open().fingerprint())
    os.utime(root / "a" / "1", ns=(0, 0))
    seen.append(Files(root).open().fingerprint())
    (root / "b" / "2").rename(root / "b" / "3")
    seen.append(Files(root).open().fingerprint())
    assert len(set(seen)) == len(seen)


def test_the_fingerprint_does_not_depend_on_where_the_folder_is(make: Make) -> None:
    root = make({"a/1": b"one"})
    before = Files(root).open().fingerprint()
    moved = root.rename(root.parent / "moved")
    assert Files(moved).open().fingerprint() == before


def test_a_listing_takes_few_bytes_a_file(make: Make) -> None:
    root = make({f"class_{n % 3}/image_{n:07d}.jpg": b"" for n in range(3000)})
    assert Files(root).open().nbytes < 16 * 3000

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from nogil_loader.sources.base import Reader, Sample, Source
from nogil_loader.sources.combine import MixedReader, Zipped, open_all
from nogil_loader.sources.errors import EmptySourceError
from nogil_loader.sources.sequence import Sequence_, SequenceReader

Check = Callable[[Source], list[Sample]]


class Watched(SequenceReader):
    """A reader that knows whether it was closed."""

    def __init__(self, threads: int | None, log: list[str], fails: bool) -> None:
        super().__init__([1, 2])
        self.threads, self.log, self.fails = threads, log, fails

    def close(self) -> None:
        self.log.append("closed")
        if self.fails:
            raise OSError("cannot close")


@dataclass(frozen=True)
class Watching:
    threads: int | None = None
    log: list[str] = field(default_factory=list)
    fails: bool = False

    def open(self) -> Watched:
        return Watched(self.threads, self.log, self.fails)


@dataclass(frozen=True)
class Failing:
    def open(self) -> Reader:
        raise FileNotFoundError("gone")


def test_dicts_are_merged_and_others_are_tuples(check: Check) -> None:
    xs, ys = Sequence_([{"x": 1}, {"x": 2}]), Sequence_([{"y": 3}, {"y": 4}])
    assert check(Zipped((xs, ys))) == [{"x": 1, "y": 3}, {"x": 2, "y": 4}]
    assert check(Zipped((Sequence_("ab"), xs))) == [("a", {"x": 1}), ("b", {"x": 2})]


def test_a_field_of_two_sources_is_an_error() -> None:
    reader = Zipped((Sequence_([{"x": 1, "k": 1}]), Sequence_([{"k": 2}]))).open()
    with pytest.raises(ValueError, match="field 'k'"):
        reader.bind()(0)


def test_lengths_must_be_equal() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match="Watching has 2, Sequence_ has 3"):
        Zipped((Watching(log=log), Sequence_("abc"))).open()
    assert log == ["closed"]
    with pytest.raises(EmptySourceError, match="no source"):
        Zipped(()).open()


def test_references_and_fingerprints_are_the_childrens() -> None:
    a, b = Sequence_("ab"), Sequence_("cd")
    reader = Zipped((a, b)).open()
    assert reader.ref(1) == "sequence[1] + sequence[1]"
    assert reader.fingerprint() != Zipped((b, a)).open().fingerprint()
    assert reader.fingerprint() != MixedReader(reader.readers).fingerprint()


def test_a_mix_reads_by_reader_and_index() -> None:
    mixed = MixedReader(open_all([Sequence_("abc"), Sequence_([7])]))
    read = mixed.bind()
    assert (read(0, 2), read(1, 0)) == ("c", 7)
    assert mixed.lengths == (3, 1)
    assert mixed.ref(0, 2) == "sequence[2]"
    mixed.close()


def test_blocking_children_make_the_whole_blocking() -> None:
    def threads(*counts: int | None) -> int | None:
        return Zipped(tuple(Watching(count) for count in counts)).open().threads

    assert threads(None, None) is None
    assert threads(None, 4, 16) == 16


def test_when_a_child_cannot_be_opened_the_others_are_closed() -> None:
    log: list[str] = []
    with pytest.raises(FileNotFoundError, match="gone"):
        open_all([Watching(log=log), Watching(log=log), Failing()])
    assert log == ["closed", "closed"]


def test_every_child_is_closed_even_when_one_cannot_be() -> None:
    log: list[str] = []
    reader = Zipped((Watching(log=log, fails=True), Watching(log=log))).open()
    with pytest.raises(OSError, match="cannot close"):
        reader.close()
    assert log == ["closed", "closed"]

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nogil_loader.sources.base import JSON, StreamReader, StreamSource
from nogil_loader.sources.errors import StreamUsedError
from nogil_loader.sources.iterable import Iterable_


class Counter:
    """An iterator that knows where it is, in the words of the ecosystem."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.at == self.stop:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, JSON]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class DataSet:
    """An iterable that knows where its iterator is, in our words."""

    def __init__(self) -> None:
        self.at = 0
        self.read: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for number in range(self.at, 6):
            self.at = number + 1
            self.read.append(number)
            yield number

    def snapshot(self) -> JSON:
        return self.at

    def restore(self, state: int) -> None:
        self.at = state


def test_it_is_a_stream() -> None:
    source = Iterable_([1, 2])
    assert isinstance(source, StreamSource)
    assert source.stream
    assert isinstance(source.open(), StreamReader)


def test_iterables_and_factories_give_every_run_its_own_pass() -> None:
    for source in (Iterable_([1, 2, 3]), Iterable_(lambda: iter([1, 2, 3]))):
        first, second = source.open(), source.open()
        assert next(iter(first)) == 1
        assert list(second) == [1, 2, 3]
        assert list(first) == [2, 3]


def test_a_second_run_over_a_generator_is_an_error_even_after_an_abandoned_first() -> None:
    source = Iterable_(n for n in range(5))
    reader = source.open()
    assert next(iter(reader)) == 0
    reader.close()
    with pytest.raises(StreamUsedError, match=r"generator.*function that makes a new one"):
        source.open()


def test_closing_a_reader_closes_its_generator() -> None:
    closed = []

    def generate() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    reader = Iterable_(generate).open()
    assert next(iter(reader)) == 1
    reader.close()
    reader.close()
    assert closed == [True]


def test_an_iterator_with_state_continues_where_it_was() -> None:
    source = Iterable_(lambda: Counter(6))
    reader = source.open()
    samples = iter(reader)
    assert [next(samples) for _ in range(4)] == [0, 1, 2, 3]
    assert list(source.open(resume=reader.snapshot())) == [4, 5]


def test_an_iterable_with_state_continues_and_reads_nothing_again() -> None:
    reader = Iterable_(DataSet).open()
    samples = iter(reader)
    assert [next(samples) for _ in range(4)] == [0, 1, 2, 3]
    made = DataSet()
    assert list(Iterable_(made).open(resume=reader.snapshot())) == [4, 5]
    assert made.read == [4, 5]


def test_a_stream_without_state_says_so_and_refuses_a_saved_place() -> None:
    source = Iterable_([1, 2])
    assert source.open().snapshot() is None
    with pytest.raises(TypeError, match="load_state_dict"):
        source.open(resume=3)


def test_what_cannot_be_iterated_is_refused() -> None:
    with pytest.raises(TypeError, match="int"):
        Iterable_(3)  # type: ignore[arg-type]


def test_references_carry_the_name() -> None:
    assert Iterable_([1], name="feed").open().ref(7) == "feed[7]"
    assert Iterable_([1], name="a").open().fingerprint() != Iterable_([1]).open().fingerprint()

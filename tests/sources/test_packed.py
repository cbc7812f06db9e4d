from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.sources.packed import PackedNames

names = st.lists(st.binary(max_size=12).filter(lambda name: b"\0" not in name), max_size=70)


@given(names)
def test_names_come_back_exactly(given_names: list[bytes]) -> None:
    packed = PackedNames(given_names)
    assert len(packed) == len(given_names)
    assert [packed[number] for number in range(len(packed))] == given_names


@given(names)
def test_equal_names_pack_to_equal_bytes(given_names: list[bytes]) -> None:
    assert PackedNames(given_names).blob() == PackedNames(iter(given_names)).blob()


def test_names_that_resemble_their_neighbours_take_few_bytes() -> None:
    count = 50_000
    names = sorted(b"n01440764_%d.JPEG" % number for number in range(count))
    assert PackedNames(names).nbytes < 11 * count

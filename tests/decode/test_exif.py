"""The orientation in an EXIF block: found in both byte orders, and never worth an error."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.decode._exif import orientation

ORDERS = {"<": b"II*\0", ">": b"MM\0*"}


def block(order: str, entries: list[tuple[int, int, int]], count: int | None = None) -> bytes:
    """A TIFF header and directory 0 with (tag, type, value) entries."""
    directory = struct.pack(order + "H", len(entries) if count is None else count)
    for tag, kind, value in entries:
        directory += struct.pack(order + "HHIHH", tag, kind, 1, value, 0)
    return ORDERS[order] + struct.pack(order + "I", 8) + directory + bytes(4)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lead", [b"", b"Exif\0\0"])
@pytest.mark.parametrize("value", range(1, 9))
def test_it_is_found_among_other_tags(order: str, lead: bytes, value: int) -> None:
    data = block(order, [(0x010F, 2, 7), (0x0112, 3, value), (0x8769, 4, 5)])
    assert orientation(lead + data) == value


@pytest.mark.parametrize("order", ORDERS)
def test_what_makes_no_sense_is_as_stored(order: str) -> None:
    for value in (0, 9, 65535):
        assert orientation(block(order, [(0x0112, 3, value)])) == 1
    assert orientation(block(order, [(0x0112, 4, 6)])) == 1  # not the type it must have
    assert orientation(block(order, [])) == 1
    assert orientation(b"XX*\0" + block(order, [(0x0112, 3, 6)])[4:]) == 1


@given(st.binary(max_size=200), st.sampled_from([b"", b"II*\0", b"MM\0*", b"Exif\0\0MM\0*"]))
def test_any_bytes_are_an_orientation(data: bytes, start: bytes) -> None:
    assert 1 <= orientation(start + data) <= 8


@given(st.sampled_from("<>"), st.integers(0, 60), st.integers(0, 65535))
def test_a_cut_block_or_a_wrong_count_is_no_error(order: str, keep: int, count: int) -> None:
    data = block(order, [(1, 3, 1), (0x0112, 3, 6)], count)
    assert orientation(data[:keep]) in (1, 6)

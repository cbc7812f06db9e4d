"""The clock that moves when it is told to."""

from __future__ import annotations

import pytest

from nogil_loader.testing.clock import FakeClock


def test_time_stands_still_until_advanced() -> None:
    clock = FakeClock(10.0)
    assert [clock(), clock()] == [10.0, 10.0]
    clock.advance(0.5)
    assert clock() == 10.5


def test_time_never_runs_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1)

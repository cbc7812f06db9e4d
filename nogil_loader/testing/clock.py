"""A clock that moves when it is told to, for code that takes the time as an argument."""

from __future__ import annotations


class FakeClock:
    """Called like ``time.monotonic``; answers the same second until it is advanced.

    For one thread: the parts that take a time as an argument are driven by hand.

    >>> clock = FakeClock()
    >>> clock.advance(2.5)
    >>> clock()
    2.5
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def __call__(self) -> float:
        """The present, in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass. A clock that runs backwards is a ``ValueError``."""
        if seconds < 0:
            raise ValueError(f"time cannot pass backwards: advance({seconds})")
        self._now += seconds

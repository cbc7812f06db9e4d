"""``threads="auto"``: how many threads of a blocking stage may be inside at once.

Guarantees
- A pure function of what was finished when: no clock, no thread.
- More threads are a trial, kept only if the stage gives more for it; a trial that failed is
  not repeated for a time that doubles with each failure. Fewer are allowed only after several
  quiet periods, and to no less than half as many again as were in use. So it does not
  oscillate.
- The number stays between 1 and the bound, and every change comes with its reason.

A period lasts two calls of the stage, and a tenth of a second at least: after a change the
first period shows the old number and is not judged.
"""

from __future__ import annotations

from math import ceil

_FIRST = 4
"""Threads to begin with."""
_PERIOD = 0.1
_CALLS = 2.0
"""Latencies that a period lasts at least."""
_STARVED = 0.25
"""Share of the calls after which nothing was ready for the consumer, to want more threads."""
_FULL = 0.8
"""Occupied so much, the threads are what limits the stage."""
_QUIET = 0.4
"""Occupied less, some threads are too many,"""
_PATIENCE = 5
"""after so many periods in a row."""
_GAIN = 1.15
"""Twice the threads must give so many times the rate."""
_PAUSE = 10.0
"""Seconds until a failed trial is made again, the first time."""


class Tuner:
    """See the top of this module."""

    __slots__ = (
        "_before",
        "_busy",
        "_calls",
        "_name",
        "_not_before",
        "_pause",
        "_quiet",
        "_settling",
        "_since",
        "_starved",
        "_units",
        "bound",
        "changes",
        "gate",
    )

    def __init__(self, name: str, bound: int) -> None:
        self._name = name
        self.bound = bound
        self.gate = min(_FIRST, bound)
        """How many threads may be inside now."""
        self.changes: list[str] = []
        """What was changed and why, for the report."""
        self._before: tuple[int, float] | None = None
        """While a trial goes on: the number and the rate before it."""
        self._since: float | None = None
        self._units = self._calls = self._starved = self._quiet = 0
        self._busy = 0.0
        self._settling = False
        self._not_before = 0.0
        self._pause = _PAUSE

    def finished(self, units: int, seconds: float, starved: bool, now: float) -> bool:
        """A call is over; whether ``gate`` has changed.

        ``starved``: nothing was ready for the consumer at that moment.
        """
        if self._since is None:
            self._since = now - seconds
        self._units += units
        self._calls += 1
        self._starved += starved
        self._busy += seconds
        passed = now - self._since
        latency = self._busy / self._calls
        if passed < max(_PERIOD, _CALLS * latency) or self._calls < min(self.gate, 16):
            return False
        gate = self.gate
        if self._settling:
            self._settling = False
        else:
            self._judge(self._units / passed, self._busy / (passed * gate), now)
        self._units = self._calls = self._starved = 0
        self._busy = 0.0
        self._since = now
        return self.gate != gate

    def _judge(self, rate: float, occupied: float, now: float) -> None:
        starved = self._starved > _STARVED * self._calls
        if self._before is not None:
            self._judge_trial(rate, starved, now)
        elif starved and occupied > _FULL and self.gate < self.bound and now >= self._not_before:
            self._before = self.gate, rate
            self._set(min(self.bound, 2 * self.gate), "the consumer waits and all are busy")
        elif occupied < _QUIET and self.gate > 1:
            self._quiet += 1
            if self._quiet >= _PATIENCE:
                fewer = max(1, ceil(1.5 * occupied * self.gate))
                if fewer < self.gate:
                    self._set(fewer, f"busy only {100 * occupied:.0f} % of the time")
            return
        self._quiet = 0

    def _judge_trial(self, rate: float, starved: bool, now: float) -> None:
        assert self._before is not None
        before, old = self._before
        self._before = None
        if rate >= old * (1.0 + (_GAIN - 1.0) * (self.gate / before - 1.0)) or not starved:
            self._pause = _PAUSE
            return
        self._not_before = now + self._pause
        self._pause *= 2.0
        self._set(before, f"{rate:.0f} samples/s instead of {old:.0f} were no gain")

    def _set(self, gate: int, why: str) -> None:
        self.changes.append(f"{self._name}: {self.gate} -> {gate} threads, as {why}")
        self.gate = gate
        self._settling = True
        self._quiet = 0

"""A timeline of a run, for chrome://tracing and https://ui.perfetto.dev.

Guarantees
- Every thread writes to a lane of its own, one entry for a block or a wait; a run that is not
  traced pays one look at a None for each.
- Bounded: each lane keeps its newest entries. Where any were dropped, the timeline begins
  where every lane is complete, and says so.
- The file is written once, when the run is over. That it can be written is found out when the
  run starts.

Source of the format: "Trace Event Format" (Google, the JSON object format): complete events
(``"X"``) with times in microseconds, metadata events (``"M"``) that name the threads.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

Entry: TypeAlias = "tuple[float, float, int, int, int]"
"""Begin, end, what (a number into the names), first unit, units."""

LANE = 50_000
"""Entries that a lane keeps: about 5 MB of JSON."""

_log = logging.getLogger("nogil_loader")


class Lane:
    """What one thread did. One writer, its thread."""

    __slots__ = ("_entries", "_names", "name", "written")

    def __init__(self, name: str, names: dict[str, int], limit: int) -> None:
        self.name = name
        self._names = names
        self._entries: deque[Entry] = deque(maxlen=limit)
        self.written = 0

    def add(self, what: int, begin: float, end: float, first: int, count: int) -> None:
        """The thread did ``what`` (its place in ``Trace``'s ``work``) from begin to end."""
        self._entries.append((begin, end, what, first, count))
        self.written += 1

    def wait(self, reason: str, begin: float, end: float) -> None:
        """The thread was idle for that reason."""
        self._entries.append((begin, end, self._names[reason], 0, 0))
        self.written += 1

    def entries(self) -> list[Entry]:
        """What is kept, oldest first."""
        return list(self._entries)

    @property
    def dropped(self) -> int:
        """Entries that are no longer kept."""
        return self.written - len(self._entries)


class Trace:
    """Collects the lanes of a run and writes them to a file.

    ``work``: what threads do, by number. ``waits``: why they are idle.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        work: Sequence[str],
        waits: Sequence[str],
        *,
        limit: int = LANE,
    ) -> None:
        self._path = Path(path)
        self._path.write_bytes(b"")  # better to fail now than when all is over
        self._limit = limit
        self.work = len(work)
        """How many kinds of work there are."""
        self._names = [*work, *(f"wait: {reason}" for reason in waits)]
        self._numbers = {reason: self.work + number for number, reason in enumerate(waits)}
        self.lanes: list[Lane] = []
        self._open = [self._path]

    def lane(self, name: str) -> Lane:
        """A lane for one more thread."""
        lane = Lane(name, self._numbers, self._limit)
        self.lanes.append(lane)
        return lane

    def write(self) -> None:
        """Write the file, the first time this is called; a failure is logged, not raised."""
        try:
            path = self._open.pop()
        except IndexError:
            return
        try:
            with path.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                separator = ""
                for event in self.events():
                    file.write(separator + json.dumps(event))
                    separator = ",\n"
                dropped = sum(lane.dropped for lane in self.lanes)
                about = {"producer": "nogil_loader", "dropped": dropped}
                file.write(f'\n], "otherData": {json.dumps(about)}}}\n')
        except OSError as error:
            _log.warning("the trace could not be written: %s", error)

    def events(self) -> Iterator[dict[str, object]]:
        """Everything as trace events, thread by thread."""
        pid = os.getpid()
        lanes = [(lane, lane.entries()) for lane in list(self.lanes)]
        start = _complete_from(lanes)
        for number, (lane, entries) in enumerate(lanes):
            named = {"ph": "M", "pid": pid, "tid": number}
            yield {**named, "name": "thread_name", "args": {"name": lane.name}}
            yield {**named, "name": "thread_sort_index", "args": {"sort_index": number}}
            for begin, end, what, first, count in entries:
                if begin < start:
                    continue
                event: dict[str, object] = {
                    "ph": "X",
                    "pid": pid,
                    "tid": number,
                    "name": self._names[what],
                    "cat": "work" if what < self.work else "wait",
                    "ts": round((begin - start) * 1e6, 3),
                    "dur": round(max(0.0, end - begin) * 1e6, 3),
                }
                if count:
                    event["args"] = {"first": first, "count": count}
                yield event


def _complete_from(lanes: Sequence[tuple[Lane, list[Entry]]]) -> float:
    """The time from which on no lane has lost anything."""
    cut = [entries[0][0] for lane, entries in lanes if lane.dropped and entries]
    begun = [entries[0][0] for _, entries in lanes if entries]
    return max(cut) if cut else min(begun, default=0.0)

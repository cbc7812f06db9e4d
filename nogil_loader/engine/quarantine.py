"""The samples that were skipped: as records, and in a file that grows as the run goes.

Guarantees
- The file has one JSON object a line, in position order; each line is flushed when it is
  written, and none is written while the core's lock is held.
- What the file holds already stays, so that epochs, and runs that go on, add to it.
- When a run has ended or was closed, every sample that it skipped until then is in the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

from nogil_loader.engine.core import Core
from nogil_loader.engine.core.block import unit_of
from nogil_loader.engine.core.level import Level
from nogil_loader.engine.program import Places, Program
from nogil_loader.observe.counts import Quarantined


def quarantined(
    level: Level, program: Program, places: Places, begin: int = 0
) -> Iterator[Quarantined]:
    """What a level has skipped so far, but for the first so many."""
    for skip in level.skipped[begin:]:
        unit = unit_of(skip.ident)
        yield Quarantined(
            position=places.position(unit),
            sample=str(places.ref(unit)),
            stage=level.spec.ops[skip.op].name,
            type=type(skip.error).__name__,
            message=str(skip.error),
            epoch=program.epoch,
        )


class QuarantineFile:
    """See the top of this module. Any thread may write, at any time."""

    def __init__(self, path: str | os.PathLike[str], core: Core, program: Program) -> None:
        self._levels = core.levels
        self._program = program
        self._places = Places(program)
        self._written = [0] * len(core.levels)
        self._lock = threading.Lock()
        # Paths need not be UTF-8: what cannot be encoded is escaped, in the way of JSON.
        self._file = open(  # noqa: SIM115: it is closed by the last thread of the run
            path, "a", buffering=1, encoding="utf-8", errors="backslashreplace"
        )

    def write(self) -> None:
        """Write what was skipped since the last time."""
        for level, written in zip(self._levels, self._written, strict=True):
            if len(level.skipped) > written:
                break
        else:
            return
        with self._lock:
            for level in self._levels:
                written = self._written[level.number]
                for bad in quarantined(level, self._program, self._places, written):
                    if self._file.closed:
                        return
                    self._file.write(bad.as_line())
                    self._written[level.number] += 1

    def close(self) -> None:
        """Nothing more is skipped. Idempotent."""
        with self._lock:
            self._file.close()

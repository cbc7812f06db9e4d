"""A file of the samples that a run has skipped, which grows as it goes.

Guarantees
- One JSON object a line, in the order in which samples were skipped, which is that of their
  positions; each line is flushed when it is written.
- What the file holds already stays, so that epochs, and runs that go on, add to it.
- Where it cannot be written (a full disk), every call says so from then on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

from nogil_loader.observe.counts import Quarantined


class QuarantineFile:
    """See the top of this module. Any thread may write, at any time.

    ``records(n)`` gives what was skipped so far but for the first ``n``.
    """

    def __init__(
        self, path: str | os.PathLike[str], records: Callable[[int], Iterable[Quarantined]]
    ) -> None:
        self._records = records
        self._lock = threading.Lock()
        self.written = 0
        """Records that are in the file."""
        self._error: OSError | None = None
        # Without a buffer, which would keep what could not be written and try it again.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - its last thread closes it

    def write(self) -> None:
        """Add what was skipped since the last time."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._file.closed:
                return
            try:
                for record in self._records(self.written):
                    self._add(record.as_line())
                    self.written += 1
            except OSError as error:
                self._error = error
                raise

    def _add(self, line: str) -> None:
        # Paths need not be UTF-8: what cannot be encoded is escaped, in the way of JSON.
        rest = line.encode("utf-8", "backslashreplace")
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Nothing more is skipped. Idempotent."""
        with self._lock:
            self._file.close()

"""Epoch after epoch on threads that stay warm.

Guarantees
- The next epoch begins when this one has nothing left to hand to its workers, so there is no
  gap at the boundary; no more than one epoch begins early.
- Data with random access is opened once for all epochs, a stream for every pass.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar, cast

from nogil_loader import stages
from nogil_loader.engine.run import Run
from nogil_loader.engine.threads import Threads
from nogil_loader.position.state import State
from nogil_loader.session import AnySource, Session
from nogil_loader.sources.base import JSON

T = TypeVar("T")


class Epochs(Generic[T]):
    """Begins the runs of successive epochs, each once: when the one before it has nothing left
    to hand to its workers, or when the consumer gets there, whichever is first."""

    def __init__(
        self,
        source: AnySource,
        chain: Sequence[stages.Stage],
        count: int,
        seed: int,
        ordered: bool,
        resume: Mapping[str, JSON] | None,
        allow_changes: bool,
        quarantine: str | os.PathLike[str] | None = None,
    ) -> None:
        self._count = count
        self._seed = seed
        self._ordered = ordered
        self._resume = resume
        self._allow_changes = allow_changes
        self._quarantine = quarantine
        self._first = 0 if resume is None else State.from_json(resume).epoch
        self._lock = threading.Lock()
        self._pool = Threads()
        self._session = Session(source, chain)
        self._runs: dict[int, Run[T]] = {}
        self._failed: dict[int, Exception] = {}
        """Epochs that could not be begun, and why."""
        self._current = self._first
        """The epoch that the consumer is at: only the one after it may begin early."""
        self._early: set[int] = set()
        """Epochs that could have begun, but too early."""
        self._over = False
        self._hung = False
        """Whether a run could not wait for all of its threads."""
        self._exiting = sys.is_finalizing
        """Whether the interpreter has stopped every thread, and no module may be there any more."""

    def begin(self, epoch: int) -> None:
        """Start an epoch, unless that was done; an error is kept until the epoch's turn."""
        with self._lock:
            if self._over or epoch >= self._count or epoch < self._current:
                return
            if epoch in self._runs or epoch in self._failed:
                return
            if epoch > self._current + 1:
                self._early.add(epoch)
                return
            try:
                run = self._session.start(
                    epoch=epoch,
                    seed=self._seed,
                    resume=self._resume if epoch == self._first else None,
                    allow_changes=self._allow_changes,
                    ordered=self._ordered,
                    quarantine=self._quarantine,
                    pool=self._pool,
                    exhausted=functools.partial(self.begin, epoch + 1),
                    last=False,
                )
                self._runs[epoch] = cast("Run[T]", run)
            except Exception as error:
                self._failed[epoch] = error

    def __iter__(self) -> Iterator[Run[T]]:
        try:
            for epoch in range(self._first, self._count):
                self._current = epoch
                self.begin(epoch)
                if epoch + 1 in self._early:
                    self.begin(epoch + 1)
                if epoch in self._failed:
                    raise self._failed[epoch]
                run = self._runs[epoch]
                yield run
                self._hung |= not run.close()
                del self._runs[epoch]
        finally:
            if not self._exiting():
                self._end()

    def _end(self) -> None:
        with self._lock:
            self._over = True
        for run in self._runs.values():
            self._hung |= not run.close()
        self._pool.shutdown(wait=not self._hung)
        self._session.close()

"""The keeper: the one thread that knows the time.

Guarantees
- It sleeps until the earliest thing that can happen: a retry that is due, a group that has
  waited long enough, an op that would exceed its timeout. It does not poll.
- An op over its timeout loses its lease: what it finished is kept, it fails with the stack of
  its thread, its block-mates go on elsewhere, and the thread is replaced.
"""

from __future__ import annotations

import sys
import threading
import traceback
from time import monotonic
from typing import TYPE_CHECKING

from nogil_loader.engine.errors import StageTimeout
from nogil_loader.engine.steps import Slot, Work

if TYPE_CHECKING:
    from nogil_loader.engine.workers import Engine


class Keeper:
    """See the top of this module."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._lock.acquire()
        self._until = float("inf")
        limits = [
            op.timeout
            for level in engine.program.core.levels
            for op in level.ops
            if op.timeout is not None
        ]
        self._shortest = min(limits, default=None)

    def nudge(self) -> None:
        """After a change of the core: something may now be due sooner."""
        deadline = self._engine.core.deadline()
        if deadline is not None and deadline < self._until:
            self.wake()

    def wake(self) -> None:
        """Look again; from any thread, any number of times."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # already released, and the keeper has yet to take notice

    def run(self) -> None:
        """Until the run is over."""
        engine, core = self._engine, self._engine.core
        while True:
            now = monotonic()
            self._revoke(now)
            engine.acquire()
            try:
                engine.collect(now)
                core.tick(now)
                engine.collect(now)
                if core.spent():
                    return
                deadline = core.deadline()
                wakes = [kind for kind, idle in enumerate(engine.parked) if idle and core.can(kind)]
                self._until = min(
                    float("inf") if deadline is None else deadline, self._next_lease(now)
                )
            finally:
                engine.lock.release()
            for kind in wakes:
                engine.wake(kind)
            engine.write_skipped()
            rest = self._until - monotonic()
            if rest > 0:
                self._lock.acquire(timeout=-1 if rest == float("inf") else min(rest, 1e6))

    def _next_lease(self, now: float) -> float:
        """When an op that runs now, or that starts now, could first be over its time."""
        if self._shortest is None:
            return float("inf")
        ends = [now + self._shortest]
        for slot in self._engine.slots:
            work = slot.work
            if work is not None and not slot.stuck:
                ends.append(work.at[1] + self._timeout(work))
        return min(ends)

    def _timeout(self, work: Work) -> float:
        level = self._level(work)
        limit = self._engine.program.core.levels[level].ops[work.op].timeout
        return float("inf") if limit is None else limit

    @staticmethod
    def _level(work: Work) -> int:
        segment = work.task.segment
        assert segment is not None
        return segment.level.number

    def _revoke(self, now: float) -> None:
        for slot in list(self._engine.slots):
            work = slot.work
            if work is None or slot.stuck or work.task.revoked:
                continue
            if now - work.at[1] >= self._timeout(work):
                self._expire(slot, work, now)

    def _expire(self, slot: Slot, work: Work, now: float) -> None:
        engine = self._engine
        error = StageTimeout(self._describe(slot, work))
        engine.acquire()
        try:
            number, since = work.at
            if slot.work is not work or work.done > number or now - since < self._timeout(work):
                return  # it finished after all
            if not engine.core.expire(work.task, *work.halt(error), now):
                return
            slot.stuck = True
            engine.abandoned.append(str(error))
            dead = len(engine.abandoned) > sum(engine.program.core.workers)
        finally:
            engine.lock.release()
        if dead:
            engine.fail(StageTimeout("every worker hangs:\n\n" + "\n\n".join(engine.abandoned)))
        else:
            engine.hire(slot.kind, replaces=True)

    def _describe(self, slot: Slot, work: Work) -> str:
        op = self._engine.program.ops[self._level(work)][work.op]
        limit = self._timeout(work)
        frames = sys._current_frames()
        gone = slot.ident not in frames
        stack = "(gone)" if gone else "".join(traceback.format_stack(frames[slot.ident]))
        return f"stage {op.name!r} took longer than {limit:g} s; the thread hangs in\n{stack}"

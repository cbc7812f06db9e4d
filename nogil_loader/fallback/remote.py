"""An op that runs in worker processes: the parent's side.

Guarantees
- Each thread that drives the op has one process, started by spawn (never fork from a threaded
  parent), kept warm as long as its owner is.
- A process that dies, or that is killed for a timeout, costs the one sample that it was at;
  its block-mates run again in a new process, and the error names the sample's process.
- What cannot be sent costs the one sample, too. What keeps a process from starting at all
  raises out of ``run``: no policy of the stage is meant for that.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import send_handle
from time import monotonic
from typing import cast

from nogil_loader.fallback.memory import PROGRESS_SIZE, Progress, Segment
from nogil_loader.fallback.process import GUARD, WorkerDied, ending, spawn, stop
from nogil_loader.fallback.shipping import Channel
from nogil_loader.fallback.worker import Randomness, Reply, Result, main

_START = 60.0
"""Seconds for a process to import what the op needs."""
_LAST_WORDS = 0.5
"""Seconds for a hung process to say where it hangs."""
_QUIET = 0.05
"""Seconds of silence after which it has said all."""
_GRACE = 5.0

Keys = Sequence[tuple[int, ...]]


class RemoteTimeout(TimeoutError):
    """An op in a worker process took longer than its stage's ``timeout=``; it was killed."""


@dataclass(frozen=True)
class Remote:
    """The description of what to run; shared by all workers."""

    fn: Callable[..., object]
    name: str
    timeout: float | None = None

    def bind(self) -> RemoteWorker:
        """A process for the calling thread alone."""
        return RemoteWorker(self)

    def __call__(self, value: object) -> object:
        """Only ever used through ``bind``."""
        return self.fn(value)


class RemoteWorker:
    """One process, and the thread that drives it."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._shipped = pickle.dumps(remote.fn)
        self._link: _Link | None = None
        self.spent = 0.0
        """Seconds that the last ``run`` spent on a core, in the process."""

    def run(
        self,
        cells: Sequence[object],
        keys: Keys | None = None,
        randomness: Randomness | None = None,
    ) -> list[Result]:
        """(whether it went well, value or exception) of each cell."""
        self.spent = 0.0
        return self._all(cells, keys, randomness)

    def _all(
        self, cells: Sequence[object], keys: Keys | None, randomness: Randomness | None
    ) -> list[Result]:
        results: list[Result] = []
        while len(results) < len(cells):
            done = len(results)
            rest = None if keys is None else keys[done:]
            results.extend(self._attempt(cells[done:], rest, randomness))
        return results

    def _attempt(
        self, cells: Sequence[object], keys: Keys | None, randomness: Randomness | None
    ) -> list[Result]:
        """Results of all cells, or of those up to one that took the process down."""
        if self._link is None:
            self._link = _Link(self._remote, self._shipped)
        link = self._link
        try:
            link.ask(cells, keys, randomness)
            results, spent = link.answer(len(cells))
        except (EOFError, ConnectionError, RemoteTimeout) as gone:
            error = gone if isinstance(gone, RemoteTimeout) else link.died()
            link.process.kill()
            guilty = min(max(0, link.progress.read()[0]), len(cells) - 1)
            self.close()
            before = self._all(cells[:guilty], keys, randomness)
            return [*before, (False, error)]
        except Exception as error:
            if len(cells) > 1:  # whose fault is it?
                one = None if keys is None else keys[:1]
                return self._attempt(cells[:1], one, randomness)
            wrong = TypeError(f"a sample cannot be sent between processes: {error}")
            wrong.__cause__ = error
            return [(False, wrong)]
        self.spent += spent
        return results

    def dismiss(self) -> None:
        """Tell the process to end, without waiting for it."""
        if self._link is not None:
            self._link.channel.close()

    def close(self) -> None:
        """End the process. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


class _Link:
    """A process that is up, and the lines to it."""

    def __init__(self, remote: Remote, shipped: bytes) -> None:
        self._name = remote.name
        self._timeout = remote.timeout
        ours, theirs = Pipe()
        self._words, words = Pipe(duplex=False)
        self.process: SpawnProcess = spawn(
            main, (theirs, words, shipped), f"nogil-loader-{remote.name}"
        )
        theirs.close()
        words.close()
        self.channel = Channel(ours)
        segment, descriptor = Segment.make(PROGRESS_SIZE)
        self.progress = Progress(segment)
        try:
            send_handle(ours, descriptor, 0)
            if not ours.poll(_START):
                raise EOFError
            error = self.channel.receive()
        except (EOFError, ConnectionError):
            died = self.died()
            self.close()
            raise RuntimeError(f"{died} while it started. {GUARD}") from died
        finally:
            os.close(descriptor)
        if isinstance(error, BaseException):
            self.close()
            raise error

    def ask(self, cells: Sequence[object], keys: Keys | None, randomness: object) -> None:
        """Send a block."""
        self.progress.at(-1)
        self.channel.send((list(cells), keys, randomness, self.channel.freed()))

    def answer(self, count: int) -> tuple[list[Result], float]:
        """(results, seconds on a core); with a timeout, no cell may take longer than that."""
        if self._timeout is not None:
            self._keep_time(self._timeout)
        results, spent, freed = cast("Reply", self.channel.receive())
        self.channel.reuse(freed)
        if isinstance(results, BaseException):
            raise results
        return results, spent

    def _keep_time(self, timeout: float) -> None:
        connection = self.channel.connection
        before = self.progress.read()
        while not connection.poll(max(0.0, before[1] + timeout - monotonic())):
            now = self.progress.read()
            if now == before and now[0] >= 0:
                raise RemoteTimeout(
                    f"stage {self._name!r} took longer than {timeout:g} s in worker process "
                    f"{self.process.pid}, which was killed; it was here:\n{self._where()}"
                )
            before = (now[0], monotonic()) if now[0] < 0 else now

    def _where(self) -> str:
        """The stack of a process that hangs."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGUSR1)
        told = b""
        patience = _LAST_WORDS
        while wait([self._words], patience):
            told += os.read(self._words.fileno(), 1 << 16)
            patience = _QUIET
        return told.decode(errors="replace").rstrip() or "(it does not say)"

    def died(self) -> WorkerDied:
        """The process is gone: what to tell."""
        who, how = self.process.pid, ending(self.process)
        return WorkerDied(f"worker process {who} of stage {self._name!r} died with {how}")

    def close(self) -> None:
        """End the process."""
        self.channel.close()
        self._words.close()
        self.progress.close()
        stop(self.process, _GRACE)
        # Not process.close(): multiprocessing, which joins its processes when the interpreter
        # ends, may be at this one. Its descriptors go with it.
        del self.process


def shippable(fn: object, name: str) -> None:
    """Raise ``TypeError`` naming the op and the remedy if it cannot go to another process."""
    try:
        pickle.dumps(fn)
    except Exception as error:
        raise TypeError(
            f"{name}: gil_fallback='process' needs an op that can be pickled, and this one cannot "
            f"({error}). Use a function at the top level of a module instead of a lambda or "
            f"closure, and nl.per_worker(...) for open files, locks and models"
        ) from error

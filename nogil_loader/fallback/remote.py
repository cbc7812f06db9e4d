"""An op that runs in worker processes: the parent's side.

Guarantees
- Each thread that drives the op has one process, started by spawn (never fork from a threaded
  parent), kept warm as long as its owner is.
- A process that dies, or that is killed for a timeout, costs the one sample that it was at;
  its block-mates run again in a new process, and the error names the sample's process.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from nogil_loader.fallback.shipping import Arena, Progress, pack, unpack
from nogil_loader.fallback.worker import Randomness, Result, main

_START = 60.0
"""Seconds for a process to import what the op needs."""


class WorkerDied(RuntimeError):
    """A worker process ended while an op ran in it: killed, or crashed. Nothing else is lost."""


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
        self._outbox, self._inbox = Arena(), Arena()
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._progress: Progress | None = None

    def run(
        self,
        cells: Sequence[object],
        keys: Sequence[tuple[int, ...]] | None = None,
        randomness: Randomness | None = None,
    ) -> list[Result]:
        """(whether it went well, value or exception) of each cell."""
        results: list[Result] = []
        while len(results) < len(cells):
            done = len(results)
            rest = None if keys is None else keys[done:]
            results.extend(self._attempt(cells[done:], rest, randomness))
        return results

    def _attempt(
        self,
        cells: Sequence[object],
        keys: Sequence[tuple[int, ...]] | None,
        randomness: Randomness | None,
    ) -> list[Result]:
        """Results of all cells, or of those up to one that took the process down."""
        connection = self._ready()
        assert self._progress is not None
        self._progress.value = -1
        try:
            connection.send(pack((list(cells), keys, randomness), self._outbox))
            self._wait(connection, len(cells))
            head, name, places = connection.recv()
            reply = unpack(head, name, places, self._inbox)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return self._blame(cells, keys, randomness, self._died())
        except RemoteTimeout as hung:
            return self._blame(cells, keys, randomness, hung)
        return reply  # type: ignore[return-value]

    def _wait(self, connection: Connection, count: int) -> None:
        """Until there is an answer; with a timeout, no cell may take longer than that."""
        timeout = self._remote.timeout
        assert self._progress is not None
        if timeout is None:
            return
        at = -2
        while not connection.poll(timeout):
            now = self._progress.value
            if now == at or (now == 0 and count == 1):
                raise RemoteTimeout(
                    f"stage {self._remote.name!r} took longer than {timeout:g} s in worker process "
                    f"{self._process.pid if self._process else '?'}, which was killed"
                )
            at = now

    def _blame(
        self,
        cells: Sequence[object],
        keys: Sequence[tuple[int, ...]] | None,
        randomness: Randomness | None,
        error: BaseException,
    ) -> list[Result]:
        """Run the cells before the guilty one again, and fail that one."""
        assert self._progress is not None
        guilty = max(0, self._progress.value)
        self.close()
        before = [] if guilty == 0 else self.run(cells[:guilty], keys, randomness)
        return [*before, (False, error)]

    def _died(self) -> WorkerDied:
        process = self._process
        assert process is not None
        process.join(5.0)
        how = ending(process.exitcode)
        return WorkerDied(
            f"worker process {process.pid} of stage {self._remote.name!r} died with {how}"
        )

    def _ready(self) -> Connection:
        """The connection to a process that is up."""
        if self._connection is not None:
            return self._connection
        context = multiprocessing.get_context("spawn")
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(GUARD)
        ours, theirs = context.Pipe()
        self._progress = Progress()
        process = context.Process(
            target=main,
            args=(theirs, self._progress.name, self._shipped),
            name=f"nogil-loader-{self._remote.name}",
            daemon=True,
        )
        process.start()
        theirs.close()
        self._process = process
        try:
            if not ours.poll(_START):
                raise EOFError
            ours.recv()
        except (EOFError, ConnectionResetError):
            died = self._died()
            ours.close()
            raise RuntimeError(f"{died} while it started. {GUARD}") from died
        self._connection = ours
        return ours

    def close(self) -> None:
        """End the process. Idempotent."""
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.join(0.2)
            if process.is_alive():
                process.kill()
                process.join(5.0)
            process.close()
        self._outbox.close()
        self._inbox.close(orphaned=True)
        if self._progress is not None:
            self._progress.close()


GUARD = (
    "A worker process imports the main script: what starts the pipeline must stand under "
    'if __name__ == "__main__":'
)


def ending(code: int | None) -> str:
    """What a process's exit code says, for people."""
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


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

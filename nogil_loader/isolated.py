"""``run(isolate=True)``: the whole run in one child process, batches through shared memory.

Guarantees
- The consumer's process runs no thread of the loader: its own Python is not disturbed.
- Batches, their order, errors, states and reports are those of a run in this process; what
  ``next`` returns is a copy that belongs to the consumer.
- A child that dies is an error at once; a parent that dies ends its child. Either way no
  shared memory is left behind.

The child fills a ring of shared-memory segments and tells the parent of each over a pipe; the
parent copies a batch out when it is asked for it, and gives the segment back.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import shared_memory
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, TypeVar, cast

from nogil_loader import stages
from nogil_loader.device.transfer import Transfer, open_transfer
from nogil_loader.engine.errors import ForkedRun, RunClosed
from nogil_loader.engine.run import Run
from nogil_loader.fallback.remote import GUARD, WorkerDied, ending
from nogil_loader.fallback.shipping import Arena, pack, shippable_error, unpack
from nogil_loader.observe.report import Report
from nogil_loader.session import AnySource, Session
from nogil_loader.sources.base import JSON

T = TypeVar("T")

_SLOTS = 3
"""Batches in shared memory: one being read, one ready, one being written."""
_GRACE = 5.0


class IsolatedRun(Generic[T]):
    """The parent's side; to be used like a ``Run``."""

    def __init__(
        self, source: AnySource, chain: Sequence[stages.Stage], options: Mapping[str, object]
    ) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(GUARD)
        device = [stage for stage in chain if isinstance(stage, stages.ToDevice)]
        rest = tuple(stage for stage in chain if not isinstance(stage, stages.ToDevice))
        shipped = _ship(source, rest, options)
        self._pid = os.getpid()
        self._token = f"nogil-loader-{secrets.token_hex(8)}"
        self._arenas = [Arena() for _ in range(_SLOTS)]
        self._transfer = _transfer(device)
        self._over: BaseException | None = None
        self._began = self._ended = self._closed = False
        self._reports: list[Report] = []
        self._state: dict[str, JSON] | None = None
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_child, args=(theirs, shipped, self._token), name="nogil-loader", daemon=True
        )
        self._process.start()
        theirs.close()
        self._lock = threading.Lock()
        self._receive()  # the state before the first batch, or what went wrong

    def __iter__(self) -> IsolatedRun[T]:
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """The next batch; see ``Run.next``."""
        if os.getpid() != self._pid:
            raise ForkedRun("this run belongs to the process that started it: run anew here")
        with self._lock:
            if self._ended:
                raise StopIteration
            if self._closed or self._over is not None:
                raise RunClosed("the run was closed: start another") from self._over
            if timeout is not None and not self._connection.poll(timeout):
                raise TimeoutError(f"no batch within {timeout} s; nothing is lost, ask again")
            return cast(T, self._receive())

    def _receive(self) -> object:
        """The next batch that the child tells of; reports on the way are kept."""
        while True:
            try:
                kind, *rest = self._connection.recv()
            except (EOFError, ConnectionResetError):
                raise self._died() from None
            if kind == "report":
                self._reports.append(pickle.loads(rest[0]))
                continue
            if kind == "begun":
                self._began = True
                self._state = rest[0]
                return None
            if kind == "end":
                self._reports.append(pickle.loads(rest[0]))
                self._ended = True
                self.close()
                raise StopIteration
            if kind == "error":
                self._over = pickle.loads(rest[0])
                self.close()
                raise self._over
            slot, head, name, places, self._state = rest
            value = unpack(head, name, places, self._arenas[slot])
            with suppress(BrokenPipeError):
                self._connection.send(("free", slot))
            if self._transfer is not None:
                return self._transfer.hand_over(self._transfer(value))
            return value

    def _died(self) -> BaseException:
        self._process.join(_GRACE)
        how = ending(self._process.exitcode)
        hint = "" if self._began else f" while it started. {GUARD}"
        self._over = WorkerDied(f"the loader's process died with {how}{hint}")
        self._clean()
        return self._over

    def state(self) -> dict[str, JSON]:
        """Where the batch that was handed out last ends; see ``Run.state``."""
        if self._state is None:
            raise ValueError("this run has no state: batch(max_wait=...) lets time decide")
        return self._state

    def report(self) -> Report:
        """The child's report on the run so far."""
        with self._lock:
            if not (self._closed or self._ended or self._over is not None):
                self._connection.send(("report",))
                waiting = []
                while not self._reports:
                    message = self._connection.recv()
                    if message[0] == "report":
                        self._reports.append(pickle.loads(message[1]))
                    else:
                        waiting.append(message)
                if waiting:
                    self._connection = _Again(self._connection, waiting)  # type: ignore[assignment]
            if not self._reports:
                raise RunClosed("the run is over, and was not asked for a report before")
            return self._reports.pop() if len(self._reports) > 1 else self._reports[-1]

    def close(self, timeout: float | None = None) -> bool:
        """End the child; whether it ended in time by itself. Idempotent."""
        if self._closed or os.getpid() != self._pid:
            return True
        self._closed = True
        with suppress(BrokenPipeError, OSError):
            self._connection.send(("close",))
        self._process.join(_GRACE if timeout is None else timeout)
        gone = not self._process.is_alive()
        if not gone:
            self._process.kill()
            self._process.join(_GRACE)
        self._connection.close()
        self._clean()
        return gone

    def _clean(self) -> None:
        for arena in self._arenas:
            arena.close()
        if self._transfer is not None:
            self._transfer.close()
        for left in glob.glob(f"/dev/shm/{self._token}-*"):
            # By way of its own class, so that the resource tracker forgets it, too.
            with suppress(FileNotFoundError):
                memory = shared_memory.SharedMemory(os.path.basename(left))
                memory.close()
                memory.unlink()

    def __enter__(self) -> IsolatedRun[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close(0.5)


class _Again:
    """A connection with messages that were read too early."""

    def __init__(self, connection: Connection, waiting: list[object]) -> None:
        self._inner = connection
        self._waiting = waiting

    def recv(self) -> object:
        return self._waiting.pop(0) if self._waiting else self._inner.recv()

    def poll(self, timeout: float) -> bool:
        return bool(self._waiting) or self._inner.poll(timeout)

    def send(self, message: object) -> None:
        self._inner.send(message)

    def close(self) -> None:
        self._inner.close()


def _transfer(device: Sequence[stages.ToDevice]) -> Transfer[object] | None:
    if not device:
        return None
    stage = device[0]
    opened = open_transfer(stage.device, transform=stage.transform, stream=stage.stream)
    return cast("Transfer[object]", opened)


def _ship(source: AnySource, chain: Sequence[stages.Stage], options: Mapping[str, object]) -> bytes:
    """Everything the child needs. ``TypeError`` names what cannot be sent, and the remedy."""
    for part, what in [(source, "the source"), *((stage, str(stage)) for stage in chain)]:
        try:
            pickle.dumps(part)
        except Exception as error:
            raise TypeError(
                f"run(isolate=True): {what} cannot be sent to another process ({error}). Use "
                f"functions at the top level of a module, and nl.per_worker(...) for open files"
            ) from error
    return pickle.dumps((source, tuple(chain), dict(options)))


# The child ------------------------------------------------------------------------------


def _child(connection: Connection, shipped: bytes, token: str) -> None:
    """The life of the child process. Module-level, so that spawn can find it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # A daemon may have no children, but process stages need theirs; they end with this one.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    _Child(connection, token).run(shipped)


class _Child:
    def __init__(self, connection: Connection, token: str) -> None:
        self._connection = connection
        self._arenas = [Arena(f"{token}-{slot}") for slot in range(_SLOTS)]
        self._free = threading.Semaphore(_SLOTS)
        self._order = list(range(_SLOTS))
        self._sending = threading.Lock()
        self._closing = False
        self._done = threading.Event()
        """The parent has all it wants."""
        self._run: Run[object] | None = None

    def run(self, shipped: bytes) -> None:
        """Make batches until the end, an error, or the parent's word."""
        try:
            source, chain, options = pickle.loads(shipped)
            threading.Thread(target=self._control, daemon=True).start()
            self._run = run = Session(source, chain).start(**options)
            self._send("begun", self._state(run))
            for value in run:
                self._free.acquire()
                if self._closing:
                    break
                slot = self._order.pop(0)
                head, name, places = pack(value, self._arenas[slot])
                self._send("batch", slot, head, name, places, self._state(run))
            else:
                self._send("end", pickle.dumps(run.report()))
        except (BrokenPipeError, ConnectionResetError):
            return
        except BaseException as error:
            if not self._closing:
                with suppress(BrokenPipeError, ConnectionResetError):
                    self._send(
                        "error", pickle.dumps(shippable_error(error, "the loader's process"))
                    )
        finally:
            self._end()

    def _end(self) -> None:
        if self._run is not None:
            self._run.close(1.0)
        # What was sent may not have been read yet: keep the memory until the parent is done.
        self._done.wait()
        for arena in self._arenas:
            arena.close()

    @staticmethod
    def _state(run: Run[object]) -> dict[str, JSON] | None:
        try:
            return run.state()
        except ValueError:
            return None

    def _send(self, *message: object) -> None:
        with self._sending:
            self._connection.send(message)

    def _control(self) -> None:
        """What the parent says, until it says close or is gone."""
        try:
            while True:
                word, *rest = self._connection.recv()
                if word == "free":
                    self._order.append(rest[0])
                    self._free.release()
                elif word == "report" and self._run is not None:
                    self._send("report", pickle.dumps(self._run.report()))
                else:
                    break
        except (EOFError, ConnectionResetError, BrokenPipeError):
            pass  # the parent is gone: end as if it had said so
        self._closing = True
        self._done.set()
        self._free.release()
        if self._run is not None:
            self._run.close(1.0)

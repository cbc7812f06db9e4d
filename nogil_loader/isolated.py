"""``run(isolate=True)``: the whole run in one child process, batches through shared memory.

Guarantees
- The consumer's process runs no thread of the loader: its own Python is not disturbed.
- Batches, their order, errors, states and reports are those of a run in this process. The
  arrays of a batch show shared memory and belong to the consumer for as long as it holds any
  of them; nothing is copied on this side, and nothing that can be seen is written again.
- A child that dies is an error at once; a parent that dies ends its child. Either way no
  shared memory is left behind.

Two pipes lead to the child: ``batches`` is its way out for them, ``words`` is for what the
parent wants: another batch, a report, the end. The child is at most so many batches ahead.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic
from types import TracebackType
from typing import Generic, TypeVar, cast

from nogil_loader import stages
from nogil_loader.device.transfer import Transfer
from nogil_loader.engine.errors import ForkedRun, RunClosed
from nogil_loader.engine.run import Run
from nogil_loader.fallback.process import (
    GUARD,
    WorkerDied,
    begin,
    end_with_parent,
    ending,
    spawn,
    stop,
)
from nogil_loader.fallback.shipping import Channel, shippable_error
from nogil_loader.observe.report import Report
from nogil_loader.session import AnySource, Session, transfer_of
from nogil_loader.sources.base import JSON

T = TypeVar("T")
State = dict[str, JSON] | None

_AHEAD = 2
"""Batches in shared memory that nobody has taken: one ready, one being written."""
_GRACE = 5.0
"""Seconds that ``close`` waits for ops that are running."""
_HURRIED = 0.15
"""Seconds that the end of a ``with`` block waits for them after Ctrl-C."""
_ENDING = 1.0
"""Seconds for what still runs behind the last batch or an error: abandoned ops, mostly."""
_FORGOTTEN = 0.5
_GOING = 2.0
"""Seconds for the child to go when all its ops have ended."""
_ANSWER = 5.0


class IsolatedRun(Generic[T]):
    """The parent's side; to be used like a ``Run``."""

    def __init__(
        self, source: AnySource, chain: Sequence[stages.Stage], options: Mapping[str, object]
    ) -> None:
        self._pid = os.getpid()
        self._closed = True  # until there is something to close
        device = [stage for stage in chain if isinstance(stage, stages.ToDevice)]
        rest = tuple(stage for stage in chain if not isinstance(stage, stages.ToDevice))
        shipped = _ship(source, rest, options)
        self._over: BaseException | None = None
        self._ended = False
        self._report: Report | None = None
        self._state: State = None
        self._gone: bool | None = None
        self._taking = threading.Lock()
        """Held by whoever waits for a batch."""
        self._asking = threading.Lock()
        """Held by whoever waits for an answer."""
        batches, self._theirs = Pipe()
        words, their_words = Pipe()
        arguments = (self._theirs, their_words, shipped)
        self._process = spawn(_child, arguments, "nogil-loader")
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        """Of the child."""
        self._closed = False
        for end in (self._theirs, their_words):
            end.close()
        self._batches, self._words = Channel(batches), Channel(words)
        self._transfer: Transfer[object] | None = None
        try:
            self._transfer = transfer_of(device[0] if device else None)
            self._begin()
        except BaseException:
            self.close(0.0)
            raise

    def _begin(self) -> None:
        """The state before the first batch, or what went wrong."""
        try:
            kind, what, self._state = cast("Message", self._batches.receive())
        except EOFError:
            died = WorkerDied(
                f"the loader's process died with {ending(self._process)} while it started. {GUARD}"
            )
            raise died from None
        if kind == "error":
            self._over = cast(BaseException, what)
            raise self._over

    def __iter__(self) -> IsolatedRun[T]:
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """The next batch; see ``Run.next``."""
        if os.getpid() != self._pid:
            raise ForkedRun("this run belongs to the process that started it: run anew here")
        with self._turn(timeout) as left:
            kind, value = self._receive(left)
        if kind == "batch":
            return cast(T, value)
        self.close(_ENDING)
        if kind == "error":
            raise cast(BaseException, value)
        raise StopIteration

    @contextmanager
    def _turn(self, timeout: float | None) -> Iterator[float | None]:
        """One consumer at a time; gives the seconds that are left."""
        begun = monotonic()
        if not self._taking.acquire(timeout=-1 if timeout is None else timeout):
            raise _late(timeout)
        try:
            yield None if timeout is None else max(0.0, begun + timeout - monotonic())
        finally:
            self._taking.release()

    def _receive(self, timeout: float | None) -> tuple[str, object]:
        """What the child tells next, as (kind, value)."""
        if self._ended:
            raise StopIteration
        if self._closed or self._over is not None:
            raise RunClosed("the run was closed: start another") from self._over
        # Nearly all waiting is done here, where Ctrl-C leaves no half of a message.
        if not self._batches.connection.poll(timeout):
            raise _late(timeout)
        try:
            kind, value, state = cast("Message", self._batches.receive())
            if kind == "batch":
                self._words.send(("taken", self._batches.freed()))
                if self._transfer is not None:
                    value = self._transfer.hand_over(self._transfer(value))
        except (EOFError, ConnectionError):
            if self._closed:
                raise RunClosed("the run was closed: start another") from None
            kind = "error"
            value = WorkerDied(f"the loader's process died with {ending(self._process)}")
        except BaseException as error:
            self._over = error  # no message can be told from the next any more
            raise
        if kind == "batch":
            self._state = state
        elif kind == "end":
            self._ended, self._report = True, _there(cast(Report, value))
        else:
            self._over = cast(BaseException, value)
        return kind, value

    def state(self) -> dict[str, JSON]:
        """Where the batch that was handed out last ends; see ``Run.state``."""
        if self._state is None:
            raise ValueError("this run has no state: batch(max_wait=...) lets time decide")
        return self._state

    def report(self) -> Report:
        """The child's report on the run so far; after the end, its last one."""
        with self._asking:
            if not self._closed and not self._ended:
                self._ask("report", _ANSWER)
            if self._report is None:
                raise RunClosed("the run is over, and its process could not tell of it any more")
            if self._transfer is None:
                return self._report
            counts = replace(self._report.counts, device=self._transfer.report())
            return Report.of(counts)

    def _ask(self, what: object, timeout: float) -> bool:
        """Ask for a report; whether everything in the child has stopped."""
        try:
            self._words.send((what, timeout))
            if not self._words.connection.poll(timeout + _GOING):
                return False
            report, stopped = cast("tuple[Report, bool]", self._words.receive())
        except (EOFError, OSError):
            return True  # the child has gone
        self._report = _there(report)
        return stopped

    def close(self, timeout: float | None = None) -> bool:
        """End the child; whether its ops ended in time. Idempotent, from any thread."""
        if os.getpid() != self._pid:
            return True
        self._closed = True
        with self._asking:
            if self._gone is None:
                self._gone = self._ask("close", _GRACE if timeout is None else timeout)
                stop(self._process, _GOING if self._gone else 0.0)
                self._process.close()
        with self._taking:  # whoever waited has been told
            self._batches.close()
            self._words.close()
            if self._transfer is not None:
                self._transfer.close()
        return self._gone

    def __enter__(self) -> IsolatedRun[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hurried = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close(_HURRIED if hurried else None)

    def __del__(self) -> None:
        if not self._closed:
            self.close(_FORGOTTEN)


Message = tuple[str, object, State]
"""("begun" | "batch" | "end" | "error", batch or report or exception, state behind it)."""


def _late(timeout: float | None) -> TimeoutError:
    return TimeoutError(f"no batch within {timeout} s; nothing is lost, ask again")


def _there(report: Report) -> Report:
    """A report that says where it comes from."""
    machine = replace(report.counts.machine, isolated=True)
    return Report.of(replace(report.counts, machine=machine))


def _ship(source: AnySource, chain: Sequence[stages.Stage], options: Mapping[str, object]) -> bytes:
    """Everything the child needs. ``TypeError`` names what cannot be sent, and the remedy."""
    for part, what in [(source, "the source"), *((stage, str(stage)) for stage in chain)]:
        if isinstance(part, stages.Shard) and part.uneven == "agree":
            raise ValueError(
                "run(isolate=True): the ranks of shard(uneven='agree') agree in this process: use "
                "shard(batches=N), or run without isolate"
            )
        try:
            pickle.dumps(part)
        except Exception as error:
            raise TypeError(
                f"run(isolate=True): {what} cannot be sent to another process ({error}). Use "
                f"functions at the top level of a module, and nl.per_worker(...) for open files"
            ) from error
    return pickle.dumps((source, tuple(chain), dict(options)))


# The child ------------------------------------------------------------------------------


def _child(batches: Connection, words: Connection, shipped: bytes) -> None:
    """The life of the child process. Module-level, so that spawn can find it."""
    begin()
    # A daemon may have no children, but process stages need theirs; they end with this one.
    multiprocessing.current_process().daemon = False
    _Child(Channel(batches), Channel(words)).live(shipped)


class _Child:
    def __init__(self, batches: Channel, words: Channel) -> None:
        self._batches = batches
        self._words = words
        self._credits = threading.Semaphore(_AHEAD)
        self._closing = False
        self._left = threading.Event()
        """The parent wants no more."""

    def live(self, shipped: bytes) -> None:
        """Make batches until the end, an error, or the parent's word."""
        with suppress(ConnectionError):  # the parent is gone
            try:
                source, chain, options = pickle.loads(shipped)
                run = Session(source, chain).start(**options)
            except BaseException as error:
                self._fail(error)
                return
            end_with_parent(lambda: run.close(0.0))
            threading.Thread(target=self._serve, args=(run,), daemon=True).start()
            self._batches.send(("begun", None, _state(run)))
            try:
                self._make(run)
            except ConnectionError:
                raise
            except BaseException as error:
                if not self._closing:
                    self._fail(error)
            self._left.wait()  # what was sent may not have been received yet

    def _make(self, run: Run[object]) -> None:
        for value in run:
            self._credits.acquire()
            if self._closing:
                return
            try:
                self._batches.send(("batch", value, _state(run)))
            except ConnectionError:
                raise
            except Exception as error:
                raise TypeError(f"a batch cannot be sent between processes: {error}") from error
        self._batches.send(("end", run.report(), None))

    def _fail(self, error: BaseException) -> None:
        self._batches.send(("error", shippable_error(error, "the loader's process"), None))

    def _serve(self, run: Run[object]) -> None:
        """Do what the parent says, until it says close or is gone."""
        with suppress(EOFError, ConnectionError):
            while True:
                word, what = cast("tuple[str, object]", self._words.receive())
                if word == "taken":
                    self._batches.reuse(cast("list[int]", what))
                    self._credits.release()
                elif word == "report":
                    self._words.send((run.report(), False))
                else:
                    self._closing = True
                    self._credits.release()
                    stopped = run.close(cast(float, what))
                    self._words.send((run.report(), stopped))
                    break
        self._left.set()


def _state(run: Run[object]) -> State:
    try:
        return run.state()
    except ValueError:  # there can be none
        return None

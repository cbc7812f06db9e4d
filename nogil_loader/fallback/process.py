"""Child processes: how they begin, how they end, and what is said about it.

Guarantees
- They are spawned, never forked from a threaded parent, and take no notice of Ctrl-C, from
  their first instruction on: that is their parent's to handle.
- A child ends when its parent does, whatever it is doing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.context import SpawnProcess

GUARD = (
    "A worker process imports the main script: what starts the pipeline must stand under "
    'if __name__ == "__main__":'
)


class WorkerDied(RuntimeError):
    """A worker process ended while an op ran in it: killed, or crashed. Nothing else is lost."""


def spawn(target: Callable[..., None], arguments: tuple[object, ...], name: str) -> SpawnProcess:
    """Start ``target(*arguments)`` in a new process. ``RuntimeError`` where that would never
    end, for the main script starts it again in each child."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(GUARD)
    if not threading.main_thread().is_alive():
        raise RuntimeError("no process is started while the interpreter exits")
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=target, args=arguments, name=name, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()  # the child has the mask of this thread
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process


def begin() -> None:
    """The first call of a child: Ctrl-C is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def end_with_parent(farewell: Callable[[], object] = lambda: None) -> None:
    """From now on the parent's end is this process's, after ``farewell()``."""
    threading.Thread(target=_watch, args=(farewell,), name="parent", daemon=True).start()


def _watch(farewell: Callable[[], object]) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    try:
        farewell()
    finally:
        os._exit(1)


def stop(process: SpawnProcess, timeout: float) -> bool:
    """Wait for a process that was told to end, then kill it; whether that was not needed."""
    process.join(timeout)
    if process.exitcode is not None:
        return True
    process.kill()
    process.join()
    return False


def ending(process: SpawnProcess) -> str:
    """How a process whose pipe is closed has ended, for people."""
    stop(process, 5.0)
    code = process.exitcode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

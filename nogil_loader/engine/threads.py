"""Daemon threads behind the interface of ``concurrent.futures.Executor``.

Guarantees
- A submitted call begins at once: on an idle thread if there is one, else on a new one.
- Idle threads are kept until ``shutdown``; a thread that hangs never keeps the interpreter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Threads(Executor):
    """An executor without an upper bound: the engine asks for what it needs.

    >>> with Threads() as threads:
    ...     threads.submit(pow, 2, 10).result()
    1024
    """

    def __init__(self, name: str = "nogil-loader") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: deque[SimpleQueue[Callable[[], None] | None]] = deque()
        self._threads: list[threading.Thread] = []
        self._shut = False

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        """Call ``fn(*args, **kwargs)`` on a thread of its own, at once."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._shut:
                raise RuntimeError("submit() after shutdown()")
            if self._idle:
                self._idle.pop().put(call)
            else:
                inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
                inbox.put(call)
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _serve(self, inbox: SimpleQueue[Callable[[], None] | None]) -> None:
        while (call := inbox.get()) is not None:
            call()
            del call
            with self._lock:
                if self._shut:
                    return
                self._idle.append(inbox)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let every thread go when it is idle; with ``wait``, until all are gone."""
        with self._lock:
            self._shut = True
            while self._idle:
                self._idle.pop().put(None)
            threads = list(self._threads)
        if wait:
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join()

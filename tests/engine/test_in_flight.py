"""Futures in flight: as many as were declared, wherever the op stands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

import nogil_loader as nl

BOUND = 4
PATIENCE = 0.2
"""Seconds in which a request too many would surely have come."""


class Service:
    """Holds the first requests back for a while, to see how many dare to come."""

    def __init__(self) -> None:
        self.held: list[Future[None]] = []
        self.too_many = threading.Event()
        self._full = threading.Event()
        self._lock = threading.Lock()
        self._open = False
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def ask(self, n: int) -> Future[None]:
        future: Future[None] = Future()
        with self._lock:
            if self._open:
                future.set_result(None)
                return future
            self.held.append(future)
            if len(self.held) == BOUND:
                self._full.set()
            elif len(self.held) > BOUND:
                self.too_many.set()
        return future

    def _answer(self) -> None:
        self._full.wait()
        self.too_many.wait(PATIENCE)
        with self._lock:
            self._open = True
        for future in self.held:
            future.set_result(None)

    def close(self) -> None:
        self._thread.join()


@pytest.mark.parametrize("before", [None, lambda n: n], ids=["at the head", "behind a hop"])
def test_no_more_futures_are_unsettled_than_declared(before: Callable[[int], int] | None) -> None:
    service = Service()
    data = nl.from_sequence(range(400))
    if before is not None:
        data = data.map(before, threads=1)
    assert len(list(data.map(service.ask, in_flight=BOUND))) == 400
    service.close()
    assert len(service.held) == BOUND
    assert not service.too_many.is_set()

from __future__ import annotations

import queue
import threading

import pytest

from nogil_loader.sources.base import StreamReader, StreamSource
from nogil_loader.sources.queue import Queue_

QUEUES = [queue.Queue, queue.SimpleQueue, queue.LifoQueue]


def test_it_is_a_stream() -> None:
    source = Queue_(queue.Queue())
    assert isinstance(source, StreamSource)
    assert isinstance(source.open(), StreamReader)


def test_items_come_up_to_the_sentinel_and_later_ones_stay() -> None:
    items: queue.SimpleQueue[object] = queue.SimpleQueue()
    end = object()
    for item in (1, None, 3, end, 5):
        items.put(item)
    assert list(Queue_(items, sentinel=end).open()) == [1, None, 3]
    assert items.get_nowait() == 5


def test_nothing_is_taken_before_it_is_asked_for() -> None:
    items: queue.Queue[object] = queue.Queue()
    items.put(1)
    items.put(2)
    samples = iter(Queue_(items).open())
    assert next(samples) == 1
    assert items.qsize() == 1


def test_items_count_as_done_once_taken() -> None:
    items: queue.Queue[object] = queue.Queue()
    items.put(1)
    items.put(None)
    assert list(Queue_(items).open()) == [1]
    items.join()


@pytest.mark.skipif(not hasattr(queue, "ShutDown"), reason="Queue.shutdown is new in Python 3.13")
def test_shutting_the_queue_down_ends_the_stream_after_its_items() -> None:
    items: queue.Queue[object] = queue.Queue()
    items.put(1)
    items.shutdown()  # type: ignore[attr-defined,unused-ignore]
    assert list(Queue_(items).open()) == [1]


@pytest.mark.parametrize("kind", QUEUES)
def test_interrupting_wakes_a_waiting_reader(kind: type) -> None:
    items = kind()
    reader = Queue_(items).open()
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.extend(reader), daemon=True)
    thread.start()
    items.put("a")
    reader.interrupt()
    thread.join(10)
    assert not thread.is_alive()
    reader.close()
    # What an interruption left behind is never a sample of the next run.
    items.put("b") if kind is not queue.LifoQueue else None
    items.put(None)
    rest = [] if kind is queue.LifoQueue else list(Queue_(items).open())
    assert set(got + rest) <= {"a", "b"}


def test_a_full_queue_does_not_block_an_interruption() -> None:
    items: queue.Queue[object] = queue.Queue(maxsize=1)
    reader = Queue_(items).open()
    samples = iter(reader)
    items.put("a")
    assert next(samples) == "a"
    items.put("b")
    reader.interrupt()
    assert list(samples) == []
    assert items.get_nowait() == "b"


def test_misuse_is_refused() -> None:
    unordered: queue.PriorityQueue[int] = queue.PriorityQueue()
    with pytest.raises(TypeError, match="PriorityQueue"):
        Queue_(unordered)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list"):
        Queue_([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be resumed"):
        Queue_(queue.Queue()).open(resume={"at": 3})

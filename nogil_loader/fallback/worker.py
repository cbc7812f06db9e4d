"""A worker process: runs one op over the blocks that its parent sends.

Guarantees
- Before each cell its number and the time are written where the parent can see them, so that
  a crash or a hang is blamed on the sample that caused it.
- An op's exception comes back as the same type with its remote traceback as a note; one that
  cannot be pickled comes back as ``RemoteError`` with its words. A result that cannot be
  pickled costs its own sample only.
- On SIGUSR1 the process says where it is.
- The process ends when its parent does; an object made for it by ``per_worker`` is closed
  when the parent wants no more.
"""

from __future__ import annotations

import faulthandler
import pickle
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from os import close
from time import process_time
from typing import cast

from nogil_loader.fallback.memory import PROGRESS_SIZE, Progress, Segment
from nogil_loader.fallback.process import begin, end_with_parent
from nogil_loader.fallback.shipping import Channel, shippable_error
from nogil_loader.position.keys import Keyed

Result = tuple[bool, object]
Randomness = tuple[int, int, str]
"""(seed, epoch, name of the stage): generators are made here, never sent."""
Work = tuple[Sequence[object], Sequence[tuple[int, ...]] | None, Randomness | None, list[int]]
"""(cells, keys of their randomness, what it is made from, memory that may be reused)."""
Reply = tuple["list[Result] | BaseException", float, list[int]]
"""(results, or why the cells cannot be unpacked here; seconds on a core; memory again)."""


def main(connection: Connection, words: Connection, shipped: bytes) -> None:
    """The life of a worker process. Module-level, so that spawn can find it."""
    begin()
    end_with_parent()
    faulthandler.register(signal.SIGUSR1, words.fileno(), all_threads=False)
    descriptor = recv_handle(connection)
    progress = Progress(Segment(descriptor, PROGRESS_SIZE))
    close(descriptor)
    channel = Channel(connection)
    try:
        fn = _bound(pickle.loads(shipped))
    except BaseException as error:
        channel.send(shippable_error(error, "a worker process, as it started"))
        return
    try:
        channel.send(None)
        _serve(channel, fn, progress)
    except (EOFError, ConnectionError):
        return  # the parent has gone, or wants no more
    finally:
        let_go = getattr(fn, "close", None)
        if callable(let_go):
            let_go()


def _bound(fn: object) -> Callable[..., object]:
    own = getattr(fn, "bind", None)
    factory = getattr(fn, "factory", None)
    made: object = factory() if factory is not None else own() if own is not None else fn
    if not callable(made):
        raise TypeError(f"{made!r} is not a function")
    return made


def _serve(channel: Channel, fn: Callable[..., object], progress: Progress) -> None:
    keyed: Keyed | None = None
    known: Randomness | None = None
    while True:
        begun = process_time()
        try:
            cells, keys, randomness, freed = cast("Work", channel.receive())
        except EOFError:
            raise
        except Exception as error:
            channel.send((shippable_error(error, "a worker process"), 0.0, []))
            continue
        channel.reuse(freed)
        if randomness is not None and randomness != known:
            keyed, known = Keyed(*randomness), randomness
        results = _run(fn, keyed, cells, keys, progress)
        del cells
        reply = (results, process_time() - begun, channel.freed())
        try:
            channel.send(reply)
        except ConnectionError:
            raise
        except Exception:
            channel.send((list(map(_sendable, results)), *reply[1:]))


def _run(
    fn: Callable[..., object],
    keyed: Keyed | None,
    cells: Sequence[object],
    keys: Sequence[tuple[int, ...]] | None,
    progress: Progress,
) -> list[Result]:
    results: list[Result] = []
    for number, cell in enumerate(cells):
        progress.at(number)
        try:
            if keyed is not None and keys is not None:
                results.append((True, fn(cell, keyed(*keys[number]))))
            else:
                results.append((True, fn(cell)))
        except BaseException as error:
            results.append((False, shippable_error(error, "a worker process")))
    return results


def _sendable(result: Result) -> Result:
    try:
        pickle.dumps(result, protocol=5)
    except Exception as error:
        return False, TypeError(f"what the op returned cannot be sent between processes: {error}")
    return result

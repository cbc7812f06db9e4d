"""A worker process: runs one op over the blocks that its parent sends.

Guarantees
- Before each cell its number is written where the parent can see it, so that a crash or a
  hang is blamed on the sample that caused it.
- An op's exception comes back as the same type with its remote traceback as a note; one that
  cannot be pickled comes back as ``RemoteError`` with its words.
- The process ends when its parent does.
"""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from ctypes import c_longlong
from multiprocessing.connection import Connection

from nogil_loader.fallback.shipping import Arena, pack, unpack
from nogil_loader.position.keys import Keyed

Result = tuple[bool, object]
Randomness = tuple[int, int, str]
"""(seed, epoch, name of the stage): generators are made here, never sent."""
Work = tuple[Sequence[object], Sequence[tuple[int, ...]] | None, Randomness | None]
"""(cells, keys of their randomness, what it is made from)."""


class RemoteError(RuntimeError):
    """An op in a worker process raised an exception that cannot be pickled."""


def main(
    connection: Connection,
    progress: c_longlong,
    shipped: bytes,
) -> None:
    """The life of a worker process. Module-level, so that spawn can find it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    inbox, outbox = Arena(), Arena()
    try:
        fn = _bound(pickle.loads(shipped))
        keyed: Keyed | None = None
        known: Randomness | None = None
        connection.send("ready")
        while True:
            head, name, places = connection.recv()
            work: Work = unpack(head, name, places, inbox)  # type: ignore[assignment]
            cells, keys, randomness = work
            if randomness is not None and randomness != known:
                keyed, known = Keyed(*randomness), randomness
            connection.send(_reply(_run(fn, keyed, cells, keys, progress), outbox))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has gone, or wants no more
    finally:
        inbox.close()
        outbox.close()


def _bound(fn: object) -> Callable[..., object]:
    own = getattr(fn, "bind", None)
    factory = getattr(fn, "factory", None)
    made: object = factory() if factory is not None else own() if own is not None else fn
    if not callable(made):
        raise TypeError(f"{made!r} is not a function")
    return made


def _run(
    fn: Callable[..., object],
    keyed: Keyed | None,
    cells: Sequence[object],
    keys: Sequence[tuple[int, ...]] | None,
    progress: c_longlong,
) -> list[Result]:
    results: list[Result] = []
    for number, cell in enumerate(cells):
        progress.value = number
        try:
            if keyed is not None and keys is not None:
                results.append((True, fn(cell, keyed(*keys[number]))))
            else:
                results.append((True, fn(cell)))
        except BaseException as error:
            results.append((False, _shippable(error)))
    return results


def _shippable(error: BaseException) -> BaseException:
    told = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"in a worker process:\n{told}")
    error.__traceback__ = None
    try:
        again = pickle.loads(pickle.dumps(error))
    except Exception:
        return RemoteError(told)
    return error if type(again) is type(error) else RemoteError(told)


def _reply(results: list[Result], outbox: Arena) -> tuple[bytes, str, list[tuple[int, int]]]:
    try:
        return pack(results, outbox)
    except Exception as error:
        wrong = TypeError(f"what the op returned cannot be sent between processes: {error}")
        return pack([(False, wrong)] * len(results), outbox)

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
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from nogil_loader.fallback.shipping import Arena, Progress, pack, shippable_error, unpack
from nogil_loader.position.keys import Keyed

Result = tuple[bool, object]
Randomness = tuple[int, int, str]
"""(seed, epoch, name of the stage): generators are made here, never sent."""
Work = tuple[Sequence[object], Sequence[tuple[int, ...]] | None, Randomness | None]
"""(cells, keys of their randomness, what it is made from)."""


def main(
    connection: Connection,
    progress_name: str,
    shipped: bytes,
) -> None:
    """The life of a worker process. Module-level, so that spawn can find it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    inbox, outbox = Arena(), Arena()
    progress = Progress(progress_name)
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
        progress.close()


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
    progress: Progress,
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
            results.append((False, shippable_error(error, "a worker process")))
    return results


def _reply(results: list[Result], outbox: Arena) -> tuple[bytes, str, list[tuple[int, int]]]:
    try:
        return pack(results, outbox)
    except Exception as error:
        wrong = TypeError(f"what the op returned cannot be sent between processes: {error}")
        return pack([(False, wrong)] * len(results), outbox)

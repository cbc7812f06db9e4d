"""Indexes of files: built once, in parallel, kept for the next run.

Guarantees
- A saved index is used only when the size and time (or ETag) of its file, the kind of index
  and its version are the same; anything else, a damaged one too, is built again.
- It is written whole or not at all, so that processes may share a folder. A folder that
  cannot be written to is no error: the index is then built in every run.
- Building logs its progress to ``nogil_loader.sources`` every two seconds, and stops soon
  after Ctrl-C.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from nogil_loader.sources.blobs import Blobs

log = logging.getLogger("nogil_loader.sources")

Arrays: TypeAlias = "Mapping[str, np.ndarray[tuple[int, ...], np.dtype]]"
Keep: TypeAlias = "Literal['cache', 'beside', 'memory'] | str | os.PathLike[str]"
"""Where indexes are kept: ``"cache"``, a folder of the user's cache
(``$XDG_CACHE_HOME/nogil-loader/index``); ``"beside"``, next to each file, for all machines
that share it; ``"memory"``, nowhere; or a folder."""

VERSION = 1
EVERY_SECONDS = 2.0
SUFFIX = ".nlindex"


class Progress:
    """Counts what many threads have indexed and says so every two seconds."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = max(total, 1)
        self._lock = threading.Lock()
        self._bytes = self._items = 0
        self._due = time.monotonic() + EVERY_SECONDS
        self._stopped = False

    def add(self, size: int, items: int) -> None:
        """Another ``size`` bytes with ``items`` samples are done. From any thread.

        Raises ``InterruptedError`` after ``stop``.
        """
        if self._stopped:
            raise InterruptedError(f"indexing {self._what} was stopped")
        with self._lock:
            self._bytes += size
            self._items += items
            if time.monotonic() < self._due:
                return
            self._due = time.monotonic() + EVERY_SECONDS
        log.info(
            "indexing %s: %d %% of %.1f GB, %d samples",
            self._what,
            100 * self._bytes // self._total,
            self._total / 1e9,
            self._items,
        )

    def stop(self) -> None:
        """Make every thread that adds to this give up."""
        self._stopped = True


Build: TypeAlias = "Callable[[int, Progress], Arrays]"
"""(number of the blob, progress) -> its index."""


def indexes(blobs: Blobs, kind: str, keep: Keep, build: Build) -> list[Arrays]:
    """The index of each blob: as saved where that is still true, else built and saved.

    ``kind`` names the form of the index and everything its content depends on but the blob.
    """
    progress = Progress(f"{len(blobs.names)} x {kind.split()[0]}", sum(blobs.sizes))

    def one(number: int) -> Arrays:
        stamp = f"{kind} {VERSION} {blobs.versions[number]}"
        path = _path(blobs.names[number], kind, keep)
        saved = None if path is None else _load(path, stamp)
        if saved is not None:
            return saved
        made = build(number, progress)
        if path is not None:
            _save(path, stamp, made)
        return made

    if len(blobs.names) == 1:
        return [one(0)]
    # Threads of its own: this happens once, before there is a run whose workers could do it.
    with ThreadPoolExecutor(thread_name_prefix="nogil_loader-index") as pool:
        futures = [pool.submit(one, number) for number in range(len(blobs.names))]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future for future in futures if future.done() and future.exception()]
            if failed:
                failed[0].result()
            return [future.result() for future in futures]
        finally:
            progress.stop()
            pool.shutdown(wait=False, cancel_futures=True)


def _path(name: str, kind: str, keep: Keep) -> Path | None:
    if keep == "memory":
        return None
    if keep == "beside":
        return None if "://" in name else Path(f"{name}{SUFFIX}")
    folder = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nogil-loader", "index")
        if keep == "cache"
        else Path(keep)
    )
    where = name if "://" in name else os.path.realpath(name)
    unique = hashlib.blake2b(os.fsencode(f"{kind}\0{where}"), digest_size=16).hexdigest()
    return folder / f"{unique}{SUFFIX}"


def _load(path: Path, stamp: str) -> Arrays | None:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as saved:
            if str(saved["arr_0"]) != stamp:
                return None
            names = [str(name) for name in saved["arr_1"]]
            return {name: saved[f"arr_{place}"] for place, name in enumerate(names, 2)}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.info("%s is not a usable index and is made again: %s", path, error)
        return None


def _save(path: Path, stamp: str, made: Arrays) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=SUFFIX)
        try:
            with open(descriptor, "wb") as file:
                np.savez(file, np.array(stamp), np.array(list(made)), *made.values())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        log.info("the index %s is not kept: %s", path, error)

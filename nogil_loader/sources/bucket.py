"""One bucket of an object store, through **obstore** (the extra ``store``).

Guarantees
- Safe from any number of threads: obstore does the waiting outside the interpreter.
- A body that breaks is resumed at the byte where it broke.
- obstore's errors become ours, with the object's address and without its debug output.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from nogil_loader.sources.errors import ObjectChangedError, StoreError
from nogil_loader.sources.http import Patience, Stat

log = logging.getLogger("nogil_loader.sources")


class Listed(NamedTuple):
    """An object that a store listed."""

    address: str
    tag: int


class Bucket:
    """One bucket, through obstore: safe from any number of threads."""

    def __init__(self, root: str, patience: Patience, options: dict[str, str]) -> None:
        try:
            self._obstore = importlib.import_module("obstore")
            store = importlib.import_module("obstore.store")
        except ImportError as error:
            raise ImportError(f'{root} needs obstore: pip install "nogil_loader[store]"') from error
        self._root = root
        self._tries = patience.tries
        longest = timedelta(seconds=patience.timeout)
        try:
            self._store = store.from_url(
                root,
                config=options or None,
                # Plain HTTP is what a user's own endpoint may speak; the stores' own do not.
                client_options={"timeout": longest, "allow_http": True},
                retry_config={
                    "max_retries": patience.tries - 1,
                    "retry_timeout": longest * patience.tries,
                    "backoff": {
                        "init_backoff": timedelta(seconds=patience.backoff),
                        "max_backoff": timedelta(seconds=30),
                        "base": 2,
                    },
                },
            )
        except self._obstore.exceptions.BaseError as error:
            raise StoreError(f"{root} cannot be opened: {_first_line(error)}") from error

    def list(self, path: str) -> Iterator[Listed]:
        """Every object below the path."""
        with self._translated(path):
            for chunk in self._obstore.list(self._store, prefix=path or None):
                for meta in chunk:
                    yield Listed(f"{self._root}/{meta['path']}", _tag(_version(meta)))

    def stat(self, path: str) -> Stat:
        """Size and version of an object."""
        with self._translated(path):
            meta = self._obstore.head(self._store, path)
            return Stat(int(meta["size"]), _version(meta))

    def read(self, path: str, offset: int, size: int, version: str) -> bytes:
        """A range. What came of a body that broke is kept, and the rest asked for anew."""
        if size == 0:
            return b""
        made = bytearray()
        failures = 0
        while len(made) < size:
            options = {"range": (offset + len(made), offset + size)}
            before = len(made)
            with self._translated(path):
                result = self._obstore.get(self._store, path, options=options)
                if _version(result.meta) != version:
                    raise _changed(self._root, path)
                try:
                    for chunk in result.stream(min_chunk_size=1 << 20):
                        made += memoryview(chunk)
                except self._obstore.exceptions.GenericError:
                    failures = failures + 1 if len(made) == before else 1
                    if failures >= self._tries:
                        raise
        return bytes(made)

    def read_all(self, path: str, tag: int) -> bytes:
        """The whole object."""
        with self._translated(path):
            result = self._obstore.get(self._store, path)
            version = _version(result.meta)
            if tag and _tag(version) != tag:
                raise _changed(self._root, path)
            size = int(result.meta["size"])
            made = bytearray()
            try:
                for chunk in result.stream(min_chunk_size=1 << 20):
                    made += memoryview(chunk)
            except self._obstore.exceptions.GenericError as error:
                log.info("%s/%s broke after %d bytes: %s", self._root, path, len(made), error)
            if len(made) == size:
                return bytes(made)
        return bytes(made) + self.read(path, len(made), size - len(made), version)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        """obstore's errors as ours, with the address."""
        told = f"{self._root}/{path}"
        kinds = self._obstore.exceptions
        try:
            yield
        except (kinds.NotFoundError, FileNotFoundError) as error:
            raise FileNotFoundError(errno.ENOENT, "the store has no such object", told) from error
        except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, "the store refuses", told) from error
        except kinds.PreconditionError as error:
            raise _changed(self._root, path) from error
        except kinds.BaseError as error:
            raise StoreError(f"{told}: {_first_line(error)}") from error


def _version(meta: dict[str, object]) -> str:
    """The ETag, or else size and time. Without quotes: Azure lists ETags bare and sends them
    quoted."""
    return str(meta.get("e_tag") or f"{meta['size']} {meta['last_modified']}").strip('"')


def _tag(version: str) -> int:
    """64 bits that tell versions apart; never 0."""
    digest = hashlib.blake2b(version.encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) or 1


def _first_line(error: Exception) -> str:
    """Without the pages of debug output that follow it."""
    return str(error).partition("\n")[0]


def _changed(root: str, path: str) -> ObjectChangedError:
    return ObjectChangedError(
        f"{root}/{path} changed on the server after it was opened: start a new run"
    )

"""Samples from the objects of a store: ``s3://``, ``gs://``, ``az://``, ``https://``.

Guarantees
- HTTP and HTTPS need nothing but the standard library, with one connection a thread
  (``http`` has what happens when one breaks); other stores go through **obstore** (the extra
  ``store``), which any number of threads share.
- Hundreds of requests in flight are hundreds of threads: 256 idle ones cost about 20 MB.
- What changed on the server after it was opened is an ``ObjectChangedError``.
- ``StoreBlobs`` gives archives and line files on a store the same reads as files have.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from nogil_loader.sources.base import Sample
from nogil_loader.sources.blobs import ReadAt
from nogil_loader.sources.bucket import Bucket, Listed
from nogil_loader.sources.errors import (
    BrokenFileError,
    EmptySourceError,
)
from nogil_loader.sources.http import USUAL, Connections, Patience, Stat
from nogil_loader.sources.locations import named
from nogil_loader.sources.packed import PackedNames

log = logging.getLogger("nogil_loader.sources")

WEB = ("http", "https")
STORE_THREADS = 32


@dataclass(frozen=True)
class Store:
    """Every object below an address, or the objects with the given addresses.

    Samples are dicts with ``"path"``: str, the object's address, and ``"bytes"``: its content.

    ``where``: one address to list what lies below (``"s3://bucket/folder"``; a web server
    cannot list), or a list of the objects' own addresses. Listed objects are sorted by the
    bytes of their address. ``extensions``: when given, only names that end in one of these, in
    any case. ``threads``: how many requests are in flight at once. ``options``: for obstore, as
    a dict or pairs of texts (``{"endpoint": "http://…", "skip_signature": "true"}``); what is
    not given comes from the environment (``AWS_ACCESS_KEY_ID`` …), where credentials belong:
    options are printed with the pipeline. ``patience``: how long to try.

    ``open`` raises ``EmptySourceError`` where nothing lies below the address, ``ImportError``
    naming the extra where obstore is missing, ``PermissionError`` and ``StoreError`` as the
    server answers; reading raises those, ``FileNotFoundError`` and ``ObjectChangedError``.

    >>> Store("s3://photos/train", extensions=(".jpg",)).extensions
    ('.jpg',)
    """

    where: str | Sequence[str]
    extensions: Sequence[str] | None = None
    threads: int = STORE_THREADS
    options: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    patience: Patience = USUAL

    def __post_init__(self) -> None:
        where = self.where if isinstance(self.where, str) else tuple(self.where)
        object.__setattr__(self, "where", where)
        given = self.options.items() if isinstance(self.options, Mapping) else self.options
        object.__setattr__(self, "options", tuple(given))
        object.__setattr__(self, "extensions", named(self.extensions, "extensions"))
        if self.threads < 1:
            raise ValueError(f"threads is at least 1, not {self.threads}")
        for address in (where,) if isinstance(where, str) else where:
            if "://" not in address:
                raise ValueError(f"not an address (scheme://…): {address!r}; files: from_files")
        if isinstance(where, str) and urlsplit(where).scheme in WEB:
            raise ValueError(f"a web server cannot list: give a list of addresses, not {where!r}")

    def open(self) -> StoreReader:
        """List the objects, if they were not given."""
        return StoreReader(self)


class StoreReader:
    """An opened ``Store``: the objects' addresses, packed."""

    def __init__(self, source: Store) -> None:
        self.threads: int | None = source.threads
        self._access = Access(source.patience, source.options)
        ends = tuple(end.lower() for end in source.extensions or ("",))
        tags: dict[str, int] | None = None
        if isinstance(source.where, str):
            found = self._access.list(source.where)
            tags = {address: tag for address, tag in found if address.lower().endswith(ends)}
            addresses = sorted(tags, key=str.encode)
        else:
            addresses = [item for item in source.where if item.lower().endswith(ends)]
        if not addresses:
            self._access.close()
            raise EmptySourceError(f"no object to read at {source.where or 'no address'}")
        self._names = PackedNames(address.encode() for address in addresses)
        self._tags = np.array([tags[item] if tags else 0 for item in addresses], np.int64)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def nbytes(self) -> int:
        """The memory that the list takes."""
        return self._names.nbytes + self._tags.nbytes

    def bind(self) -> Callable[[int], Sample]:
        """``index -> {"path", "bytes"}``, over connections of this thread's own."""
        name, tags, length = self._names.bind(), self._tags.data, len(self)
        read_all = self._access.bind().read_all

        def sample(index: int) -> dict[str, object]:
            if not 0 <= index < length:
                raise IndexError(f"object {index} of {length}")
            address = name(index).decode()
            return {"path": address, "bytes": read_all(address, tags[index])}

        return sample

    def ref(self, index: int) -> object:
        return self._names[index].decode()

    def fingerprint(self) -> str:
        """Of the addresses, and of the ETags where they were listed."""
        digest = hashlib.blake2b(f"store {len(self)}".encode(), digest_size=16)
        digest.update(self._names.blob())
        digest.update(self._tags.tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        self._access.close()


class StoreBlobs:
    """Objects of a store, read by ranges."""

    threads: int | None = STORE_THREADS
    ahead = 1 << 22

    def __init__(self, addresses: Sequence[str], patience: Patience = USUAL) -> None:
        self.names = tuple(addresses)
        self._access = Access(patience, ())
        try:
            with ThreadPoolExecutor(16, thread_name_prefix="nogil_loader-stat") as pool:
                stats = list(pool.map(self._access.stat, self.names))
        except BaseException:
            self._access.close()
            raise
        self.sizes = tuple(stat.size for stat in stats)
        self.versions = tuple(stat.version for stat in stats)

    def bind(self) -> ReadAt:
        """Reads over connections of the calling thread's own."""
        reader = self._access.bind()
        names, sizes, versions = self.names, self.sizes, self.versions

        def read(blob: int, offset: int, size: int) -> bytes:
            if not 0 <= offset <= offset + size <= sizes[blob]:
                raise BrokenFileError(
                    f"{names[blob]} ends at {sizes[blob]}: {size} bytes were expected at {offset}"
                )
            return reader.read(names[blob], offset, size, versions[blob])

        return read

    def close(self) -> None:
        self._access.close()


@dataclass(frozen=True)
class Fetch:
    """An op: address to bytes.

    ``.map(Fetch(), key="url", to="bytes", threads=256)``: each thread keeps its own
    connections open. Raises as ``Store`` does when it reads.
    """

    patience: Patience = USUAL

    def __call__(self, address: str) -> bytes:
        """The object's content, over a connection for this call alone."""
        access = Access(self.patience, ())
        try:
            return access.bind().read_all(address, 0)
        finally:
            access.close()

    def bind(self) -> Callable[[str], bytes]:
        """The same for one thread, over connections that stay open."""
        reader = Access(self.patience, ()).bind()

        def fetch(address: str) -> bytes:
            return reader.read_all(address, 0)

        return fetch


class Access:
    """Every way into stores, for all threads of a reader."""

    def __init__(
        self, patience: Patience, options: Mapping[str, str] | Sequence[tuple[str, str]]
    ) -> None:
        self._patience, self._options = patience, dict(options)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._connections: list[Connections] = []
        self._context: ssl.SSLContext | None = None
        self._buckets: dict[str, Bucket] = {}

    def bind(self) -> ThreadAccess:
        """For the calling thread alone."""
        return ThreadAccess(self)

    def stat(self, address: str) -> Stat:
        """Size and version of an object."""
        access = self.bind()
        try:
            return access.stat(address)
        finally:
            access.close()

    def list(self, address: str) -> Iterator[Listed]:
        """Every object below the address."""
        bucket, path = self.bucket(address)
        yield from bucket.list(path)

    def bucket(self, address: str) -> tuple[Bucket, str]:
        """The opened bucket of an address, and the path in it."""
        parts = urlsplit(address)
        root = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            if root not in self._buckets:
                self._buckets[root] = Bucket(root, self._patience, self._options)
            return self._buckets[root], parts.path.lstrip("/")

    def connections(self) -> Connections:
        """New ones, that ``close`` closes."""
        with self._lock:
            if self._context is None:
                self._context = ssl.create_default_context()
            made = Connections(self._patience, self._closing, self._context)
            self._connections.append(made)
            return made

    def close(self) -> None:
        """Ends every wait and closes every connection. Idempotent."""
        self._closing.set()
        with self._lock:
            while self._connections:
                self._connections.pop().close()
            self._buckets.clear()


class ThreadAccess:
    """One thread's way into stores."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._web: Connections | None = None

    def read(self, address: str, offset: int, size: int, version: str) -> bytes:
        """A range of the version that is known."""
        if address.startswith(WEB):
            return self._connections().read(address, offset, size, version)
        bucket, path = self._access.bucket(address)
        return bucket.read(path, offset, size, version)

    def read_all(self, address: str, tag: int) -> bytes:
        """The whole object; ``tag``: the hash of its ETag when listed, or 0."""
        if address.startswith(WEB):
            return self._connections().read_all(address)
        bucket, path = self._access.bucket(address)
        return bucket.read_all(path, tag)

    def stat(self, address: str) -> Stat:
        """Size and version."""
        if address.startswith(WEB):
            return self._connections().stat(address)
        bucket, path = self._access.bucket(address)
        return bucket.stat(path)

    def close(self) -> None:
        """Close this thread's connections."""
        if self._web is not None:
            self._web.close()

    def _connections(self) -> Connections:
        if self._web is None:
            self._web = self._access.connections()
        return self._web


def fetch(address: str) -> bytes:
    """The content of an object, over a connection for this call alone."""
    return Fetch()(address)

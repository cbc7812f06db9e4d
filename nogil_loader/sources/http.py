"""Byte ranges over HTTP and HTTPS, by the standard library's ``http.client``.

Guarantees
- One ``Connections`` belongs to one thread and keeps one connection a host open.
- A connection that breaks in mid-body, however often, is resumed at the byte where it broke;
  a read gives up after so many failures in a row without a new byte.
- An object that changed meanwhile (ETag, or else size and time) is an ``ObjectChangedError``,
  never a mix of two versions.
- A server that ignores ranges is read right all the same, from the beginning.
- Statuses that say "not now" (429, 500, 502, 503, 504) are tried again, after the time that
  the server asks for; the others are errors of their own at once: ``FileNotFoundError``,
  ``PermissionError``, ``StoreError``.
"""

from __future__ import annotations

import errno
import http.client
import random
import re
import ssl
import threading
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from nogil_loader.sources.errors import BrokenFileError, ObjectChangedError, StoreError

AGAIN = frozenset((429, 500, 502, 503, 504))
MOVED = frozenset((301, 302, 303, 307, 308))
CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
LONGEST_WAIT = 30.0
REDIRECTS = 5
SMALL = 1 << 16
"""Bytes that are sooner sent again than counted one by one."""
FINAL = (FileNotFoundError, PermissionError, StoreError)
"""The ``OSError``s that are an answer, not a failure of the connection."""
SAFE = "/%:@!$&'()*+,;=~-._?"
"""What may stand in an address as it is, beside letters and digits; the rest is escaped."""
AS_IT_IS = re.compile(rf"[A-Za-z0-9{re.escape(SAFE)}]*", re.ASCII)


@dataclass(frozen=True)
class Patience:
    """How long to try.

    ``tries``: failures in a row without a new byte, before giving up. ``timeout``: seconds
    that a connection may be silent. ``backoff``: seconds before the second try, doubled for
    each further one up to 30; the first is made at once, since a connection that was kept
    open is often just closed by the server.
    """

    tries: int = 6
    timeout: float = 60.0
    backoff: float = 0.2


USUAL = Patience()


class Stat(NamedTuple):
    """What a server says of an object."""

    size: int
    version: str
    """Its ETag, or else size and time."""


class _Broken(Exception):
    """The connection failed; the bytes that came are kept."""


class _NotNow(Exception):
    """The server asks to be left alone for a while."""

    def __init__(self, status: int, seconds: float | None) -> None:
        super().__init__(f"status {status}")
        self.seconds = seconds


class Connections:
    """One thread's connections.

    ``closing`` ends every wait; ``context`` is shared by all threads, since to make one takes
    10 ms.
    """

    def __init__(
        self, patience: Patience, closing: threading.Event, context: ssl.SSLContext
    ) -> None:
        self._patience, self._closing, self._context = patience, closing, context
        self._open: dict[tuple[str, str], http.client.HTTPConnection] = {}
        self._last: http.client.HTTPResponse | None = None
        self._random = random.Random()

    def read(self, url: str, offset: int, size: int, version: str | None = None) -> bytes:
        """Exactly ``size`` bytes from ``offset`` on, of the version that is known, if any."""
        if size == 0:
            return b""
        made = bytearray(size)
        self._fill(url, offset, made, version, None)
        return bytes(made)

    def read_all(self, url: str) -> bytes:
        """The whole object."""
        failures = self._failures(url)
        while True:
            try:
                response = self._get(url, None, None)
                if response.length is None or response.length <= SMALL:
                    return self._rest(response)
                stat = _stat(response)
                made = bytearray(stat.size)
                self._fill(url, 0, made, stat.version, response)
                return bytes(made)
            except (_Broken, _NotNow) as error:
                failures.after(error)

    def stat(self, url: str) -> Stat:
        """Size and version. By a request for one byte: addresses that are signed for GET
        refuse HEAD, and only so is it known whether the server has ranges."""
        failures = self._failures(url)
        while True:
            try:
                response = self._get(url, "bytes=0-0", None)
                stat = _stat(response)
            except (_Broken, _NotNow) as error:
                failures.after(error)
                continue
            if stat.size < 0:
                raise StoreError(f"{url}: the server does not say how large it is")
            return stat

    def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._last is not None:
            self._last.close()
            self._last = None
        while self._open:
            self._open.popitem()[1].close()

    def __del__(self) -> None:
        # An op's connections have nobody else to close them.
        self.close()

    def _fill(
        self,
        url: str,
        offset: int,
        made: bytearray,
        version: str | None,
        response: http.client.HTTPResponse | None,
    ) -> None:
        """Fill ``made`` with what lies from ``offset`` on, by as many requests as it takes.

        ``response``: one that is about to give just that, if there is one.
        """
        filled = 0
        failures = self._failures(url)
        with memoryview(made) as view:
            while filled < len(view):
                try:
                    response = response or self._part(
                        url, offset + filled, len(view) - filled, version
                    )
                    count = response.readinto(view[filled:])
                    if not count:
                        raise _Broken(f"it ended after {filled} of {len(view)} bytes")
                    filled += count
                    failures = self._failures(url)
                except (OSError, http.client.HTTPException, _Broken, _NotNow) as error:
                    if isinstance(error, FINAL):
                        raise
                    response = None
                    if not isinstance(error, _NotNow):
                        self.close()
                    failures.after(error)

    def _part(
        self, url: str, offset: int, size: int, version: str | None
    ) -> http.client.HTTPResponse:
        """A response whose next bytes are those from ``offset`` on."""
        response = self._get(url, f"bytes={offset}-{offset + size - 1}", version)
        stat = _stat(response)
        if version is not None and stat.version != version:
            raise _changed(url)
        if response.status == 416:
            raise BrokenFileError(f"{url} ends at {stat.size}: more was expected at {offset}")
        if response.status == 206:
            _check_start(response, offset, url)
            return response
        # The server ignores ranges: what comes before is passed over.
        while offset:
            passed = len(response.read(min(1 << 20, offset)))
            if not passed:
                raise _Broken("it ended before the part that was asked for")
            offset -= passed
        return response

    def _rest(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _Broken(f"{type(error).__name__}: {error}") from error

    def _get(self, url: str, wanted: str | None, version: str | None) -> http.client.HTTPResponse:
        """The response, after redirects."""
        where = url
        for _ in range(REDIRECTS):
            response = self._request(where, wanted, version)
            status = response.status
            if status in (200, 206, 416):
                return response
            location = response.headers.get("Location")
            retry = response.headers.get("Retry-After", "")
            if status in AGAIN:
                raise _NotNow(status, float(retry) if retry.isdigit() else None)
            if status not in MOVED or location is None:
                raise _refusal(status, response.reason, url)
            where = urljoin(where, location)
        raise StoreError(f"{url} redirects more than {REDIRECTS} times")

    def _request(
        self, url: str, wanted: str | None, version: str | None
    ) -> http.client.HTTPResponse:
        scheme, host, path, query, _ = urlsplit(url)
        headers = {"User-Agent": "nogil-loader"}
        if wanted is not None:
            headers["Range"] = wanted
        if version is not None and version.startswith('"'):
            headers["If-Match"] = version
        target = f"{path or '/'}?{query}" if query else path or "/"
        if not AS_IT_IS.fullmatch(target):
            target = quote(target, safe=SAFE)
        self._make_ready()
        try:
            connection = self._connection(scheme, host)
            connection.request("GET", target, headers=headers)
            self._last = connection.getresponse()
            return self._last
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise StoreError(f"{url}: the certificate is not trusted: {error}") from error
            raise _Broken(f"{type(error).__name__}: {error}") from error

    def _connection(self, scheme: str, host: str) -> http.client.HTTPConnection:
        key = (scheme, host)
        if key not in self._open:
            timeout = self._patience.timeout
            self._open[key] = (
                http.client.HTTPSConnection(host, timeout=timeout, context=self._context)
                if scheme == "https"
                else http.client.HTTPConnection(host, timeout=timeout)
            )
        return self._open[key]

    def _make_ready(self) -> None:
        """Leave nothing of the last response in the connection: a small rest is read, and for
        a large one that nobody wants a new connection costs less."""
        last, self._last = self._last, None
        if last is None or last.isclosed():
            return
        if last.length is None or last.length > SMALL:
            self.close()
            return
        try:
            last.read()
        except (OSError, http.client.HTTPException):
            self.close()

    def _failures(self, url: str) -> _Failures:
        return _Failures(url, self._patience, self._closing, self._random)


class _Failures:
    """Failures in a row: waits after each, and raises when they are too many."""

    def __init__(
        self, url: str, patience: Patience, closing: threading.Event, source: random.Random
    ) -> None:
        self._url, self._patience, self._closing = url, patience, closing
        self._random = source
        self._count = 0

    def after(self, error: Exception) -> None:
        """Wait for another try, or raise when this was the last."""
        self._count += 1
        if self._count >= self._patience.tries:
            raise StoreError(
                f"{self._url}: gave up after {self._count} failures in a row, the last: {error}"
            ) from error
        seconds = 0.0
        if self._count > 1 or isinstance(error, _NotNow):
            # Spread, so that many threads that failed together do not return together.
            seconds = self._patience.backoff * 2 ** (self._count - 1) * self._random.uniform(0.5, 1)
        if isinstance(error, _NotNow) and error.seconds is not None:
            seconds = error.seconds
        if self._closing.wait(min(seconds, LONGEST_WAIT)):
            raise StoreError(f"{self._url}: the reader was closed meanwhile") from error


def _stat(response: http.client.HTTPResponse) -> Stat:
    headers = response.headers
    size = -1
    if response.status in (206, 416):
        found = CONTENT_RANGE.match(headers.get("Content-Range", ""))
        if found and found[3] != "*":
            size = int(found[3])
    elif response.length is not None:
        size = response.length
    version = headers.get("ETag") or f"{size} {headers.get('Last-Modified', '')}"
    return Stat(size, version)


def _check_start(response: http.client.HTTPResponse, offset: int, url: str) -> None:
    """A part must begin where it was asked for."""
    found = CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if not found or found[1] is None or int(found[1]) != offset:
        raise StoreError(
            f"{url}: asked for bytes from {offset} on, the server sent "
            f"{response.headers.get('Content-Range', 'a part that it does not name')}"
        )


def _refusal(status: int, reason: str, url: str) -> OSError | ObjectChangedError:
    if status in (404, 410):
        return FileNotFoundError(errno.ENOENT, "the server has no such object", url)
    if status in (401, 403):
        return PermissionError(errno.EACCES, f"the server refuses ({status} {reason})", url)
    if status == 412:
        return _changed(url)
    return StoreError(f"{url}: the server answers {status} {reason}")


def _changed(url: str) -> ObjectChangedError:
    return ObjectChangedError(f"{url} changed on the server after it was opened: start a new run")

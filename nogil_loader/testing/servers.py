"""A real HTTP server on this machine, with the faults that networks have.

Guarantees
- It speaks HTTP/1.1 over sockets of the loopback address: keep-alive, byte ranges, ETags.
- Faults are told in advance and happen exactly so: the n-th request for a path waits, is
  refused with a status, or is cut after so many bytes of its body.
- It counts: connections, and each request with its range.
- Leaving the ``with`` block closes every connection and ends every thread.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

RANGE = re.compile(r"bytes=(\d+)-(\d*)$")


@dataclass(frozen=True)
class Request:
    """One request that the server answered."""

    path: str
    range: str | None
    """As the client wrote it: ``bytes=0-99``."""


@dataclass
class LocalServer:
    """Serves ``files`` (content by path, without the first ``/``) until the block ends.

    ``latency``: seconds before each answer. ``ranges=False``: ranges are ignored and the whole
    file is sent with status 200. ``etags=False``: no ETag and no Last-Modified is sent.
    ``drops``: for a path, after how many bytes of the body its first, second, … request is cut
    off; None for one that is not. ``refusals``: for a path, the status of its first, second, …
    request; None for one that is answered. ``redirects``: for a path, where else to look.
    ``shift``: every part begins so many bytes later than was asked for, as it says itself.
    ``tls``: serve HTTPS with this context.

    ``files`` may be changed while it runs: the ETag changes with the content.

    >>> import urllib.request
    >>> with LocalServer({"a.txt": b"content"}) as server:
    ...     with urllib.request.urlopen(server.url("a.txt")) as answer:
    ...         answer.read()
    b'content'
    """

    files: dict[str, bytes]
    latency: float = 0.0
    ranges: bool = True
    etags: bool = True
    drops: Mapping[str, Iterable[int | None]] = field(default_factory=dict)
    refusals: Mapping[str, Iterable[int | None]] = field(default_factory=dict)
    redirects: Mapping[str, str] = field(default_factory=dict)
    shift: int = 0
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._drops = {path: list(sizes) for path, sizes in self.drops.items()}
        self._refusals = {path: list(codes) for path, codes in self.refusals.items()}

    def url(self, path: str) -> str:
        """The address of a path."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}/{path}"

    def __enter__(self) -> LocalServer:
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="nogil_loader-test-server"
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            for connection in self._sockets:
                _shut(connection)
        self._server.server_close()

    def _opened(self, connection: socket.socket) -> None:
        with self._lock:
            self.connections += 1
            self._sockets.add(connection)
            if self._ended.is_set():
                _shut(connection)

    def _closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(connection)

    def _next(self, path: str, asked: str | None) -> tuple[int | None, int | None]:
        """What is to go wrong with this request: its status, and where it is cut."""
        with self._lock:
            self.requests.append(Request(path, asked))
            refusals, drops = self._refusals.get(path), self._drops.get(path)
            status = refusals.pop(0) if refusals else None
            cut = drops.pop(0) if drops and status is None else None
        return status, cut


class _Server(ThreadingHTTPServer):
    # Its threads are waited for: a test must see that none is left.
    daemon_threads = False
    block_on_close = True
    request_queue_size = 512

    def __init__(self, owner: LocalServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)
        if owner.tls is not None:
            # The handshake is the connection's thread's to do: a client may refuse it.
            self.socket = owner.tls.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Small answers must not wait for the acknowledgement of the header before them.
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.owner._opened(self.connection)

    def finish(self) -> None:
        self.server.owner._closed(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        owner = self.server.owner
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        asked = self.headers.get("Range")
        status, cut = owner._next(path, asked)
        if owner.latency:
            owner._ended.wait(owner.latency)
        if status is not None:
            self._refuse(status)
        elif path in owner.redirects:
            self.send_response(302)
            self.send_header("Location", owner.redirects[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path not in owner.files:
            self._refuse(404)
        else:
            self._send(owner.files[path], asked, cut, with_body)

    def _refuse(self, status: int) -> None:
        body = b"refused"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 503:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body)

    def _send(self, content: bytes, asked: str | None, cut: int | None, with_body: bool) -> None:
        owner = self.server.owner
        tag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
        wanted = self.headers.get("If-Match")
        if owner.etags and wanted is not None and wanted != tag:
            self._refuse(412)
            return
        found = RANGE.match(asked) if asked and owner.ranges else None
        body = content
        if found:
            first, last = int(found[1]) + owner.shift, int(found[2] or len(content) - 1)
            if first >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = content[first : last + 1]
            self.send_response(206)
            end = first + len(body) - 1
            self.send_header("Content-Range", f"bytes {first}-{end}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        if owner.etags:
            self.send_header("ETag", tag)
        if owner.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if not with_body:
            return
        if cut is None or cut >= len(body):
            self.wfile.write(body)
            return
        self.wfile.write(body[:cut])
        self.wfile.flush()
        self.close_connection = True
        _shut(self.connection)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # the other side was first
        return

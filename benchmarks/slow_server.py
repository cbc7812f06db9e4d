"""A server that answers every request after a fixed latency, in a process of its own.

``with serving(count, size, latency) as addresses:`` gives the addresses of ``count`` objects.

Guarantees
- One thread, no thread a connection, so that 256 connections cost what their bytes cost: the
  machine's cores are left to the client that is measured.
- An answer leaves ``latency`` seconds after its request was read, however many wait.
- The process ends with the block, whatever happens in it.
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

HEAD = b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: "1"\r\n\r\n'


@contextmanager
def serving(count: int, size: int, latency: float) -> Iterator[list[str]]:
    """Start the server; the addresses of its objects of ``size`` bytes."""
    command = [sys.executable, "-m", "benchmarks.slow_server", str(size), str(latency)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            yield [f"http://127.0.0.1:{port}/{index:06}" for index in range(count)]
        finally:
            server.kill()


def main() -> None:
    """Serve until killed; the first line of output is the port."""
    size, latency = int(sys.argv[1]), float(sys.argv[2])
    answer = HEAD % size + bytes(size)
    selector = selectors.DefaultSelector()
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        print(listener.getsockname()[1], flush=True)
        due: list[tuple[float, int, socket.socket]] = []
        number = itertools.count()
        while True:
            wait = max(0.0, due[0][0] - time.monotonic()) if due else None
            for key, _ in selector.select(wait):
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                asking = key.fileobj
                assert isinstance(asking, socket.socket)
                if asking.recv(65536):  # one request: a client here waits for its answer
                    heapq.heappush(due, (time.monotonic() + latency, next(number), asking))
                else:
                    selector.unregister(asking)
                    asking.close()
            now = time.monotonic()
            while due and due[0][0] <= now:
                _, _, asking = heapq.heappop(due)
                try:
                    asking.sendall(answer)
                except OSError:  # it went while it waited
                    selector.unregister(asking)
                    asking.close()


if __name__ == "__main__":
    main()

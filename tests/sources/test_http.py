from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nogil_loader.sources.errors import BrokenFileError, ObjectChangedError, StoreError
from nogil_loader.sources.http import Connections, Patience
from nogil_loader.testing.servers import LocalServer

DATA = bytes(index * 7 % 251 for index in range(300_000))
QUICK = Patience(tries=4, timeout=5.0, backoff=0.001)


@contextmanager
def connected(
    server: LocalServer, patience: Patience = QUICK, closing: threading.Event | None = None
) -> Iterator[Connections]:
    context = ssl.create_default_context()
    with server:
        connections = Connections(patience, closing or threading.Event(), context)
        try:
            yield connections
        finally:
            connections.close()


def test_ranges_come_over_one_connection() -> None:
    server = LocalServer({"a": DATA})
    with connected(server) as connections:
        url = server.url("a")
        stat = connections.stat(url)
        assert stat.size == len(DATA)
        for offset, size in ((0, 10), (5, 1), (0, len(DATA)), (len(DATA) - 3, 3), (7, 0)):
            assert connections.read(url, offset, size, stat.version) == DATA[offset:][:size]
        assert connections.read_all(url) == DATA
    assert server.connections == 1
    assert server.requests[1].range == "bytes=0-9"


def test_a_read_goes_on_where_the_connection_broke_again_and_again() -> None:
    server = LocalServer({"a": DATA}, drops={"a": [1000, 70_000, 0, 1, None]})
    with connected(server) as connections:
        assert connections.read(server.url("a"), 100, 200_000) == DATA[100:200_100]
    assert [request.range for request in server.requests] == [
        "bytes=100-200099",
        "bytes=1100-200099",
        "bytes=71100-200099",
        "bytes=71100-200099",
        "bytes=71101-200099",
    ]


def test_a_whole_object_goes_on_where_the_connection_broke() -> None:
    server = LocalServer({"a": DATA}, drops={"a": [1000, 70_000, None]})
    with connected(server) as connections:
        assert connections.read_all(server.url("a")) == DATA
    assert [request.range for request in server.requests] == [
        None,
        "bytes=1000-299999",
        "bytes=71000-299999",
    ]


def test_an_object_that_changes_between_two_parts_is_an_error_and_no_mix() -> None:
    for etags in (True, False):
        server = LocalServer({"a": DATA}, drops={"a": [1000, None]}, etags=etags)
        with connected(server) as connections:
            url = server.url("a")
            version = connections.stat(url).version
            server.files["a"] = DATA[:-1]
            with pytest.raises(ObjectChangedError, match="/a changed"):
                connections.read(url, 0, 5000, version)
            server.files["a"] = b"x" * len(DATA)
            if etags:
                with pytest.raises(ObjectChangedError, match="/a changed"):
                    connections.read(url, 0, 5000, version)


def test_a_change_in_the_middle_of_a_whole_read_is_an_error() -> None:
    server = LocalServer({"a": DATA}, drops={"a": [1000]}, latency=0.15)
    with connected(server) as connections:
        timer = threading.Timer(0.2, lambda: server.files.update(a=DATA[::-1]))
        timer.start()
        with pytest.raises(ObjectChangedError, match="changed"):
            connections.read_all(server.url("a"))
        timer.join()


def test_a_change_in_the_middle_is_noticed_without_etags() -> None:
    server = LocalServer({"a": DATA}, drops={"a": [1000]}, latency=0.15, etags=False)
    with connected(server) as connections:
        timer = threading.Timer(0.2, lambda: server.files.update(a=DATA[:-1]))
        timer.start()
        with pytest.raises(ObjectChangedError, match="changed"):
            connections.read_all(server.url("a"))
        timer.join()


def test_another_part_than_asked_for_is_an_error() -> None:
    server = LocalServer({"a": DATA}, shift=1, drops={"a": [None, 70_000]})
    with connected(server) as connections:
        with pytest.raises(StoreError, match=r"bytes from 10 on, the server sent bytes 11-"):
            connections.read(server.url("a"), 10, 5)
        with pytest.raises(StoreError, match=r"bytes from 70000 on, the server sent bytes 70001-"):
            connections.read_all(server.url("a"))


def test_a_server_that_ignores_ranges_is_read_right() -> None:
    server = LocalServer({"a": DATA}, ranges=False, drops={"a": [None, 150_000, None, 200_000]})
    with connected(server) as connections:
        url = server.url("a")
        assert connections.stat(url).size == len(DATA)
        assert connections.read(url, 100_000, 100_000) == DATA[100_000:200_000]
        assert connections.read_all(url) == DATA


def test_statuses_that_say_not_now_are_tried_again() -> None:
    server = LocalServer({"a": DATA}, refusals={"a": [503, 429, 500, None]})
    with connected(server) as connections:
        assert connections.read(server.url("a"), 0, 100) == DATA[:100]
    assert len(server.requests) == 4
    assert server.connections == 1


def test_other_refusals_are_errors_at_once() -> None:
    server = LocalServer({"a": DATA}, refusals={"a": [403, 401, 410, 412, 400]})
    with connected(server) as connections:
        url = server.url("a")
        for kind in (PermissionError, PermissionError, FileNotFoundError, ObjectChangedError):
            with pytest.raises(kind, match="/a"):
                connections.read(url, 0, 1)
        with pytest.raises(StoreError, match="400"):
            connections.read(url, 0, 1)
        with pytest.raises(FileNotFoundError, match="/gone"):
            connections.read_all(server.url("gone"))
    assert len(server.requests) == 6


def test_it_gives_up_after_so_many_failures_in_a_row() -> None:
    server = LocalServer({"a": DATA}, drops={"a": [0] * 20}, refusals={"b": [503] * 20})
    with connected(server) as connections:
        with pytest.raises(StoreError, match=r"/a: gave up after 4 failures"):
            connections.read(server.url("a"), 0, 10)
        with pytest.raises(StoreError, match=r"/b: gave up after 4 failures.*503"):
            connections.read_all(server.url("b"))
    assert len(server.requests) == 8


def test_nobody_listening_is_an_error_with_the_address() -> None:
    server = LocalServer({})
    with server:
        url = server.url("a")
    connections = Connections(QUICK, threading.Event(), ssl.create_default_context())
    with pytest.raises(StoreError, match="refused"):
        connections.read_all(url)


def test_a_silent_server_is_left_after_the_timeout() -> None:
    server = LocalServer({"a": DATA}, latency=30.0)
    patience = Patience(tries=2, timeout=0.05, backoff=0.001)
    with connected(server, patience) as connections:
        started = time.monotonic()
        with pytest.raises(StoreError, match="timed out"):
            connections.read(server.url("a"), 0, 1)
        assert time.monotonic() - started < 5


def test_closing_ends_a_wait_between_tries() -> None:
    closing = threading.Event()
    server = LocalServer({"a": DATA}, drops={"a": [0, 0, 0]})
    with connected(server, Patience(tries=5, backoff=60.0), closing) as connections:
        timer = threading.Timer(0.2, closing.set)
        timer.start()
        with pytest.raises(StoreError, match="closed meanwhile"):
            connections.read(server.url("a"), 0, 1)
        timer.join()


def test_redirects_are_followed_but_not_for_ever() -> None:
    server = LocalServer({"a": DATA}, redirects={"b": "/a", "loop": "/loop"})
    with connected(server) as connections:
        assert connections.read(server.url("b"), 1, 2) == DATA[1:3]
        assert connections.read_all(server.url("b")) == DATA
        with pytest.raises(StoreError, match="redirects more than"):
            connections.read_all(server.url("loop"))


def test_empty_objects_and_strange_names_are_read() -> None:
    name = "a b/ü%41?.txt"
    server = LocalServer({"empty": b"", name: b"here"})
    with connected(server) as connections:
        assert connections.stat(server.url("empty")).size == 0
        assert connections.read_all(server.url("empty")) == b""
        assert connections.read_all(server.url("a%20b/%C3%BC%2541%3F.txt")) == b"here"
        assert connections.read_all(server.url("a b/ü%2541%3F.txt")) == b"here"


def test_a_read_past_the_end_is_an_error() -> None:
    server = LocalServer({"a": b"abc"})
    with connected(server) as connections, pytest.raises(BrokenFileError, match="ends at 3"):
        connections.read(server.url("a"), 3, 1)


def test_many_threads_read_at_once() -> None:
    files = {f"{number}": os.urandom(20_000) for number in range(40)}
    server = LocalServer(files, latency=0.02)
    wrong: list[object] = []
    context = ssl.create_default_context()
    with server:

        def work(first: int) -> None:
            connections = Connections(QUICK, threading.Event(), context)
            for number in range(first, 40, 20):
                try:
                    if connections.read_all(server.url(str(number))) != files[str(number)]:
                        wrong.append(number)
                except OSError as error:
                    wrong.append(error)
            connections.close()

        threads = [threading.Thread(target=work, args=(first,)) for first in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert server.connections == 20


def test_https_with_an_unknown_certificate_is_refused_at_once(tmp_path: Path) -> None:
    code = os.system(
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {tmp_path}/k.pem "
        f"-out {tmp_path}/c.pem -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 2>/dev/null"
    )
    if code:
        pytest.skip("there is no openssl command here")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
    with LocalServer({"a": DATA}, tls=serving) as server:
        url = server.url("a")
        assert url.startswith("https://")
        connections = Connections(QUICK, threading.Event(), ssl.create_default_context())
        with pytest.raises(StoreError, match="certificate is not trusted"):
            connections.read_all(url)
        trusting = ssl.create_default_context(cafile=str(tmp_path / "c.pem"))
        connections = Connections(QUICK, threading.Event(), trusting)
        assert connections.read(url, 5, 100_000) == DATA[5:100_005]
        connections.close()

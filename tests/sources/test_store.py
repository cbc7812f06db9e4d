from __future__ import annotations

import base64
import contextlib
import email.utils
import hmac
import importlib.util
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nogil_loader as nl
from nogil_loader.sources import bucket
from nogil_loader.sources.base import Sample, Source
from nogil_loader.sources.errors import EmptySourceError, ObjectChangedError, StoreError
from nogil_loader.sources.http import Patience
from nogil_loader.sources.lines import Lines
from nogil_loader.sources.read import read
from nogil_loader.sources.store import Fetch, Store
from nogil_loader.sources.tar import Tar
from nogil_loader.sources.tar_stream import TarStream
from nogil_loader.sources.zip import Zip
from nogil_loader.testing.servers import LocalServer

Check = Callable[[Source], list[Sample]]

QUICK = Patience(tries=4, timeout=10.0, backoff=0.001)

needs_obstore = pytest.mark.skipif(
    importlib.util.find_spec("obstore") is None, reason="obstore is not installed"
)


def tar_bytes(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return made.getvalue()


MEMBERS = {
    f"{number}.{field}": f"{field}{number}".encode() * 300
    for number in range(20)
    for field in ("jpg", "cls")
}


# Over HTTP, with nothing but the standard library.


def test_the_objects_of_a_web_server_are_samples(check: Check) -> None:
    files = {f"{number}.bin": os.urandom(1000) for number in range(30)}
    with LocalServer(files, drops={"3.bin": [10, 500]}) as server:
        addresses = [server.url(name) for name in files]
        source = Store([*addresses, server.url("notes.txt")], extensions=(".bin",), threads=4)
        samples = check(source)
        assert samples == [
            {"path": address, "bytes": content}
            for address, content in zip(addresses, files.values(), strict=True)
        ]
        reader = source.open()
        assert reader.threads == 4
        assert reader.ref(2) == addresses[2]
        assert reader.nbytes < 30 * 24
        reader.close()


def test_a_missing_object_is_an_error_when_it_is_read() -> None:
    with LocalServer({}) as server:
        reader = Store([server.url("gone")], patience=QUICK).open()
        with pytest.raises(FileNotFoundError, match="/gone"):
            reader.bind()(0)
        reader.close()


def test_tar_shards_are_read_by_ranges_and_indexed_by_large_ones(
    check: Check, tmp_path: Path
) -> None:
    with LocalServer({"a.tar": tar_bytes(MEMBERS)}) as server:
        source = Tar(server.url("a.tar"), keep_index=tmp_path)
        reader = source.open()
        indexing = len(server.requests)
        assert indexing <= 3, "the index is not built by few large requests"
        assert reader.threads
        assert reader.bind()(7) == {
            "__key__": "7",
            "jpg": MEMBERS["7.jpg"],
            "cls": MEMBERS["7.cls"],
        }
        assert len(server.requests) == indexing + 1, "one sample is one request"
        reader.close()
        check(source)


def test_zip_archives_and_lines_are_read_by_ranges(check: Check, tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in MEMBERS.items():
            file.writestr(name, content)
    with LocalServer({"a.zip": made.getvalue(), "b.txt": b"one\ntwo\r\nthree"}) as server:
        assert check(Zip(server.url("a.zip"), keep_index=tmp_path)) == [
            {"path": name, "bytes": content} for name, content in MEMBERS.items()
        ]
        lines = check(Lines(server.url("b.txt"), keep_index=tmp_path))
        assert lines == [b"one", b"two", b"three"]


def test_a_shard_that_changes_after_it_was_opened_is_an_error() -> None:
    with LocalServer({"a.tar": tar_bytes(MEMBERS)}) as server:
        reader = Tar(server.url("a.tar"), keep_index="memory").open()
        bound = reader.bind()
        bound(0)
        changed = dict(MEMBERS, **{"0.jpg": MEMBERS["1.jpg"]})
        server.files["a.tar"] = tar_bytes(changed)
        with pytest.raises(ObjectChangedError, match=r"a\.tar changed"):
            bound(1)
        reader.close()


def test_a_kept_index_of_a_shard_is_used_until_its_etag_changes(tmp_path: Path) -> None:
    with LocalServer({"a.tar": tar_bytes(MEMBERS)}) as server:
        source = Tar(server.url("a.tar"), keep_index=tmp_path)
        source.open().close()
        before = len(server.requests)
        source.open().close()
        assert len(server.requests) == before + 2, "size and first bytes, no index"
        server.files["a.tar"] = tar_bytes({"new.txt": b"x"})
        reader = source.open()
        assert len(reader) == 1
        reader.close()


def test_a_stream_of_shards_comes_from_a_server() -> None:
    with LocalServer({"a.tar": tar_bytes(MEMBERS)}) as server:
        opened = []

        def shard() -> io.BufferedIOBase:
            opened.append(urllib.request.urlopen(server.url("a.tar")))
            return opened[-1]  # type: ignore[no-any-return]

        stream = TarStream(shard).open()  # type: ignore[arg-type]
        assert len(list(stream)) == 20
        stream.close()
        opened[0].close()


def test_fetch_is_an_op_of_one_address() -> None:
    with LocalServer({"a": b"content"}, drops={"a": [3]}) as server:
        op = Fetch(QUICK)
        assert op(server.url("a")) == b"content"
        bound = op.bind()
        before = server.connections
        assert [bound(server.url("a")) for _ in range(5)] == [b"content"] * 5
        assert server.connections == before + 1
        assert read(server.url("a")) == b"content"
        del bound
    assert eval(repr(op)) == op


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot list"):
        Store("https://localhost/folder")
    with pytest.raises(ValueError, match="not an address"):
        Store("folder")
    with pytest.raises(ValueError, match="not an address"):
        Store(["s3://a/b", "folder"])
    with pytest.raises(ValueError, match="threads"):
        Store("s3://a", threads=0)
    with pytest.raises(EmptySourceError, match="no object"):
        Store([]).open()


def test_a_missing_obstore_is_one_sentence_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r's3://bucket needs obstore: pip install "nogil_loader'):
        Store("s3://bucket/folder").open()


# Through obstore: files, and a real S3 server.


@pytest.fixture(scope="module", autouse=True)
def obstore_runtime() -> None:
    """obstore's own threads and descriptors last as long as the process: made before any test
    counts."""
    if importlib.util.find_spec("obstore") is not None:
        obstore = importlib.import_module("obstore")
        obstore.head(obstore.store.from_url("file:///"), __file__.lstrip("/"))


@needs_obstore
def test_a_folder_is_a_store(check: Check, make: Callable[[dict[str, bytes]], Path]) -> None:
    root = make({f"{number % 3}/{number:02d}.bin": b"%d" % number * 50 for number in range(10)})
    samples = check(Store(f"file://{root}", extensions=(".BIN",)))
    paths = sorted(f"file://{path}" for path in root.rglob("*.bin"))
    assert [sample["path"] for sample in samples] == paths  # type: ignore[index]
    assert samples[0]["bytes"] == b"0" * 50  # type: ignore[index]
    with pytest.raises(EmptySourceError, match="no object"):
        Store(f"file://{root}", extensions=(".png",)).open()


@needs_obstore
def test_an_object_that_changed_since_it_was_listed_is_an_error(
    make: Callable[[dict[str, bytes]], Path],
) -> None:
    root = make({"a": b"one", "b": b"two"})
    reader = Store(f"file://{root}").open()
    bound = reader.bind()
    (root / "a").write_bytes(b"other")
    with pytest.raises(ObjectChangedError, match="/a changed"):
        bound(0)
    assert bound(1)["bytes"] == b"two"  # type: ignore[index]
    (root / "b").unlink()
    with pytest.raises(FileNotFoundError, match="/b"):
        bound(1)
    reader.close()


MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


def moto_python() -> str | None:
    """A Python that has moto: this one, or that of the GIL environment of the project."""
    if importlib.util.find_spec("moto") is not None:
        return sys.executable
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nogil-loader")
    named = os.environ.get("NOGIL_LOADER_MOTO_PYTHON")
    pythons = [Path(named)] if named else sorted(cache.glob("env/gil-*/bin/python"))
    for python in pythons:
        if any(python.parent.parent.glob("lib/python*/site-packages/moto/server.py")):
            return str(python)
    return None


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket on a real S3 server in a process of its own."""
    python = moto_python()
    if python is None:
        pytest.skip("no Python with moto[server] here (NOGIL_LOADER_MOTO_PYTHON names one)")
    child = subprocess.Popen(
        [python, "-c", MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with child:
        assert child.stdout is not None
        try:
            port = next(line for line in child.stdout if line.strip().isdigit()).strip()
            endpoint = f"http://127.0.0.1:{port}"
            for name, value in {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                "AWS_REGION": "us-east-1",
            }.items():
                monkeypatch.setenv(name, value)
            bucket = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
            with contextlib.closing(urllib.request.urlopen(bucket)):
                pass
            yield endpoint
        finally:
            child.communicate()


def put(name: str, content: bytes) -> None:
    obstore = importlib.import_module("obstore")
    store = obstore.store.from_url("s3://bucket", client_options={"allow_http": True})
    obstore.put(store, name, content)


@needs_obstore
def test_a_real_s3_server(check: Check, s3: str, tmp_path: Path) -> None:
    for number in range(12):
        put(f"train/{number:02d}.bin", b"%d" % number * 1000)
    put("other/99.bin", b"not below the address")
    put("shards/a.tar", tar_bytes(MEMBERS))

    samples = check(Store("s3://bucket/train"))
    assert samples == [
        {"path": f"s3://bucket/train/{number:02d}.bin", "bytes": b"%d" % number * 1000}
        for number in range(12)
    ]
    given = Store(["s3://bucket/other/99.bin"], options=(("aws_endpoint", s3),))
    assert check(given)[0]["bytes"] == b"not below the address"  # type: ignore[index]
    with pytest.raises(EmptySourceError, match="no object"):
        Store("s3://bucket/nothing").open()

    shards = check(Tar("s3://bucket/shards/a.tar", keep_index=tmp_path))
    assert shards[3] == {"__key__": "3", "jpg": MEMBERS["3.jpg"], "cls": MEMBERS["3.cls"]}
    reader = Tar("s3://bucket/shards/a.tar", keep_index=tmp_path).open()
    put("shards/a.tar", tar_bytes(dict(MEMBERS, **{"0.jpg": MEMBERS["1.jpg"]})))
    with pytest.raises(ObjectChangedError, match=r"shards/a\.tar changed"):
        reader.bind()(0)
    reader.close()

    listed = Store("s3://bucket/train").open()
    put("train/00.bin", b"new")
    with pytest.raises(ObjectChangedError, match=r"train/00\.bin changed"):
        listed.bind()(0)
    listed.close()
    with pytest.raises((StoreError, FileNotFoundError)):
        Store("s3://no-such-bucket/x", patience=QUICK).open()


@needs_obstore
def test_a_read_through_obstore_goes_on_where_the_connection_broke(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = os.urandom(300_000)
    with LocalServer({"bucket/a.bin": content}, drops={"bucket/a.bin": [1000, 50_000]}) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url("").rstrip("/"))
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        reader = Store(["s3://bucket/a.bin"], patience=QUICK).open()
        assert reader.bind()(0) == {"path": "s3://bucket/a.bin", "bytes": content}
        assert len(server.requests) >= 3
        reader.close()


AZURE_ACCOUNT, AZURE_KEY = "devstoreaccount1", base64.b64encode(b"a key for a test").decode()


@pytest.fixture
def azure() -> Iterator[dict[str, str]]:
    """The options for a container on a real server of Azure's protocol, in its own process."""
    program = os.environ.get("NOGIL_LOADER_AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("no azurite-blob (npm install azurite) here; NOGIL_LOADER_AZURITE names one")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    child = subprocess.Popen(
        [
            program,
            "--inMemoryPersistence",
            "--blobPort",
            str(port),
            "--skipApiVersionCheck",
            "--disableTelemetry",
        ],
        env=os.environ | {"AZURITE_ACCOUNTS": f"{AZURE_ACCOUNT}:{AZURE_KEY}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        try:
            assert any("successfully listens" in line for line in child.stdout)
            endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
            make_azure_container(f"{endpoint}/bucket")
            yield {
                "account_name": AZURE_ACCOUNT,
                "account_key": AZURE_KEY,
                "endpoint": endpoint,
            }
        finally:
            child.kill()


def make_azure_container(address: str) -> None:
    """By hand, since obstore makes none: a PUT signed with the account's key."""
    date = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Content-Type": ""}
    path = address.partition("://")[2].partition("/")[2]
    signed = (
        "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
        f"/{AZURE_ACCOUNT}/{path}\nrestype:container"
    )
    digest = hmac.digest(base64.b64decode(AZURE_KEY), signed.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(
        f"{address}?restype=container", data=b"", method="PUT", headers=headers
    )
    with contextlib.closing(urllib.request.urlopen(request)):
        pass


@needs_obstore
def test_a_real_azure_server(check: Check, azure: dict[str, str]) -> None:
    obstore = importlib.import_module("obstore")
    store = obstore.store.from_url("az://bucket", config=azure, client_options={"allow_http": True})
    for number in range(6):
        obstore.put(store, f"train/{number}.bin", b"%d" % number * 1000)
    source = Store("az://bucket/train", options=azure)
    assert check(source) == [
        {"path": f"az://bucket/train/{number}.bin", "bytes": b"%d" % number * 1000}
        for number in range(6)
    ]
    reader = source.open()
    obstore.put(store, "train/0.bin", b"new")
    with pytest.raises(ObjectChangedError, match=r"az://bucket/train/0\.bin changed"):
        reader.bind()(0)
    reader.close()
    with pytest.raises(FileNotFoundError, match=r"no such object: 'az://bucket/gone'\n"):
        list(nl.from_store(["az://bucket/gone"], options=azure))
    refused = Store("az://bucket", options=azure | {"account_key": "AAAA"}, patience=QUICK)
    with pytest.raises((PermissionError, StoreError), match="az://bucket"):
        refused.open()


@pytest.fixture
def google() -> Iterator[dict[str, str]]:
    """The options for a bucket on a real server of Google's protocol, in its own process."""
    program = os.environ.get("NOGIL_LOADER_FAKE_GCS") or shutil.which("fake-gcs-server")
    if program is None:
        pytest.skip("no fake-gcs-server here; NOGIL_LOADER_FAKE_GCS names one")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    host, _, port = place.partition(":")
    child = subprocess.Popen(
        [program, "-scheme=http", "-backend=memory", f"-host={host}", f"-port={port}",
         f"-public-host={place}"],
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with child:
        assert child.stderr is not None
        try:
            assert any("server started" in line for line in child.stderr)
            post(f"http://{place}/storage/v1/b", b'{"name": "bucket"}')
            key = {
                "gcs_base_url": f"http://{place}",
                "disable_oauth": True,
                "client_email": "",
                "private_key": "",
                "private_key_id": "",
            }
            yield {"google_service_account_key": json.dumps(key)}
        finally:
            child.kill()


def post(address: str, body: bytes) -> None:
    with contextlib.closing(urllib.request.urlopen(address, body)):
        pass


@needs_obstore
def test_a_real_google_server(check: Check, google: dict[str, str]) -> None:
    upload = json.loads(google["google_service_account_key"])["gcs_base_url"]
    upload += "/upload/storage/v1/b/bucket/o?uploadType=media&name=train/"
    for number in range(6):
        post(f"{upload}{number}.bin", b"%d" % number * 1000)
    source = Store("gs://bucket/train", options=google)
    assert check(source) == [
        {"path": f"gs://bucket/train/{number}.bin", "bytes": b"%d" % number * 1000}
        for number in range(6)
    ]
    reader = source.open()
    post(f"{upload}0.bin", b"new")
    with pytest.raises(ObjectChangedError, match=r"gs://bucket/train/0\.bin changed"):
        reader.bind()(0)
    reader.close()
    with pytest.raises(FileNotFoundError, match=r"no such object: 'gs://bucket/gone'\n"):
        list(nl.from_store(["gs://bucket/gone"], options=google))


def test_an_etag_is_the_same_with_and_without_quotes() -> None:
    assert bucket._version({"e_tag": '"0x8DD"'}) == bucket._version({"e_tag": "0x8DD"})


@needs_obstore
@pytest.mark.parametrize("address", ["gs://bucket/a", "az://bucket/a", "s3://bucket/a"])
def test_no_credentials_and_no_server_are_an_error_that_names_the_address(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "http://127.0.0.1:9"
    for name, value in {
        "AWS_ENDPOINT_URL": nowhere,
        "AWS_REGION": "us-east-1",
        "AWS_SKIP_SIGNATURE": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ENDPOINT": nowhere,
        "AZURE_SKIP_SIGNATURE": "true",
        "GOOGLE_BASE_URL": nowhere,
        "GOOGLE_SKIP_SIGNATURE": "true",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((StoreError, PermissionError), match=address):
        list(nl.from_store([address], patience=Patience(tries=1, timeout=2.0, backoff=0.001)))

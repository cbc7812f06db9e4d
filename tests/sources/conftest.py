"""What every source is held to."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nogil_loader.sources.base import Reader, Sample, Source

Check = Callable[[Source], list[Sample]]


def equal(one: object, other: object) -> bool:
    """Equality that also compares arrays, at any depth of dicts and lists."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(np.asarray(one), np.asarray(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def check_source(source: Source) -> list[Sample]:
    """Reads all samples; fails unless order, threads and copies of the source change nothing."""
    reader = source.open()
    assert isinstance(reader, Reader)
    count = len(reader)
    read = reader.bind()
    samples = [read(index) for index in range(count)]
    assert equal(samples[::-1], [read(index) for index in reversed(range(count))])
    for beyond in (count, -1):
        if beyond == count:
            with pytest.raises(IndexError):
                read(beyond)
    refs = [reader.ref(index) for index in range(count)]
    assert len(set(map(str, refs))) == count, "two samples with one name"

    results: list[list[Sample] | BaseException] = [[] for _ in range(4)]

    def work(number: int) -> None:
        try:
            mine = reader.bind()
            results[number] = [mine(index) for index in range(count)]
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
        assert equal(result, samples)

    twin = pickle.loads(pickle.dumps(source))
    assert twin == source
    assert hash(twin) == hash(source)
    again = twin.open()
    assert again.fingerprint() == reader.fingerprint()
    assert len(again) == count
    again.close()
    again.close()
    reader.close()
    return samples


@pytest.fixture
def check() -> Check:
    return check_source


@pytest.fixture
def make(tmp_path: Path) -> Callable[[dict[str, bytes]], Path]:
    """Writes files, by their path below a fresh folder."""

    def write(files: dict[str, bytes]) -> Path:
        root = tmp_path / "root"
        for name, content in files.items():
            path = os.path.join(os.fsencode(root), os.fsencode(name))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        return root

    return write

"""Ops that worker processes can import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np


def square(value: int) -> int:
    return value * value


def frame(value: int) -> dict[str, object]:
    return {"x": np.full((100, 100), value, np.float32), "n": value}


def big(value: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full((300, 300), value, np.float32)


def where(value: int) -> int:
    return os.getpid()


def fails(value: int) -> int:
    if value == 5:
        raise KeyError("five")
    return value


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("only one")


def fails_oddly(value: int) -> int:
    if value == 5:
        raise Unpicklable(1, 2)
    return value


def dies(value: int) -> int:
    if value == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def hangs(value: int) -> int:
    if value == 5:
        time.sleep(100)
    return value


def noise(value: int, rng: np.random.Generator) -> float:
    return value + float(rng.random())


def even(value: int) -> bool:
    return value % 2 == 0


def twice(value: int) -> list[int]:
    return [value, value + 1000]


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, value: int) -> tuple[int, bool]:
        self.calls += 1
        return os.getpid(), self.calls > 0


# Of the matrix: what they must remember lies in a folder, for they may run in any process ----


Fn = Callable[..., object]


class Broken(Exception):
    pass


class Rare(Exception):
    """Has a field of its own."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def jitter(value: int) -> int:
    time.sleep(value * 7 % 5 * 0.0002)
    return value


def rare_from_23(value: int) -> int:
    if value >= 23:
        raise Rare(value)
    time.sleep(0.001)
    return value


def every_fifth(value: int) -> int:
    if value % 5 == 0:
        raise Broken(value)
    return value


class Flaky:
    """Fails so many times for each multiple of three."""

    def __init__(self, folder: str, times: int) -> None:
        self.folder = folder
        self.times = times

    def __call__(self, value: int) -> int:
        if value % 3 == 0:
            for attempt in range(self.times):
                try:
                    os.close(os.open(f"{self.folder}/{value}-{attempt}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                raise Broken(value)
        return value


def minus(ref: object, error: BaseException) -> int:
    assert "sequence[" in str(ref) and isinstance(error, Broken)
    return -1


class Raises:
    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __call__(self, value: int) -> int:
        if value == 3:
            raise self.kind
        return value


def none_of_odd(value: int) -> int | None:
    return None if value % 2 else value


def whatever(value: object) -> object:
    return value


class Disk:
    """A sequence with a bad place."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 6:
            raise Broken("bad sector")
        return index


def broken_stream() -> Iterator[int]:
    yield from range(20)
    raise Broken("the disk is gone")


def slow_stream() -> Iterator[int]:
    for value in range(6):
        if value == 4:
            time.sleep(2.0)
        yield value


def hangs_at_3_5_11(value: int) -> int:
    if value in (3, 5, 11):
        time.sleep(60)
    return value


class Begun:
    """Leaves a file when it begins and one when it ends, and takes a while in between."""

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds

    def __call__(self, value: int) -> int:
        open(f"{self.folder}/begun-{value}", "w").close()
        time.sleep(self.seconds)
        open(f"{self.folder}/ended-{value}", "w").close()
        return value


def slow(value: int) -> int:
    time.sleep(0.005)
    return value


def megabyte(value: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.full(1_000_000, value % 256, np.uint8)


def two_or_three(value: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.zeros(3 if value == 6 else 2)


def future(value: int) -> Future[int]:
    done: Future[int] = Future()
    done.set_result(value)
    return done


class Closed:
    """An object of a worker that says when it is closed."""

    folder = ""

    def __call__(self, value: str) -> str:
        self.folder = value
        return value

    def close(self) -> None:
        open(f"{self.folder}/closed-{os.getpid()}-{id(self)}", "w").close()


class NoWeights:
    """Cannot be made where it is to run."""

    def __call__(self, value: int) -> int:
        return value

    def bind(self) -> object:
        raise Broken("no weights")


class DiesOnce:
    """Takes its process down at five, the first time."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, value: int) -> int:
        if value == 5:
            try:
                os.close(os.open(f"{self.folder}/died", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return value
            os.kill(os.getpid(), signal.SIGKILL)
        return value


def python(value: int) -> int:
    """A millisecond or so of Python, which holds the GIL."""
    return sum(number & value for number in range(20_000))

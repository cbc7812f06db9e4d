"""Ops that worker processes can import."""

from __future__ import annotations

import os
import signal
import time

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

"""What is wrong is said when the pipeline is built, or when only the run can know, there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import nogil_loader as nl
from nogil_loader.testing.child import in_child

numbers = nl.from_sequence(range(10))
stream = nl.from_iterable(lambda: iter(range(10)))

MISUSE: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "threads=0": (lambda: numbers.map(abs, threads=0), ValueError, "threads"),
    "threads=True": (lambda: numbers.map(abs, threads=True), TypeError, "threads"),
    "workers=0": (lambda: numbers.workers(0), ValueError, "workers"),
    "share of 2": (lambda: numbers.workers(share=2.0), ValueError, "share"),
    "batch of 0": (lambda: numbers.batch(0), ValueError, "batch"),
    "batch of 2.5": (lambda: numbers.batch(2.5), TypeError, "whole number"),
    "memory of 0": (lambda: numbers.memory(0), ValueError, "memory"),
    "prefetch of 0": (lambda: numbers.prefetch(0), ValueError, "prefetch"),
    "no function": (lambda: numbers.map(3), TypeError, "not a function"),
    "to without key": (lambda: numbers.map(abs, to="x"), ValueError, "key="),
    "unknown on_error": (lambda: numbers.map(abs, on_error="ignore"), ValueError, "'skip'"),
    "max_skips alone": (lambda: numbers.map(abs, max_skips=3), ValueError, "on_error='skip'"),
    "timeout of 0": (lambda: numbers.map(abs, timeout=0), ValueError, "timeout"),
    "serial and threads": (lambda: numbers.map(abs, serial=True, threads=4), ValueError, "serial"),
    "retry of 0": (lambda: nl.Retry(0), ValueError, "at least 1"),
    "retry then": (lambda: nl.Retry(1, then="ignore"), ValueError, "'skip'"),
    "max_wait and drop_last": (
        lambda: numbers.batch(2, max_wait=1, drop_last=True),
        ValueError,
        "lose",
    ),
    "shuffle after endless repeat": (
        lambda: numbers.repeat().shuffle(),
        ValueError,
        "before repeat",
    ),
    "shuffle after filter": (lambda: numbers.filter(bool).shuffle(), ValueError, "before"),
    "shuffle after batch": (lambda: numbers.batch(2).shuffle(), ValueError, "before"),
    "shuffle after shard": (lambda: numbers.shard(0, 2).shuffle(), ValueError, "before"),
    "shuffle of a stream": (lambda: stream.shuffle(), ValueError, "window"),
    "repeat of a stream": (lambda: stream.repeat(), ValueError, "from_iterable"),
    "rank without world size": (lambda: numbers.shard(0), ValueError, "world_size"),
    "rank beyond the world": (lambda: numbers.shard(2, 2), ValueError, "below"),
    "filter after shard": (
        lambda: numbers.shard(0, 2).filter(bool),
        ValueError,
        "shard(batches=N)",
    ),
    "take between shard and batch": (lambda: numbers.shard(0, 2).take(4), ValueError, "before"),
    "skip after batch": (
        lambda: numbers.batch(2).map(abs, on_error="skip"),
        ValueError,
        "Retry",
    ),
    "unbatch of samples": (lambda: numbers.unbatch(), ValueError, "batch()"),
    "in_flight of a filter": (lambda: numbers.filter(bool, in_flight=2), TypeError, "in_flight"),
    "a stream's length": (lambda: len(stream), TypeError, "stream"),
    "a filter's length": (lambda: len(numbers.filter(bool)), TypeError, "filter"),
    "an endless length": (lambda: len(numbers.repeat()), TypeError, "repeat"),
    "from_sequence of an iterator": (lambda: nl.from_sequence(iter([])), TypeError, "iterable"),
    "from_iterable of a number": (lambda: nl.from_iterable(3), TypeError, "from_iterable"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_refused_and_the_cure_named(case: str) -> None:
    build, kind, cure = MISUSE[case]
    with pytest.raises(kind) as caught:
        build()
    assert type(caught.value) is kind
    assert cure in str(caught.value)


@in_child()
def test_a_pipeline_that_only_the_run_can_refuse_is_refused_when_it_starts() -> None:
    for chain, kind in (
        (nl.from_files("no such folder"), FileNotFoundError),
        (nl.from_tar("no such.tar"), FileNotFoundError),
    ):
        try:
            chain.run()
        except kind:
            continue
        raise AssertionError(f"{chain!r} was started")
    assert threading.active_count() == 1

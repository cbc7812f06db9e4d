"""Order, passes and who gets what: the first rows of the contract."""

from __future__ import annotations

import random
import threading
import time

import numpy as np

import nogil_loader as nl
from nogil_loader.position.keys import Keyed
from nogil_loader.testing.child import in_child


def jitter(value: int) -> int:
    time.sleep(random.random() * 0.002)
    return value


@in_child()
def test_order_is_the_same_for_every_thread_count_and_block_size() -> None:
    chain = nl.from_sequence(range(200)).shuffle(seed=3).map(jitter).batch(7)
    expected = None
    for workers in (1, 2, 5):
        for block in (1, 3, 64, None):
            got = [batch.tolist() for batch in chain.workers(workers, block=block)]
            assert expected is None or got == expected
            expected = got
    assert sorted(n for batch in expected or [] for n in batch) == list(range(200))


@in_child()
def test_late_rows_keep_position_order_whatever_finishes_first() -> None:
    def children(value: int) -> list[int]:
        jitter(value)
        return [value * 10 + k for k in range(value % 3)]

    chain = nl.from_sequence(range(90)).flat_map(children).filter(lambda n: n % 7).batch(4)
    expected = [n for v in range(90) for n in (v * 10 + k for k in range(v % 3)) if n % 7]
    for workers in (1, 4):
        for block in (1, 10):
            got = [n for batch in chain.workers(workers, block=block) for n in batch.tolist()]
            assert got == expected


@in_child()
def test_unordered_yields_the_same_batches_as_they_complete() -> None:
    release = threading.Event()

    def op(value: int) -> int:
        if value == 0:
            assert release.wait(10)
        return value

    chain = nl.from_sequence(range(12)).map(op).batch(3).workers(2, block=1).prefetch(4)
    with chain.run(ordered=False) as run:
        first = next(run).tolist()
        assert first != [0, 1, 2], "the first batch cannot be complete"
        release.set()
        rest = [batch.tolist() for batch in run]
    assert sorted([first, *rest]) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


@in_child()
def test_a_second_loop_is_the_same_pass_from_the_start() -> None:
    chain = nl.from_sequence(range(20)).shuffle(seed=1).batch(4)
    whole = [batch.tolist() for batch in chain]
    for batch in chain:
        assert batch.tolist() == whole[0]
        break
    assert [batch.tolist() for batch in chain] == whole


@in_child()
def test_a_generator_read_once_is_an_error_the_second_time_never_silently_empty() -> None:
    chain = nl.from_iterable(n for n in range(5))
    assert list(chain) == [0, 1, 2, 3, 4]
    try:
        list(chain)
    except RuntimeError as error:
        assert "lambda" in str(error)
    else:
        raise AssertionError("the second pass was silently empty")


@in_child()
def test_two_threads_that_share_a_run_get_each_batch_once() -> None:
    chain = nl.from_sequence(range(4000)).batch(4).workers(2)
    got: list[int] = []
    with chain.run() as run:

        def consume() -> None:
            mine = []
            for batch in run:
                mine.extend(batch.tolist())
            got.extend(mine)

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(got) == list(range(4000))


@in_child()
def test_randomness_belongs_to_the_position_not_to_the_thread() -> None:
    def draw(value: int, rng: np.random.Generator) -> float:
        return float(rng.random()) + value

    chain = nl.from_sequence(range(50)).shuffle(seed=2).map(draw, rng=True).batch(5)
    one = [batch.tolist() for batch in chain.workers(1, block=50)]
    many = [batch.tolist() for batch in chain.workers(4, block=1)]
    assert one == many
    with chain.run(epoch=1) as run:
        assert [batch.tolist() for batch in run] != one
    with chain.run(seed=7, epoch=1) as run:
        got = [drawn for batch in run for drawn in batch.tolist()]
    with nl.from_sequence(range(50)).shuffle(seed=2).run(epoch=1) as run:
        values = list(run)
    keyed = Keyed(seed=7, epoch=1, stage="draw")
    assert got == [float(keyed(n).random()) + value for n, value in enumerate(values)]


@in_child()
def test_epochs_are_shuffled_anew_and_complete_on_warm_threads() -> None:
    chain = nl.from_sequence(range(30)).shuffle(seed=5).batch(4)
    seen = []
    for run in chain.epochs(4):
        seen.append([n for batch in run for n in batch.tolist()])
    assert all(sorted(epoch) == list(range(30)) for epoch in seen)
    assert len({tuple(epoch) for epoch in seen}) == 4
    for number, epoch in enumerate(seen):
        with chain.run(epoch=number) as run:
            assert [n for batch in run for n in batch.tolist()] == epoch


@in_child()
def test_a_second_epoch_begins_with_a_fresh_batch_not_with_leftovers_of_the_last() -> None:
    calls: list[list[object]] = []

    def collate(samples: list[object]) -> list[object]:
        calls.append(samples)
        return list(samples)

    chain = nl.from_sequence(range(10)).batch(4, collate=collate)
    passes = [[list(batch) for batch in run] for run in chain.epochs(3)]
    assert passes == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 3
    assert len(calls) == 9


@in_child()
def test_serial_runs_one_at_a_time_and_in_position_order() -> None:
    inside: list[int] = []
    order: list[int] = []

    def op(value: int) -> int:
        inside.append(value)
        assert len(inside) == 1
        order.append(value)
        time.sleep(0.0005)
        inside.remove(value)
        return value

    chain = nl.from_sequence(range(60)).map(jitter).map(op, serial=True).workers(4, block=3)
    assert list(chain) == list(range(60))
    assert order == list(range(60))


@in_child()
def test_limit_holds_that_many_workers_inside_at_once() -> None:
    inside: list[int] = []
    most: list[int] = []

    def op(value: int) -> int:
        inside.append(value)
        most.append(len(inside))
        time.sleep(0.001)
        inside.remove(value)
        return value

    chain = nl.from_sequence(range(80)).map(op, limit=2).workers(6, block=1)
    assert list(chain) == list(range(80))
    assert max(most) == 2


@in_child()
def test_futures_in_flight_stay_within_their_bound_and_keep_order() -> None:
    from concurrent.futures import Future, ThreadPoolExecutor

    open_now: list[int] = []
    most: list[int] = []
    with ThreadPoolExecutor(8) as pool:

        def slow(value: int) -> int:
            jitter(value)
            open_now.remove(value)
            return value * 2

        def submit(value: int) -> Future[int]:
            open_now.append(value)
            most.append(len(open_now))
            return pool.submit(slow, value)

        chain = nl.from_sequence(range(100)).map(submit, in_flight=3).workers(4)
        assert list(chain) == [n * 2 for n in range(100)]
    assert max(most) <= 3, max(most)


@in_child()
def test_a_future_in_a_field_is_settled_and_an_undeclared_one_refused() -> None:
    from concurrent.futures import Future, ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:

        def submit(value: int) -> Future[int]:
            return pool.submit(pow, value, 2)

        source = nl.from_sequence([{"x": n} for n in range(6)])
        assert list(source.map(submit, key="x", in_flight=2)) == [{"x": n * n} for n in range(6)]
        assert list(source.map(submit, key="x", to="y", in_flight=2))[2] == {"y": 4}
        for chain in (
            nl.from_sequence(range(3)).map(submit),
            nl.from_sequence(range(3)).map(submit).batch(2),
            source.map(submit, key="x"),
        ):
            try:
                list(chain)
            except nl.UndeclaredFuture as error:
                assert "in_flight" in str(error)
            else:
                raise AssertionError("an undeclared Future was delivered")

"""What happens when an op, a source or a collate function fails."""

from __future__ import annotations

import time
import traceback

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader.testing.child import in_child


class Broken(Exception):
    """Raised by the ops of these tests."""


def notes(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


@in_child()
def test_results_before_a_failure_come_first_then_the_same_object_with_a_note() -> None:
    for workers in (1, 4):
        raised = Broken("sample 23")

        def decode(value: int, raised: Broken = raised) -> int:
            if value >= 23:  # later ones fail, too, and perhaps sooner
                raise raised if value == 23 else Broken(f"sample {value}")
            time.sleep(0.001)
            return value

        got = []
        run = nl.from_sequence(range(60)).map(decode).batch(5).workers(workers, block=3).run()
        try:
            for batch in run:
                got.append(batch.tolist())
        except Broken as error:
            assert error is raised, error
            assert "decode" in notes(error) and "position 23" in notes(error)
            assert "sequence[23]" in notes(error)
            assert traceback.extract_tb(error.__traceback__)[-1].name == "decode"
        else:
            raise AssertionError("no error")
        assert got == [list(range(start, start + 5)) for start in range(0, 20, 5)]
        try:
            next(run)
        except nl.RunClosed as closed:
            assert closed.__cause__ is raised
        else:
            raise AssertionError("a failed run went on")
        assert run.close()


@in_child()
def test_the_note_of_a_shuffled_sample_names_its_position_and_its_reference() -> None:
    def fail(value: int) -> int:
        if value == 7:
            raise Broken
        return value

    try:
        list(nl.from_sequence(range(20)).shuffle(seed=1).map(fail, name="parse").batch(2))
    except Broken as error:
        order = list(nl.from_sequence(range(20)).shuffle(seed=1))
        assert f"'parse', position {order.index(7)}, sample sequence[7]" in notes(error)
    else:
        raise AssertionError("no error")


@in_child()
def test_skip_refills_batches_in_position_order() -> None:
    def op(value: int) -> int:
        if value % 5 == 0:
            raise Broken
        return value

    chain = nl.from_sequence(range(50)).map(op, on_error="skip").batch(4)
    good = [n for n in range(50) if n % 5]
    for workers in (1, 3):
        for block in (1, 7):
            got = [batch.tolist() for batch in chain.workers(workers, block=block)]
            assert got == [good[start : start + 4] for start in range(0, len(good), 4)]


@in_child()
def test_too_many_skips_by_count_are_one_group_of_what_was_raised() -> None:
    def op(value: int) -> int:
        if value % 10 == 0:
            raise Broken(value)
        return value

    got = []
    try:
        for value in nl.from_sequence(range(100)).map(op, on_error="skip", max_skips=3).workers(3):
            got.append(value)
    except ExceptionGroup as group:
        assert [error.args[0] for error in group.exceptions] == [0, 10, 20, 30]
        assert "max_skips=3" in str(group)
    else:
        raise AssertionError("no error")
    assert got == [n for n in range(30) if n % 10]


@in_child()
def test_too_many_skips_by_share_counts_only_after_a_hundred_samples() -> None:
    def few(value: int) -> int:
        if value < 5:
            raise Broken
        return value

    assert len(list(nl.from_sequence(range(90)).map(few, on_error="skip", max_skips=0.01))) == 85

    def half(value: int) -> int:
        if value % 2:
            raise Broken
        return value

    got = []
    try:
        for value in nl.from_sequence(range(400)).map(half, on_error="skip", max_skips=0.1):
            got.append(value)
    except ExceptionGroup:
        assert got == [n for n in range(99) if n % 2 == 0]
    else:
        raise AssertionError("no error")


@in_child()
def test_retry_tries_again_after_the_backoff_without_idling_a_worker() -> None:
    attempts: list[int] = []
    busy: list[float] = []
    begun = time.monotonic()

    def op(value: int) -> int:
        if value == 0:
            attempts.append(value)
            if len(attempts) < 3:
                raise Broken
        busy.append(time.monotonic() - begun)
        return value

    retry = nl.Retry(3, backoff=0.5)
    chain = nl.from_sequence(range(8)).map(op, on_error=retry).workers(1, block=1).prefetch(8)
    assert list(chain) == list(range(8))
    assert len(attempts) == 3
    assert sum(moment < 0.5 for moment in busy) == 7, "others waited for the backoff"
    assert time.monotonic() - begun >= 1.5


@in_child()
def test_retries_are_counted_for_each_sample_and_each_op_whatever_the_block() -> None:
    for block in (1, 4, 16):
        calls: list[tuple[str, int]] = []

        def flaky(value: int, calls: list[tuple[str, int]] = calls) -> int:
            calls.append(("flaky", value))
            if calls.count(("flaky", value)) <= 2:
                raise Broken(value)
            return value

        def other(value: int, calls: list[tuple[str, int]] = calls) -> int:
            calls.append(("other", value))
            if value == 5 and calls.count(("other", value)) <= 2:
                raise Broken(value)
            return value

        chain = nl.from_sequence(range(12)).map(flaky, on_error=nl.Retry(2))
        chain = chain.map(other, on_error=nl.Retry(2)).workers(2, block=block)
        assert list(chain) == list(range(12))
        assert all(calls.count(("flaky", value)) == 3 for value in range(12))

        calls.clear()
        try:
            list(nl.from_sequence(range(12)).map(flaky, on_error=nl.Retry(1)).workers(1, block=6))
        except Broken as error:
            assert error.args == (0,)
            assert calls.count(("flaky", 0)) == 2, calls
        else:
            raise AssertionError("no error")


@in_child()
def test_retry_then_skip_and_then_substitute() -> None:
    def op(value: int) -> int:
        if value % 3 == 0:
            raise Broken
        return value

    source = nl.from_sequence(range(9))
    assert list(source.map(op, on_error=nl.Retry(1, then="skip"))) == [1, 2, 4, 5, 7, 8]
    instead = nl.Retry(1, then=lambda ref, error: -1)
    assert list(source.map(op, on_error=instead)) == [-1, 1, 2, -1, 4, 5, -1, 7, 8]


@in_child()
def test_a_substitute_gets_the_sample_reference_and_may_raise_instead() -> None:
    seen: list[tuple[str, str]] = []

    def op(value: int) -> int:
        if value == 2:
            raise Broken("two")
        return value

    def instead(ref: object, error: Exception) -> int:
        seen.append((str(ref), str(error)))
        return -2

    chain = nl.from_sequence(range(4)).map(op, on_error=instead).batch(4)
    assert [batch.tolist() for batch in chain] == [[0, 1, -2, 3]]
    assert seen == [("sequence[2]", "two")]

    def refuse(ref: object, error: Exception) -> int:
        raise LookupError("no substitute") from error

    try:
        list(nl.from_sequence(range(4)).map(op, on_error=refuse))
    except LookupError as error:
        assert isinstance(error.__cause__, Broken)
    else:
        raise AssertionError("no error")


@in_child()
def test_keyboard_interrupt_and_system_exit_of_an_op_reach_the_consumer() -> None:
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit):

        def op(value: int, kind: type[BaseException] = kind) -> int:
            if value == 3:
                raise kind
            return value

        run = nl.from_sequence(range(9)).map(op, on_error="skip").workers(2, block=2).run()
        got = []
        try:
            for value in run:
                got.append(value)
        except kind:
            assert got == [0, 1, 2]
        else:
            raise AssertionError(f"{kind} was swallowed")
        assert run.close()


@in_child()
def test_stop_iteration_of_an_op_is_a_runtime_error_never_an_early_end() -> None:
    def op(value: int) -> int:
        if value == 3:
            raise StopIteration
        return value + 1

    for chain in (
        nl.from_sequence(range(9)).map(op),
        nl.from_sequence(range(9)).map(op).batch(2),
        nl.from_sequence([{"x": n} for n in range(9)]).map(op, key="x"),
        nl.from_sequence(range(9)).map(lambda value, rng: op(value), rng=True),
        nl.from_sequence(range(9)).map(op, timeout=10),
        nl.from_sequence(range(9)).filter(op),
        nl.from_sequence(range(9)).flat_map(lambda value: [op(value)]),
        nl.from_sequence(range(9)).map(str).map(int).map(op),
    ):
        for workers in (chain.workers(1, block=4), chain.workers(2, block=1)):
            got = []
            try:
                for value in workers:
                    got.append(value)
            except RuntimeError as error:
                assert isinstance(error.__cause__, StopIteration)
                assert "position 3" in notes(error)
            else:
                raise AssertionError(f"an early end after {got}")


@in_child()
def test_none_is_a_value_like_any_other() -> None:
    chain = nl.from_sequence(range(4)).map(lambda value: None if value % 2 else value)
    assert list(chain) == [0, None, 2, None]
    assert list(chain.map(str).batch(4)) == [["0", "None", "2", "None"]]
    assert list(nl.from_sequence(range(3)).map(lambda value: None).batch(3)) == [[None] * 3]


@in_child()
def test_a_failing_stream_gives_what_it_read_before_then_the_same_exception() -> None:
    raised = Broken("the disk is gone")

    def stream() -> object:
        yield from range(300)
        raise raised

    for size, expected in ((None, 300), (16, 288)):
        got: list[int] = []
        chain = nl.from_iterable(stream).map(int).workers(2)
        try:
            if size is None:
                for value in chain:
                    got.append(value)
            else:
                for batch in chain.batch(size):
                    got.extend(batch.tolist())
        except Broken as error:
            assert error is raised
            assert "source" in notes(error) and "300" in notes(error)
        else:
            raise AssertionError("no error")
        assert got == list(range(expected))


@in_child()
def test_a_failing_stream_delivers_each_sample_before_the_error_to_a_slow_consumer() -> None:
    def stream() -> object:
        yield from range(40)
        raise Broken

    got = []
    with nl.from_iterable(stream).workers(1, block=1).run() as run:
        try:
            while True:
                got.append(run.next(timeout=5))
                time.sleep(0.002)
        except Broken:
            assert got == list(range(40))


@in_child()
def test_a_failing_read_of_a_sequence_is_as_of_an_op() -> None:
    class Data:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            if index == 6:
                raise Broken("bad sector")
            return index

    got = []
    try:
        for value in nl.from_sequence(Data()).workers(2, block=2):
            got.append(value)
    except Broken as error:
        assert got == list(range(6))
        assert "'read', position 6" in notes(error)
    else:
        raise AssertionError("no error")


@in_child()
def test_samples_that_do_not_fit_are_an_error_that_names_both_and_the_cure() -> None:
    def op(value: int) -> np.ndarray:
        return np.zeros(3 if value == 6 else 2)

    for late in (False, True):
        chain = nl.from_sequence(range(8)).map(op)
        chain = chain.filter(lambda array: True) if late else chain
        got = []
        try:
            for batch in chain.batch(4).workers(3, block=1):
                got.append(batch)
        except nl.CollateError as error:
            text = str(error)
            assert "(2,)" in text and "(3,)" in text and "pad" in text
            assert "sequence[4]" in text and "sequence[6]" in text
        else:
            raise AssertionError("shapes were made to fit")
        assert len(got) == 1


@in_child()
def test_an_op_that_fails_to_bind_ends_the_run_and_not_only_its_thread() -> None:
    class Model:
        def bind(self) -> object:
            raise Broken("no weights")

        def __call__(self, value: int) -> int:
            return value

    with nl.from_sequence(range(9)).map(Model()).workers(3).run() as run:
        try:
            run.next(timeout=5)
        except Broken:
            return
    raise AssertionError("no error")


@in_child()
def test_a_missing_field_lists_the_fields_there_are() -> None:
    try:
        list(nl.from_sequence([{"path": "a", "label": 1}]).map(len, key="bytes"))
    except nl.FieldMissing as error:
        assert "'bytes'" in str(error) and "'path', 'label'" in str(error)
    else:
        raise AssertionError("no error")


@in_child()
def test_skip_after_batch_is_refused_and_retry_there_works() -> None:
    try:
        nl.from_sequence(range(8)).batch(2).map(str, on_error="skip")
    except ValueError as error:
        assert "Retry" in str(error)
    else:
        raise AssertionError("whole batches could be lost")
    calls: list[int] = []

    def op(batch: np.ndarray) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise Broken
        return int(batch.sum())

    assert list(nl.from_sequence(range(8)).batch(2).map(op, on_error=nl.Retry(1))) == [1, 5, 9, 13]


@in_child()
def test_a_collate_function_that_fails_is_raised_in_its_turn() -> None:
    def collate(samples: list[int]) -> list[int]:
        if 6 in samples:
            raise Broken("cannot")
        return samples

    got = []
    try:
        for batch in nl.from_sequence(range(12)).batch(3, collate=collate).workers(3):
            got.append(batch)
    except Broken as error:
        assert got == [[0, 1, 2], [3, 4, 5]]
        assert "collate" in notes(error)
    else:
        raise AssertionError("no error")


@in_child()
def test_a_length_of_a_bucket_or_tokens_that_cannot_be_packed_end_the_run() -> None:
    def length(value: int) -> int:
        if value == 5:
            raise Broken("no length")
        return 1

    numbers = nl.from_sequence(range(9))
    tokens = numbers.map(lambda value: np.zeros(3 if value != 5 else 99, np.int64))
    for chain in (numbers.bucket(length, [2, 4], 2), tokens.pack(4)):
        run = chain.workers(2).run()
        try:
            while run.next(timeout=10) is not None:
                pass
        except (Broken, ValueError) as error:
            assert "position 5" in notes(error)
            assert run.close()
        else:
            raise AssertionError("no error")


def one_in_ten_thousand(value: int) -> int:
    if value % 10_000 == 77:
        raise Broken(value)
    return value


@in_child()
def test_one_failure_in_ten_thousand_is_listed_once_and_in_position_order() -> None:
    chain = nl.from_sequence(range(200_000)).shuffle(seed=2)
    bad = [position for position, value in enumerate(chain) if value % 10_000 == 77]
    chain = chain.map(one_in_ten_thousand, on_error="skip").batch(256)
    with chain.workers(3).run() as run:
        assert sum(len(batch) for batch in run) == 200_000 - 20
        assert [each.position for each in run.report().counts.quarantined] == bad


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("late", [False, True])
def test_what_no_batch_can_hold_ends_the_batches_of_batches_at_its_place(
    at: int, late: bool
) -> None:
    """Three levels: the failure of one goes up through all that are above it."""

    def op(value: int) -> object:
        return [value] if value == at else np.full(2, value)

    chain = nl.from_sequence(range(12)).map(op)
    if late:
        chain = chain.filter(bool_of)
    chain = chain.batch(2).batch(2).map(len).batch(1).workers(2, block=1)
    got = 0
    with chain.run() as run, pytest.raises(nl.CollateError):
        for batch in run:
            got += len(batch)
    assert got == at // 4


def bool_of(value: object) -> bool:
    return value is not None


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("block", [1, 3, 8])
def test_one_skip_too_many_and_a_failure_in_the_same_block_the_lower_place_is_raised(
    at: int, block: int
) -> None:
    def skipped(value: int) -> int:
        if value in (2, 4):
            raise Broken(value)
        return value

    def fails(value: int) -> int:
        if value == at:
            raise LookupError(value)
        return value

    chain = nl.from_sequence(range(8)).map(skipped, on_error="skip", max_skips=1).map(fails)
    got = []
    early = at < 4 and at != 2
    with (
        chain.workers(2, block=block).run() as run,
        pytest.raises(LookupError if early else ExceptionGroup),
    ):
        for value in run:
            got.append(value)
    assert got == [value for value in range(at if early else 4) if value != 2]

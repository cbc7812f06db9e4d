"""How a chain is cut: levels at grouping stages, segments where the kind of work changes."""

from __future__ import annotations

import pytest

import nogil_loader as nl
from nogil_loader.engine.core import LevelSpec, SegmentSpec
from nogil_loader.pipeline import Pipeline
from nogil_loader.plan.chain import lay_out

numbers = nl.from_sequence(range(10))


def levels(chain: Pipeline[object]) -> list[LevelSpec]:
    layout = lay_out(chain.chain, stream=False)
    return [level.spec(number == 0) for number, level in enumerate(layout.levels)]


def segments(chain: Pipeline[object]) -> list[SegmentSpec]:
    return list(levels(chain)[0].segments)


def test_consecutive_cpu_stages_are_one_segment() -> None:
    assert segments(numbers.map(abs).filter(bool).map(abs)) == [SegmentSpec(0, 3)]


def test_private_threads_a_limit_and_serial_are_segments_of_their_own() -> None:
    chain = numbers.map(abs).map(abs, threads=4).map(abs).map(abs, limit=2).map(abs, serial=True)
    assert segments(chain.map(abs)) == [
        SegmentSpec(0, 1),
        SegmentSpec(1, 2, kind=1),
        SegmentSpec(2, 3),
        SegmentSpec(3, 4, limit=2),
        SegmentSpec(4, 5, serial=True),
        SegmentSpec(5, 6),
    ]


def test_an_op_with_futures_or_a_timeout_ends_its_segment() -> None:
    assert segments(numbers.map(abs).map(abs, in_flight=3).map(abs)) == [
        SegmentSpec(0, 2, in_flight=3),
        SegmentSpec(2, 3),
    ]
    assert segments(numbers.map(abs).map(abs, timeout=1.0).map(abs)) == [
        SegmentSpec(0, 2),
        SegmentSpec(2, 3),
    ]


def test_rows_are_early_while_every_stage_is_one_to_one_and_late_after() -> None:
    assert levels(numbers.map(abs).batch(4))[0].rows == 4
    for late in (
        numbers.filter(bool).batch(4),
        numbers.flat_map(str).batch(4),
        numbers.map(abs, on_error="skip").batch(4),
        numbers.batch(4, collate=len),
        numbers.batch(4, max_wait=1.0),
        numbers.batch(2).batch(4),
    ):
        batched = levels(late)[-2]
        assert batched.rows is None
        assert batched.grouper is not None
    assert levels(numbers.map(abs, on_error=nl.Retry(2)).batch(4))[0].rows == 4


def test_a_hung_op_never_reaches_the_rows() -> None:
    level = levels(numbers.map(abs, timeout=1.0).batch(4))[0]
    assert level.rows == 4
    assert level.segments[-1] == SegmentSpec(1, 1)


def test_each_grouping_stage_ends_a_level() -> None:
    assert [len(level.ops) for level in levels(numbers.map(abs).batch(4).map(len).batch(2))] == [
        1,
        1,
        0,
    ]


def test_names_are_the_functions_and_unique() -> None:
    ops = levels(numbers.map(abs).map(abs).map(abs, name="last"))[0].ops
    assert [op.name for op in ops] == ["abs", "abs-2", "last"]


def test_retry_skip_and_substitute_become_policies() -> None:
    def instead(ref: object, error: Exception) -> int:
        return 0

    retry = nl.Retry(2, backoff=0.5, then=instead)
    chain = numbers.map(abs).map(abs, on_error="skip", max_skips=3).map(abs, on_error=retry)
    plain, skip, again = (op.policy for op in levels(chain)[0].ops)
    assert (plain.then, plain.retries) == ("raise", 0)
    assert (skip.then, skip.max_skips) == ("skip", 3)
    assert (again.then, again.retries) == ("substitute", 2)
    assert again.backoff is not None
    assert again.backoff(2) == 1.0


@pytest.mark.parametrize("uneven", ["allow", None])
def test_counts_that_change_after_shard_need_a_rule(uneven: str | None) -> None:
    chain = numbers.shard(0, 2, uneven=uneven)
    if uneven is None:
        with pytest.raises(ValueError, match="uneven='allow'"):
            chain.filter(bool)
    else:
        assert list(chain.filter(bool)) == [2, 4, 6, 8]

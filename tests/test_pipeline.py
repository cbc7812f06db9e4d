"""Pipelines are values: immutable, comparable, printable as code, and of a known length."""

from __future__ import annotations

import copy
import pickle

import pytest

import nogil_loader as nl
from nogil_loader import stages
from nogil_loader.pipeline import Pipeline


def double(value: int) -> int:
    return value * 2


def even(value: int) -> bool:
    return value % 2 == 0


def twice(value: int) -> list[int]:
    return [value, value]


numbers = nl.from_sequence(range(10))


def test_every_method_leaves_the_pipeline_as_it_was() -> None:
    before = repr(numbers)
    for longer in (
        numbers.shuffle(seed=1),
        numbers.repeat(2),
        numbers.take(3),
        numbers.map(double),
        numbers.batch(2),
        numbers.workers(2),
        numbers.memory(100),
        numbers.prefetch(3),
    ):
        assert len(longer.chain) == 1
        assert longer != numbers
    assert repr(numbers) == before
    assert not numbers.chain


def test_pipelines_compare_copy_and_pickle_by_value() -> None:
    def chain() -> Pipeline[object]:
        return nl.from_sequence(range(10)).shuffle(seed=3).map(double).batch(4, drop_last=True)

    assert chain() == chain()
    assert hash(chain()) == hash(chain())
    assert chain() != chain().workers(2)
    assert copy.deepcopy(chain()) == chain()
    twin = pickle.loads(pickle.dumps(chain()))
    assert list(map(str, twin)) == list(map(str, chain()))


def test_printing_gives_the_calls_without_what_is_the_default() -> None:
    chain = numbers.shuffle(seed=3).map(double, threads=4).batch(4, drop_last=True).workers(2)
    text = repr(chain)
    assert text.startswith(repr(numbers))
    assert ".shuffle(seed=3)" in text
    assert "double, threads=4)" in text
    assert ".batch(4, drop_last=True).workers(2)" in text
    assert "on_error" not in text


def test_a_function_without_an_importable_name_is_printed_as_a_pointer() -> None:
    text = repr(numbers.map(lambda value: value))
    assert "<lambda " in text and "test_pipeline.py:" in text


@pytest.mark.parametrize(
    ("chain", "length"),
    [
        (numbers, 10),
        (numbers.shuffle(seed=1).map(double), 10),
        (numbers.take(3), 3),
        (numbers.take(30), 10),
        (numbers.skip(4), 6),
        (numbers.skip(40), 0),
        (numbers.take(0), 0),
        (numbers.repeat(3), 30),
        (numbers.batch(4), 3),
        (numbers.batch(4, drop_last=True), 2),
        (numbers.repeat(3).batch(4), 8),
        (numbers.batch(5).batch(2), 1),
        (numbers.shard(0, 3), 3),
        (numbers.shard(1, 3).batch(2), 2),
        (numbers.batch(4, collate=len), 3),
    ],
    ids=str,
)
def test_the_length_is_that_of_what_comes(chain: Pipeline[object], length: int) -> None:
    assert len(chain) == length
    assert sum(1 for _ in chain.workers(2)) == length


@pytest.mark.parametrize(
    "chain",
    [
        numbers.filter(even),
        numbers.flat_map(twice),
        numbers.repeat(),
        numbers.map(double, on_error="skip"),
        nl.from_iterable(lambda: iter(range(3))),
    ],
    ids=str,
)
def test_where_only_running_tells_the_length_is_a_type_error(chain: Pipeline[object]) -> None:
    with pytest.raises(TypeError):
        len(chain)


def test_repeat_before_batch_lets_batches_span_the_passes_and_after_it_not() -> None:
    five = nl.from_sequence(range(5)).workers(2)
    spanning = [batch.tolist() for batch in five.repeat(2).batch(3)]
    assert spanning == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]
    ending = [batch.tolist() for batch in five.batch(3).repeat(2)]
    assert ending == [[0, 1, 2], [3, 4], [0, 1, 2], [3, 4]]


def test_pass_k_of_epoch_e_is_shuffled_as_epoch_e_times_n_plus_k() -> None:
    one = nl.from_sequence(range(20)).shuffle(seed=4)
    with one.repeat(2).run(epoch=1) as run:
        both = list(run)
    for number in (2, 3):
        with one.run(epoch=number) as run:
            assert list(run) == both[(number - 2) * 20 : (number - 1) * 20]


def test_an_endless_repeat_is_reshuffled_every_pass() -> None:
    endless = nl.from_sequence(range(6)).shuffle(seed=1).repeat().batch(6)
    passes = []
    for batch in endless:
        passes.append(batch.tolist())
        if len(passes) == 4:
            break
    assert all(sorted(each) == list(range(6)) for each in passes)
    assert len({tuple(each) for each in passes}) > 1


def test_take_and_skip_count_samples_before_batch_and_batches_after_it() -> None:
    assert list(numbers.skip(2).take(3)) == [2, 3, 4]
    batched = numbers.batch(3)
    assert [batch.tolist() for batch in batched.skip(1).take(2)] == [[3, 4, 5], [6, 7, 8]]
    assert list(numbers.filter(even).take(2)) == [0, 2]
    assert list(numbers.filter(even).skip(3)) == [6, 8]


def test_taking_from_an_endless_stream_ends() -> None:
    def count() -> object:
        number = 0
        while True:
            yield number
            number += 1

    assert list(nl.from_iterable(count).map(double).take(3)) == [0, 2, 4]
    assert [b.tolist() for b in nl.from_iterable(count).batch(2).take(2)] == [[0, 1], [2, 3]]


def test_unbatch_gives_the_rows_in_the_structure_they_had() -> None:
    source = nl.from_sequence([{"x": n, "y": (n, str(n))} for n in range(5)])
    rows = list(source.batch(2).unbatch())
    assert [row["x"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[3]["y"] == (3, "3")
    batches = numbers.batch(4).unbatch().batch(3)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_key_works_on_one_field_and_to_renames_it() -> None:
    source = nl.from_sequence([{"x": n, "kept": "k"} for n in range(4)])
    assert list(source.map(double, key="x"))[1] == {"x": 2, "kept": "k"}
    assert list(source.map(double, key="x", to="y"))[1] == {"kept": "k", "y": 2}
    assert [sample["x"] for sample in source.filter(even, key="x")] == [0, 2]
    assert [s["x"] for s in source.flat_map(twice, key="x")] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_users_sample_is_never_changed() -> None:
    samples = [{"x": n} for n in range(3)]
    list(nl.from_sequence(samples).map(double, key="x").map(double, key="x", to="y"))
    assert samples == [{"x": 0}, {"x": 1}, {"x": 2}]


def test_shards_are_disjoint_complete_and_equally_long_but_for_the_remainder() -> None:
    shuffled = nl.from_sequence(range(11)).shuffle(seed=2)
    for remainder, total in (("drop", 9), ("wrap", 12)):
        parts = [list(shuffled.shard(rank, 3, remainder=remainder)) for rank in range(3)]
        assert {len(part) for part in parts} == {total // 3}
        together = [value for part in parts for value in part]
        assert len(set(together)) == min(total, 11)


def test_a_stage_is_a_value_that_prints_as_its_call() -> None:
    assert stages.Batch(4) == stages.Batch(4)
    assert str(stages.Batch(4, drop_last=True)) == "batch(4, drop_last=True)"
    assert str(stages.Shuffle(3)) == "shuffle(seed=3)"
    assert str(stages.Workers(2)) == "workers(2)"
    assert nl.Retry(3, backoff=0.5) == nl.Retry(3, backoff=0.5)


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (9, 3.0), (10_000, 3.0)]
)
def test_each_wait_of_a_retry_is_longer_up_to_the_longest(attempt: int, seconds: float) -> None:
    assert nl.Retry(9, backoff=0.5, longest=3.0).wait(attempt) == seconds

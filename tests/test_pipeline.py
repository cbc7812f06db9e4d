"""Pipelines as values: equal, copied, printed as code that makes them again."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader import decode
from nogil_loader.pipeline import Pipeline

CHAINS = [
    nl.from_sequence(range(10)),
    nl.from_sequence([1, 2, 3]).map(operator.neg).batch(2, drop_last=True),
    nl.from_sequence(range(9)).shuffle(seed=17).shard(1, 3, remainder="wrap").batch(2),
    nl.from_sequence(range(9)).shuffle(3, window=4).repeat(2).take(5).skip(1),
    nl.from_sequence(range(9)).filter(operator.truth).batch(4).unbatch().batch(3).take(2),
    nl.from_sequence(range(9)).map(abs, threads=4, on_error=nl.Retry(2, backoff=0.5)).prefetch(3),
    nl.from_sequence(range(9)).map(abs, on_error="skip", max_skips=0.1).workers(2).memory(10),
    nl.from_files("train", "**/*.jpg", labels="folder")
    .map(nl.read, key="path", to="bytes", threads=16)
    .map(decode.image(size=(224, 224)), key="bytes", to="image")
    .batch(256)
    .to_device("host"),
    nl.from_tar(["a.tar", "b.tar"], fields=("jpg", "cls")).batch(8),
    nl.mix([nl.from_sequence("abc").shuffle(1), nl.from_sequence("xy")], [3, 1], stop="all"),
    nl.zip_sources(nl.from_sequence([1]), nl.from_sequence([2])),
    nl.from_sequence(range(9)).pad().bucket(operator.index, [2, 5, 9], (3, 2, 1)),
    nl.from_sequence(range(9)).cache("memory", max_bytes=100).batch(3, max_wait=1.5),
]  # fmt: skip


def made(code: str) -> object:
    import nogil_loader
    from nogil_loader.stages import Retry

    names = {
        "nl": nl,
        "nogil_loader": nogil_loader,
        "decode": decode,
        "image": decode.image,
        "Retry": Retry,
        "_operator": operator,
        "operator": operator,
    }
    return eval(code, names)


@pytest.mark.parametrize("pipeline", CHAINS, ids=range(len(CHAINS)))
def test_a_pipeline_prints_as_the_code_that_makes_it(pipeline: Pipeline[object]) -> None:
    assert made(repr(pipeline)) == pipeline


def test_functions_without_an_importable_name_say_where_they_are() -> None:
    assert "<lambda " in repr(nl.from_sequence(range(3)).map(lambda value: value))
    assert "test_pipeline.py:" in repr(nl.from_sequence(range(3)).map(lambda value: value))


@pytest.mark.parametrize("pipeline", CHAINS, ids=range(len(CHAINS)))
def test_a_pipeline_is_a_value(pipeline: Pipeline[object]) -> None:
    assert copy.copy(pipeline) == pipeline
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline
    assert pipeline != pipeline.prefetch(9)


def test_every_method_leaves_the_pipeline_as_it_was() -> None:
    base = nl.from_sequence(range(4))
    base.map(operator.neg)
    assert list(base) == [0, 1, 2, 3]


def test_every_for_is_the_same_pass_from_the_start() -> None:
    pipeline = nl.from_sequence(range(20)).shuffle(5).batch(6)
    first = [batch.tolist() for batch in pipeline]
    for batch in pipeline:
        assert batch.tolist() == first[0]
        break
    assert [batch.tolist() for batch in pipeline] == first


def test_len_is_arithmetic_or_a_type_error() -> None:
    data = nl.from_sequence(range(100))
    assert len(data) == 100
    assert len(data.batch(7)) == 15
    assert len(data.batch(7, drop_last=True)) == 14
    assert len(data.repeat(3).batch(7)) == 43
    assert len(data.shard(0, 3).batch(7)) == 5
    assert len(data.batch(7).take(4)) == 4
    with pytest.raises(TypeError, match="known only after"):
        len(data.filter(operator.truth).batch(7))
    with pytest.raises(TypeError, match="stream"):
        len(nl.from_iterable([1, 2]))


def test_epochs_differ_and_repeat_themselves() -> None:
    pipeline = nl.from_sequence(range(30)).shuffle(1).batch(10)
    runs = [np.concatenate(list(run)).tolist() for run in pipeline.epochs(3)]
    assert runs[0] != runs[1] != runs[2]
    assert all(sorted(run) == list(range(30)) for run in runs)
    assert runs[1] == np.concatenate(list(pipeline.run(epoch=1))).tolist()

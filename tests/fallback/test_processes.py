"""``gil_fallback="process"``: the same results, and every failure with its name."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader import runtime
from nogil_loader.fallback.process import GUARD, WorkerDied
from nogil_loader.fallback.shipping import RemoteError
from nogil_loader.observe.counts import ConsumerCount, Counts, CrewCount, MachineCount, StageCount
from nogil_loader.observe.verdict import holders, judge
from tests.fallback import ops
from tests.fallback.test_isolated import left

DATA = nl.from_sequence(range(60)).workers(2)


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOGIL_LOADER_FALLBACK", "process")


def in_processes(fn: Callable[..., object], **options: object) -> nl.Pipeline[object]:
    return DATA.map(fn, gil_fallback="process", **options)  # type: ignore[arg-type]


def notes(error: BaseException) -> str:
    return "\n".join(error.__notes__)


def test_results_and_order_are_those_of_threads() -> None:
    got = [batch.tolist() for batch in in_processes(ops.square).batch(7)]  # type: ignore[attr-defined]
    assert [value for batch in got for value in batch] == [n * n for n in range(60)]


def test_the_op_runs_in_other_processes() -> None:
    assert os.getpid() not in set(in_processes(ops.where))


def test_threads_are_used_when_the_program_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOGIL_LOADER_FALLBACK", "thread")
    assert set(in_processes(ops.where)) == {os.getpid()}


def test_arrays_travel_unharmed() -> None:
    for value, array in enumerate(in_processes(ops.big)):
        assert isinstance(array, np.ndarray) and (array == value).all()
        array[0, 0] = -1  # it belongs to the consumer


def test_randomness_is_that_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = list(in_processes(ops.noise, rng=True))
    monkeypatch.setenv("NOGIL_LOADER_FALLBACK", "thread")
    assert remote == list(in_processes(ops.noise, rng=True))


def test_an_exception_has_its_type_its_remote_traceback_and_the_sample() -> None:
    with pytest.raises(KeyError, match="five") as caught:
        list(in_processes(ops.fails))
    assert "in a worker process" in notes(caught.value) and "ops.py" in notes(caught.value)
    assert "position 5" in notes(caught.value)


def test_an_exception_that_cannot_travel_comes_as_words() -> None:
    with pytest.raises(RemoteError, match="Unpicklable"):
        list(in_processes(ops.fails_oddly))


@pytest.mark.parametrize("fn", [ops.fails, ops.dies])
def test_skip_costs_the_one_sample(fn: Callable[[int], int]) -> None:
    assert list(in_processes(fn, on_error="skip")) == [n for n in range(60) if n != 5]


def test_a_worker_that_dies_is_named_with_its_sample() -> None:
    with pytest.raises(WorkerDied, match="of stage 'dies' died with signal 9") as caught:
        list(in_processes(ops.dies))
    assert "position 5" in notes(caught.value)


def test_a_hung_worker_is_killed_and_its_block_mates_come_through() -> None:
    hung = in_processes(ops.hangs, timeout=1.0, on_error="skip")
    assert list(hung) == [n for n in range(60) if n != 5]
    with pytest.raises(nl.StageTimeout, match="longer than 1 s"):
        list(in_processes(ops.hangs, timeout=1.0))


def test_a_substitute_and_a_retry_work_as_with_threads() -> None:
    told = in_processes(ops.fails, on_error=lambda ref, error: -1)
    assert list(told)[5] == -1
    with pytest.raises(KeyError, match="five"):
        list(in_processes(ops.fails, on_error=nl.Retry(2)))


def test_fields_filters_and_flat_maps() -> None:
    data = nl.from_sequence([{"x": i, "y": -i} for i in range(6)]).workers(2)
    squared = data.map(ops.square, key="x", to="z", gil_fallback="process")
    assert list(squared)[3] == {"y": -3, "z": 9}


def test_per_worker_is_per_process() -> None:
    pids = {pid for pid, _ in in_processes(nl.per_worker(ops.Counter))}  # type: ignore[misc]
    assert os.getpid() not in pids


def test_processes_are_kept_over_epochs() -> None:
    data = nl.from_sequence(range(2000)).workers(1)
    pids = [set(run) for run in data.map(ops.where, gil_fallback="process").epochs(6)]
    assert len(set().union(*pids)) <= 2


def test_what_cannot_be_sent_is_said_when_the_pipeline_is_built() -> None:
    with pytest.raises(TypeError, match=r"<lambda>: gil_fallback='process' needs an op"):
        DATA.map(lambda value: value, gil_fallback="process")
    with pytest.raises(ValueError, match="in_flight"):
        in_processes(ops.square, in_flight=2)


def test_breaking_off_leaves_no_process_and_no_memory() -> None:
    for _ in in_processes(ops.big):
        break
    with in_processes(ops.big).run() as run:
        next(run)
    assert left() == []


def test_resume_goes_on_with_the_next_batch() -> None:
    pipeline = in_processes(ops.noise, rng=True).batch(8)
    whole = [batch.tolist() for batch in pipeline]  # type: ignore[attr-defined]
    with pipeline.run() as run:
        head = [next(run).tolist() for _ in range(3)]  # type: ignore[attr-defined]
        state = run.state()
    tail = [batch.tolist() for batch in pipeline.run(resume=state)]  # type: ignore[attr-defined]
    assert head + tail == whole


def test_a_worker_that_dies_is_tried_again_as_told(tmp_path: Path) -> None:
    assert list(in_processes(ops.DiesOnce(str(tmp_path)), on_error=nl.Retry(1))) == list(range(60))


def test_a_sample_or_a_result_that_cannot_be_sent_costs_that_sample_only() -> None:
    locks = nl.from_sequence([1, threading.Lock(), 3, 4]).workers(1, block=4)
    assert list(locks.map(ops.whatever, gil_fallback="process", on_error="skip")) == [1, 3, 4]
    with pytest.raises(TypeError, match="cannot be sent between processes"):
        list(locks.map(ops.whatever, gil_fallback="process"))


SCRIPTS = {
    "process": "list(nl.from_sequence(range(9)).map(ops.square, gil_fallback='process'))",
    "isolated": "nl.from_sequence(range(9)).map(ops.square).run(isolate=True)",
}


@pytest.mark.parametrize("how", SCRIPTS)
def test_a_missing_guard_is_named(how: str, tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"import nogil_loader as nl\nfrom tests.fallback import ops\n{SCRIPTS[how]}\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 1
    assert f"died with exit code 1 while it started. {GUARD}" in done.stderr


@pytest.mark.skipif(runtime.free_threaded(), reason="needs a GIL")
def test_a_report_names_the_stage_that_held_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOGIL_LOADER_FALLBACK", "thread")
    chain = nl.from_sequence(range(600)).map(ops.whatever).map(ops.python).batch(4).workers(2)
    with chain.run() as run:
        for _ in run:
            pass
    counts = run.report().counts
    assert [stage.name for stage in holders(counts, counts.crews[0])] == ["python"]


def test_the_words_of_a_report_on_turns_name_the_stage() -> None:
    stages = (
        StageCount("parse", "workers", cpu=9.0, busy=18.0),
        StageCount("resize", "workers", cpu=0.5, busy=1.0),
    )
    crew = CrewCount("workers", 2, busy=19.0, cpu=9.5)
    consumer = ConsumerCount(batches=100, stalled=10.0)
    machine = MachineCount(cores=2, gil=True, cpu=10.0)
    verdict = judge(
        Counts(10.0, True, 1000, stages=stages, crews=(crew,), consumer=consumer, machine=machine)
    )
    assert verdict.kind == "GIL"
    assert "held in parse (95 % of its time)" in verdict.cure
    assert "give parse gil_fallback='process'" in verdict.cure

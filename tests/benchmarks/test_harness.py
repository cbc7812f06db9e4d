"""The harness catches what would make a benchmark lie."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks import beside, harness, overhead, rivals
from nogil_loader.cli._measure import Measurement, Subject, take_turns
from nogil_loader.cli.workloads import USUAL, WORKLOADS
from nogil_loader.cli.workloads.byhand import LOOPS


def batches(count: int, pause: float = 0.0) -> Iterator[list[int]]:
    for start in range(0, count, 10):
        if pause:
            end = time.thread_time() + pause  # CPU time: the same on a busy machine
            while time.thread_time() < end:
                pass
        yield [0] * min(10, count - start)


def measured(pause: float = 0.0) -> Measurement:
    passes = (batches(100, pause) for _ in itertools.count())
    return Measurement(**harness.time_passes(passes, 0.02, len))  # type: ignore[arg-type]


def table(show: str, **found: list[Measurement]) -> str:
    rows = [
        harness.Row(name, {"1": Subject(name, (), {})}, () if "ceiling" in name else ("ceiling",))
        for name in found
    ]
    plan = harness.Plan("title", "About.", ("1",), tuple(rows), (show,))
    return harness.report(plan, found)


def test_a_planted_delay_shows_in_the_ratio() -> None:
    fast, slow = measured(0.0005), measured(0.0020)
    assert 2.5 < slow.cost / fast.cost < 5.5
    text = table("cpu", engine=[slow] * 3, ceiling=[fast] * 3)
    assert f"(x{slow.cost / fast.cost:.3g})" in text


def test_a_peer_that_is_given_less_work_is_caught() -> None:
    lengths = itertools.chain([100], itertools.repeat(90))
    passes = (batches(count) for count in lengths)
    with pytest.raises(AssertionError, match="a pass of 90 samples after one of 100"):
        harness.time_passes(passes, 0.01, len)


def test_an_unsteady_ceiling_gives_no_ratio() -> None:
    steady = [Measurement(100, wall, wall, 0.1, 1) for wall in (1.0, 1.01, 1.02)]
    unsteady = [Measurement(100, wall, wall, 0.1, 1) for wall in (1.0, 1.2, 1.02)]
    assert "(x1)" in table("wall", engine=steady, ceiling=steady)
    assert "unsteady" in table("wall", engine=steady, ceiling=unsteady)


def test_of_several_loops_by_hand_the_fastest_is_the_ceiling() -> None:
    fast, slow = [Measurement(100, 1.0, 1, 1, 1)], [Measurement(100, 2.0, 2, 1, 1)]
    rows = [
        harness.Row("engine", {"1": Subject("engine", (), {})}, ("a", "b")),
        harness.Row("a", {"1": Subject("a", (), {})}),
        harness.Row("b", {"1": Subject("b", (), {})}),
    ]
    plan = harness.Plan("title", "About.", ("1",), tuple(rows), ("wall",))
    text = harness.report(plan, {"engine": slow, "a": slow, "b": fast})
    assert "20.0 ms (x2)" in text


def test_a_peer_that_fails_is_left_out_and_the_notes_say_why() -> None:
    def python(code: str) -> Subject:
        return Subject(code, (sys.executable, "-c", code), {})

    answer = {"samples": 1, "wall": 1.0, "cpu": 1.0, "first": 1.0, "peak": 1}
    rows = (
        harness.Row("engine", {"1": python(f"print('{json.dumps(answer)}')")}),
        harness.Row("peer", {"1": python("raise OSError('no such codec')")}, peer=True),
    )
    plan, found = harness.run(harness.Plan("x", "", ("1",), rows, ("wall",)), 2, lambda *_: None)
    assert [row.label for row in plan.rows] == ["engine"]
    assert plan.notes == ("peer is left out, it failed: OSError: no such codec",)
    assert [len(ones) for ones in found.values()] == [2]


def test_time_and_memory_of_child_processes_count() -> None:
    code = (
        "import time; block = bytearray(b'x' * 60_000_000); end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass\n"
        "print(flush=True); input()"
    )
    watch, before = harness.MemoryWatch(), harness.cpu_seconds()
    outer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    inner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        with watch.of(harness.os.getpid()):
            assert inner.stdout is not None
            inner.stdout.readline()
            alive = harness.cpu_seconds() - before
            time.sleep(0.2)  # the watch looks twenty times a second
    finally:
        for child in (outer, inner):
            child.communicate(b"\n")
    assert alive > 0.45
    assert harness.cpu_seconds() - before > 0.45
    assert watch.several
    assert watch.peak > 60_000_000


def test_subjects_take_turns_forwards_and_backwards() -> None:
    order: list[str] = []

    def measure(subject: Subject) -> Measurement:
        order.append(subject.name)
        return Measurement(1, 1, 1, 1, 1)

    subjects = [Subject(name, (), {}) for name in "abc"]
    found = take_turns(subjects, 3, lambda *_: None, measure)
    assert "".join(order) == "abccbaabc"
    assert [len(found[name]) for name in "abc"] == [3, 3, 3]


@pytest.mark.parametrize("case", overhead.OURS)
def test_every_case_of_the_overhead_runs(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(overhead.OURS, case, (overhead.OURS[case][0], 1_000))
    found = overhead.answer({"case": case, "workers": 2, "seconds": 0.01})
    assert int(str(found["samples"])) % 1_000 == 0


@pytest.mark.parametrize("name", ["text", "npy"])
@pytest.mark.parametrize("variant", ["engine", *LOOPS, "SPDL", "SPDL by batch"])
def test_every_variant_delivers_every_sample(name: str, variant: str, tmp_path: Path) -> None:
    if variant.startswith("SPDL"):
        pytest.importorskip("spdl.pipeline")
    count = 2 * WORKLOADS[name].batch
    folder = WORKLOADS[name].prepare(tmp_path, count, 0).folder
    question = {"workload": name, "variant": variant, "folder": str(folder), "of": count}
    found = beside.answer({**question, "workers": 2, "seconds": 0.01})
    assert int(str(found["samples"])) % count == 0


@pytest.mark.parametrize("name", [one.name for one in USUAL])
def test_peers_make_what_the_loop_by_hand_makes(name: str, tmp_path: Path) -> None:
    if name in ("pictures", "tar"):
        pytest.importorskip("PIL")
    if name in ("wav", "flac"):
        pytest.importorskip("_soundfile_data")
    workload = WORKLOADS[name]
    work = pickle.loads(pickle.dumps(beside.Work(name, workload.prepare(tmp_path, 3, 0).folder)))
    with closing(work.job):
        (by_hand,) = work.job.run("by_batch", 8, 1)
        for theirs in (
            work.collate([work[index] for index in range(len(work))]),
            work.load(range(len(work))),
        ):
            if isinstance(by_hand, dict):
                assert {k: v.tolist() for k, v in by_hand.items()} == {
                    k: v.tolist() for k, v in theirs.items()
                }
            else:
                assert np.array_equal(by_hand, theirs)


def test_an_endless_stream_is_cut_only_where_samples_fill_the_batches(tmp_path: Path) -> None:
    work = beside.Work("text", WORKLOADS["text"].prepare(tmp_path, 300, 0).folder)
    with pytest.raises(ValueError, match="300 samples do not fill batches of 256"):
        next(rivals._cut(work, iter(())))

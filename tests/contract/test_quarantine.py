"""Samples that were skipped, in a file that is written as the run goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nogil_loader as nl
from nogil_loader.testing.child import in_child


def parse(value: int) -> int:
    if value % 10 == 3:
        raise ValueError(f"no picture in {value}")
    return value


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@in_child()
def test_each_skipped_sample_is_one_line_in_position_order_as_in_the_report() -> None:
    chain = nl.from_sequence(range(200)).shuffle(seed=4).map(parse, on_error="skip").batch(8)
    order = list(nl.from_sequence(range(200)).shuffle(seed=4))
    with tempfile.TemporaryDirectory() as folder:
        for number, workers in enumerate((chain.workers(1), chain.workers(4, block=3))):
            path = Path(folder, f"bad{number}.jsonl")
            with workers.run(quarantine=path) as run:
                assert sum(len(batch) for batch in run) == 180
                found = lines(path)  # whole as soon as the end is known, before the close
            bad = [position for position, value in enumerate(order) if value % 10 == 3]
            assert found == [
                {
                    "position": position,
                    "sample": f"sequence[{order[position]}]",
                    "stage": "parse",
                    "type": "ValueError",
                    "message": f"no picture in {order[position]}",
                    "epoch": 0,
                }
                for position in bad
            ]
            told = run.report().counts.quarantined
            assert [json.loads(each.as_line()) for each in told] == found


GOES_ON = """
import sys, threading
import nogil_loader as nl
def parse(value):
    if value % 100 == 1:
        raise ValueError(value)
    return value
def stream():
    yield from range(1000)
    threading.Event().wait()
chain = nl.from_iterable(stream).map(parse, on_error="skip").workers(2)
with chain.run(quarantine=sys.argv[1]) as run:
    for _ in range(990):
        next(run)
    print("here", flush=True)
    next(run)
"""


@in_child()
def test_what_was_skipped_is_in_the_file_though_the_process_is_killed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bad.jsonl")
        command = [sys.executable, "-c", GOES_ON, str(path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        end = time.monotonic() + 10
        while path.read_text().count("\n") < 10 and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert [bad["position"] for bad in lines(path)] == list(range(1, 1000, 100))


@in_child()
def test_epochs_and_runs_that_go_on_add_to_the_file() -> None:
    chain = nl.from_sequence(range(40)).map(parse, on_error="skip").batch(4).workers(2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bad.jsonl")
        for run in chain.epochs(3, quarantine=path):
            for _ in run:
                pass
        assert sorted((bad["epoch"], bad["position"]) for bad in lines(path)) == [
            (epoch, position) for epoch in range(3) for position in (3, 13, 23, 33)
        ]
        path.unlink()
        with chain.run(quarantine=path) as run:
            next(run), next(run), next(run)
            state = run.state()
        before = len(lines(path))
        path.write_text("")
        with chain.run(quarantine=path, resume=state) as run:
            assert sum(len(batch) for batch in run) == 24
        assert [bad["position"] for bad in lines(path)] == [13, 23, 33]
        assert before >= 2


@in_child()
def test_too_many_skips_are_all_in_the_file_when_the_error_comes() -> None:
    chain = nl.from_sequence(range(100)).map(parse, on_error="skip", max_skips=2).workers(2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bad.jsonl")
        try:
            list(chain.run(quarantine=path))
        except ExceptionGroup as group:
            assert len(lines(path)) == len(group.exceptions) == 3
        else:
            raise AssertionError("no error")


@in_child()
def test_a_file_that_cannot_be_written_is_an_error_at_the_start_or_when_it_happens() -> None:
    chain = nl.from_sequence(range(40)).map(parse, on_error="skip")
    try:
        chain.run(quarantine="/no such folder/bad.jsonl")
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("no error")
    if os.path.exists("/dev/full"):
        try:
            list(chain.run(quarantine="/dev/full"))
        except OSError as error:
            assert "space" in str(error)
        else:
            raise AssertionError("a full disk was no error")


@in_child()
def test_any_reference_and_message_is_a_line_of_json() -> None:
    from nogil_loader.observe.counts import Quarantined

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bad.jsonl")
        for name in ("\udcff.jpg", "a\nb", "ü\u2028", '"\\'):

            def fail(value: str) -> str:
                raise ValueError(value)

            path.unlink(missing_ok=True)
            chain = nl.from_sequence([name]).map(fail, on_error="skip")
            assert list(chain.run(quarantine=path)) == []
            (bad,) = path.read_bytes().decode("utf-8").split("\n")[:-1]
            assert json.loads(bad)["message"] == name
            assert Quarantined(**json.loads(bad)).message == name


@in_child()
def test_an_isolated_run_writes_it_too() -> None:
    chain = nl.from_sequence(range(20)).map(int, on_error="skip").filter(abs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bad.jsonl")
        mixed = nl.from_sequence(["1", "x", "3"]).map(int, on_error="skip")
        with mixed.run(isolate=True, quarantine=path) as run:
            assert list(run) == [1, 3]
        assert [bad["position"] for bad in lines(path)] == [1]
    assert len(list(chain)) == 19

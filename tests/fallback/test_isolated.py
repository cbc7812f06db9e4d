"""``run(isolate=True)``: a run in a child process is a run."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader.fallback.remote import WorkerDied
from tests.fallback import ops

FRAMES = nl.from_sequence(range(60)).workers(2).shuffle(3).map(ops.frame).batch(8)


def left() -> list[str]:
    return glob.glob("/dev/shm/nogil-loader-*")


def same(one: object, other: object) -> bool:
    assert isinstance(one, dict) and isinstance(other, dict)
    return all(np.array_equal(one[key], other[key]) for key in ("x", "n"))


def test_the_same_batches_and_a_report() -> None:
    with FRAMES.run(isolate=True) as run:
        got = list(run)
        report = run.report()
    assert all(same(a, b) for a, b in zip(got, FRAMES, strict=True))
    assert str(report).splitlines()[-1].startswith("bottleneck:")
    assert left() == []


def test_a_report_in_the_middle_loses_no_batch() -> None:
    with FRAMES.run(isolate=True) as run:
        got = [next(run)]
        run.report()
        got.extend(run)
    assert len(got) == len(FRAMES)


@pytest.mark.parametrize("cut", [0, 3, 8])
def test_a_state_continues_here_or_there(cut: int) -> None:
    with FRAMES.run(isolate=True) as run:
        head = [next(run) for _ in range(cut)]
        state = json.loads(json.dumps(run.state()))
    with FRAMES.run(isolate=True, resume=state) as run:
        assert all(same(a, b) for a, b in zip(head + list(run), FRAMES, strict=True))
    assert len(list(FRAMES.run(resume=state))) == len(FRAMES) - cut


def test_an_op_error_comes_with_its_type_and_the_run_is_closed() -> None:
    run = nl.from_sequence(range(60)).map(ops.fails).batch(2).run(isolate=True)
    assert [next(run).tolist() for _ in range(2)] == [[0, 1], [2, 3]]  # type: ignore[attr-defined]
    with pytest.raises(KeyError, match="five") as caught:
        next(run)
    assert "in the loader's process" in "\n".join(caught.value.__notes__)
    with pytest.raises(nl.RunClosed):
        next(run)
    assert left() == []


def test_a_child_that_is_killed_is_an_error_at_once() -> None:
    run = FRAMES.run(isolate=True)
    next(run)
    assert run._process.pid is not None
    os.kill(run._process.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="signal 9"):
        list(run)
    run.close()
    assert left() == []


def test_a_parent_that_is_killed_takes_its_child_and_the_memory_along(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.fallback.test_isolated import FRAMES\n"
        "if __name__ == '__main__':\n"
        "    run = FRAMES.run(isolate=True)\n"
        "    next(run)\n"
        "    print(run._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    descriptor = None
    try:
        descriptor = os.pidfd_open(child)
    except ProcessLookupError:
        pass
    if descriptor is not None:
        import select

        ready = select.select([descriptor], [], [], 20)[0]
        os.close(descriptor)
        assert ready, "the child outlives its parent"
    assert left() == []


def test_breaking_off_and_forgetting_leave_nothing() -> None:
    for _ in FRAMES.run(isolate=True):
        break
    run = FRAMES.run(isolate=True)
    next(run)
    del run
    assert left() == []


def test_next_with_a_timeout_loses_nothing() -> None:
    with nl.from_sequence(range(3)).map(ops.square).run(isolate=True) as run:
        got: list[object] = []
        while True:
            try:
                got.append(run.next(timeout=0.001))
            except TimeoutError:
                continue
            except StopIteration:
                break
    assert got == [0, 1, 4]


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(TypeError, match=r"isolate=True\): map\(<lambda"):
        nl.from_sequence(range(3)).map(lambda value: value).run(isolate=True)


def test_batches_go_to_a_device_in_the_parent() -> None:
    with FRAMES.to_device("host").run(isolate=True) as run:
        assert all(same(a, b) for a, b in zip(run, FRAMES, strict=True))


def test_process_stages_work_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOGIL_LOADER_FALLBACK", "process")
    pipeline = nl.from_sequence(range(20)).workers(1).map(ops.where, gil_fallback="process")
    with pipeline.run(isolate=True) as run:
        assert run._process.pid not in set(run)

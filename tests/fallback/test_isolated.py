"""``run(isolate=True)``: a run in a child process is a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nogil_loader as nl
from nogil_loader.fallback.process import WorkerDied
from tests.fallback import ops

FRAMES = nl.from_sequence(range(60)).workers(2).shuffle(3).map(ops.frame).batch(8)


def left(*pids: int) -> list[str]:
    """Shared memory that one of these processes (or this one) has made, and somebody still has."""
    names = [f"memfd:nogil-loader-{pid}" for pid in (os.getpid(), *pids)]
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:  # it has ended
            continue
        found += [f"{maps.parent.name}: {line}" for line in lines if any(n in line for n in names)]
    return found


def same(one: object, other: object) -> bool:
    assert isinstance(one, dict) and isinstance(other, dict)
    return all(np.array_equal(one[key], other[key]) for key in ("x", "n"))


def test_the_same_batches_and_a_report() -> None:
    with FRAMES.run(isolate=True) as run:
        got = list(run)
        report = run.report()
    assert all(same(a, b) for a, b in zip(got, FRAMES, strict=True))
    assert str(report).splitlines()[-1].startswith("bottleneck:")
    assert "the run's own process" in str(report)
    del got
    assert left(run.pid) == []


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
    assert left(run.pid) == []


def test_a_child_that_is_killed_is_an_error_at_once() -> None:
    run = FRAMES.run(isolate=True)
    next(run)
    os.kill(run.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="signal 9"):
        list(run)
    run.close()
    assert left(run.pid) == []


def test_a_parent_that_is_killed_takes_its_child_and_the_memory_along(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from tests.fallback.test_isolated import FRAMES\n"
        "if __name__ == '__main__':\n"
        "    run = FRAMES.run(isolate=True)\n"
        "    next(run)\n"
        "    print(run.pid, flush=True)\n"
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
    assert left(parent.pid, child) == []


def test_breaking_off_and_forgetting_leave_nothing() -> None:
    for _ in FRAMES.run(isolate=True):
        break
    run = FRAMES.run(isolate=True)
    next(run)
    child = run.pid
    del run
    assert left(child) == []


def test_what_the_consumer_holds_is_its_own_and_what_it_lets_go_is_used_again() -> None:
    run = nl.from_sequence(range(400)).workers(1).map(ops.frame).batch(8).run(isolate=True)
    held = [next(run) for _ in range(20)]
    for number, batch in enumerate(held):
        assert (batch["x"][:, 0, 0] == np.arange(8 * number, 8 * number + 8)).all()
        batch["x"][:] = -1  # it may be written to
    part = held[3]["x"][2:4, 1]
    mapped = len(left(run.pid))
    del held, batch
    list(run)
    assert len(left(run.pid)) < mapped
    assert (part == -1).all()
    del part
    assert left(run.pid) == []


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
        assert run.pid not in set(run)

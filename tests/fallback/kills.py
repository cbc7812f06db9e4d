"""``kill -9`` at random moments: ``python -m tests.fallback.kills WHO KIND COUNT SEED``.

WHO is ``child`` or ``parent``; KIND is ``isolated`` or ``process``. A victim, another process,
runs a loader over and over. Guarantees, for each kill:

- The child's is noticed: the run ends with an error that says so, and when it is closed no
  process and no shared memory is left.
- The parent's takes every descendant along, those of the last moment, too: this process is
  their reaper, so none can escape to another.
- Whatever takes longer than ``PATIENCE`` is a hang.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import nogil_loader as nl
from nogil_loader.fallback.process import WorkerDied
from tests.fallback import ops
from tests.processes import descendants

PATIENCE = 20.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)


def victim(kind: str) -> None:
    """Run and run again, telling of each beginning and of each kill that was noticed."""
    chain = nl.from_sequence(range(10**6)).workers(2)
    chain = chain.map(ops.big, gil_fallback="process" if kind == "process" else "thread").batch(4)
    while True:
        print("begin", flush=True)
        consume(chain, isolate=kind == "isolated")
        gc.collect()  # an error holds the frames that hold the run that holds the error
        left = [pid for pid in descendants(os.getpid()) if not tracker(pid)]
        maps = Path("/proc/self/maps").read_text()
        print("left" if left or "memfd:nogil-loader" in maps else "noticed", left, flush=True)


def consume(chain: nl.Pipeline[object], isolate: bool) -> None:
    """Until somebody is killed."""
    try:
        with chain.run(isolate=isolate) as run:  # type: ignore[call-overload]
            for _ in run:
                pass
    except (WorkerDied, RuntimeError) as error:
        if "signal 9" not in str(error):
            raise


def tracker(pid: int) -> bool:
    """multiprocessing's own, which goes with its process."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def start(kind: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.fallback.kills", "victim", kind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)


def hear(process: subprocess.Popen[bytes]) -> str:
    """The next line of a victim, in time."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], PATIENCE)[0]:
        raise AssertionError("a hang")
    return process.stdout.readline().decode().strip()


def kill_children(kind: str, count: int, draw: random.Random) -> None:
    process = start(kind)
    try:
        for number in range(count):
            assert hear(process) == "begin"
            end = time.monotonic() + PATIENCE
            time.sleep(draw.uniform(0.0, 0.5))
            while not (able := [p for p in descendants(process.pid) if not tracker(p)]):
                assert time.monotonic() < end
                time.sleep(0.005)
            os.kill(draw.choice(able), signal.SIGKILL)
            told = hear(process)
            assert told == "noticed []", (number, told)
    finally:
        process.kill()
        process.communicate()
    reap()


def kill_parents(kind: str, count: int, draw: random.Random) -> None:
    for _ in range(count):
        process = start(kind)
        assert hear(process) == "begin"
        time.sleep(draw.uniform(0.0, 0.6))
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        reap()


def reap() -> None:
    """Wait for every orphan; they are this process's children now."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            left = descendants(os.getpid())
            assert time.monotonic() < end, ("orphans", left)
            time.sleep(0.005)


def memory() -> set[str]:
    """Named shared memory that could be ours."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("nogil-loader")}


def main(who: str, kind: str, count: int, seed: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1)
    before = memory()
    draw = random.Random(seed)
    begun = time.monotonic()
    (kill_children if who == "child" else kill_parents)(kind, count, draw)
    assert memory() <= before
    print(f"{who} of {kind}: {count} kills in {time.monotonic() - begun:.0f} s, nothing left")


if __name__ == "__main__":
    os.environ["NOGIL_LOADER_FALLBACK"] = "process"
    if sys.argv[1] == "victim":
        victim(sys.argv[2])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

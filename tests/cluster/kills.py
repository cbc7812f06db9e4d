"""``kill -9`` of one rank at random moments: ``python -m tests.cluster.kills COUNT SEED``.

Three ranks under ``mpiexec`` and ``nogil-loader watch`` load an endless epoch and meet in a
barrier after every batch. Guarantees, for each kill, whichever moment of a rank's life it
hits, the start of MPI included:

- The job ends, within ``PATIENCE`` seconds of the kill, with a status other than 0.
- Its output names the rank that was killed, its host and its process.
- No process of it is left: this process is the reaper of orphans, so none can escape to another.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.conftest import MPIEXEC, ROOT, clean_environment
from tests.processes import descendants

RANKS = 3
PATIENCE = 10.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)


def victim() -> None:
    """A rank of a training job."""
    import nogil_loader as nl
    from nogil_loader.cluster import connect

    group = connect().group
    assert group is not None
    for _ in nl.from_sequence(range(10_000)).shuffle(seed=1).repeat().shard().batch(32):
        group.barrier()


def start() -> subprocess.Popen[str]:
    watch = [sys.executable, "-m", "nogil_loader.cli", "watch"]
    command = [sys.executable, "-m", "tests.cluster.kills", "victim"]
    return subprocess.Popen(
        [str(MPIEXEC), "-n", str(RANKS), *watch, *command],
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ranks_of(pid: int) -> dict[int, int]:
    """The ranks below this process that run, and their process ids."""
    found = {}
    for child in descendants(pid):
        try:
            line = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{child}/environ").read_bytes()
        except OSError:
            continue
        if line[1:4] == [b"-m", b"tests.cluster.kills", b"victim"]:
            rank = re.search(rb"(?:^|\0)PMI_RANK=(\d+)\0", environment)
            assert rank is not None
            found[int(rank[1])] = child
    return found


def kill_one(draw: random.Random) -> float:
    """Start a job and kill a rank of it; the seconds that the job took to end."""
    job = start()
    end = time.monotonic() + 60
    while len(ranks := ranks_of(job.pid)) < RANKS:
        assert job.poll() is None and time.monotonic() < end, "the job did not start"
        time.sleep(0.005)
    time.sleep(draw.choice([0.0, 0.3, 3.0]) * draw.random())
    rank, pid = draw.choice(sorted(ranks.items()))
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    try:
        said, _ = job.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        job.kill()
        raise
    took = time.monotonic() - begun
    name = f"rank {rank} of {RANKS} (host {socket.gethostname()}, pid {pid})"
    assert job.returncode != 0, said
    assert f"{name} was killed by signal 9 (SIGKILL)" in said, (name, said)
    reap()
    return took


def reap() -> None:
    """Wait for every orphan; they are this process's children now."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            assert time.monotonic() < end, ("orphans", descendants(os.getpid()))
            time.sleep(0.005)


def main(count: int, seed: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1)
    draw = random.Random(seed)
    took = sorted(kill_one(draw) for _ in range(count))
    median, longest = took[count // 2], took[-1]
    print(f"{count} kills, each named; the job ended after {median:.2f} s, {longest:.2f} at most")


if __name__ == "__main__":
    if sys.argv[1] == "victim":
        victim()
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))

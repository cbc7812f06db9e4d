"""What is left of a job under ``mpiexec -disable-auto-cleanup`` when one of its ranks dies."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cluster.conftest import MPIEXEC, ROOT, clean_environment

pytest.importorskip("mpi4py", exc_type=ImportError)

HEAD = """
import os, signal, sys, time
import nogil_loader as nl
from nogil_loader.cluster import RankFailed, connect

def say(*words):
    os.write(1, ("said: " + " ".join(map(str, words)) + "\\n").encode())

def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


def survive(tmp_path: Path, program: str, ranks: int = 3) -> tuple[list[str], str]:
    """The lines that ranks said, in order, and what stderr has."""
    script = tmp_path / "program.py"
    script.write_text(HEAD + textwrap.dedent(program))
    watch = [sys.executable, "-m", "nogil_loader.cli", "watch", "--exit-status"]
    child = subprocess.run(
        [MPIEXEC, "-disable-auto-cleanup", "-n", str(ranks), *watch, sys.executable, script],
        env={**clean_environment(), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode != 0
    said = re.findall(r"^said: (.*)$", child.stdout, re.MULTILINE)  # mpiexec speaks, too
    return sorted(said), child.stderr


@pytest.mark.parametrize("where", ["agree", "allgather", "barrier"])
def test_survivors_are_told_who_died_and_finish_what_is_theirs(tmp_path: Path, where: str) -> None:
    waits = {
        "agree": "for _ in nl.from_sequence(range(5000)).shard(uneven='agree').batch(64): pass",
        "allgather": "group.allgather(1)",
        "barrier": "group.barrier()",
    }
    said, told = survive(
        tmp_path,
        f"""
        group = connect().group
        group.barrier()
        rank = group.ranks.rank
        if rank == 1:
            die()
        begun = time.monotonic()
        try:
            {waits[where]}
        except RankFailed as error:
            assert time.monotonic() - begun < 8
            say(rank, error)
        say(rank, sum(1 for _ in nl.from_sequence(range(300)).shard().batch(10)), "batches")
        """,
    )
    dead = re.search(r"rank 1 of 3 \((host \S+, pid \d+)\) was killed by signal 9", told)
    assert dead is not None, told
    assert said == [
        line
        for rank in (0, 2)
        for line in (
            f"{rank} 10 batches",
            f"{rank} rank 1 ({dead[1]}) ended without a word, and rank {rank} waited in vain",
        )
    ]
    assert re.findall(r"^rank (\d)", told, re.MULTILINE) == ["1"], "the others end well"


def test_survivors_that_say_nothing_finish_their_epoch(tmp_path: Path) -> None:
    """Even shards: nobody waits for the dead, with MPI or without."""
    said, _ = survive(
        tmp_path,
        """
        rank = int(os.environ["PMI_RANK"])
        count = 0
        for batch in nl.from_sequence(range(3000)).shard().batch(10):
            count += 1
            if rank == 2 and count == 30:
                die()
        say(rank, count)
        """,
    )
    assert said == ["0 100", "1 100"]


def test_who_waits_for_an_index_that_the_dead_was_building_builds_it(tmp_path: Path) -> None:
    said, _ = survive(
        tmp_path,
        f"""
        from nogil_loader.cluster.cores import once
        rank = int(os.environ["PMI_RANK"])
        def build(new):
            if not os.path.exists({str(tmp_path / "died")!r}):
                open({str(tmp_path / "died")!r}, "w").close()
                die()
            new.write_text("built")
        say(once({str(tmp_path / "index")!r}, build).read_text())
        """,
    )
    assert said == ["built", "built"]


def test_a_rank_that_an_exception_ends_does_not_wait_for_the_others(tmp_path: Path) -> None:
    said, told = survive(
        tmp_path,
        """
        group = connect().group
        if group.ranks.rank == 0:
            raise ValueError("mine alone")
        try:
            group.barrier()
        except RankFailed as error:
            say(error)
        """,
    )
    assert "rank 0 of 3" in told and "ended with exit status 1" in told
    assert len(said) == 2 and all(line.startswith("rank 0 (host") for line in said)

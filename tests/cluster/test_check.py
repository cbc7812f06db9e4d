"""``nogil-loader cluster-check`` under a real launcher, and what it finds wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nogil_loader.cluster import check
from nogil_loader.cluster.group import Ranks

ROOT = Path(__file__).parents[2]

Job = Callable[..., "subprocess.CompletedProcess[str]"]

PIPELINE = """
import nogil_loader as nl
train = nl.from_sequence(range(100)).shuffle(seed=1).shard().batch(4)
"""

COMMAND = """
import os, sys
from nogil_loader.cli import main
os.chdir(os.path.dirname(__file__))
sys.exit(main({words}))
"""


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, "-m", "nogil_loader.cli", *words],
        env={**kept, "PYTHONPATH": str(ROOT), **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


class Place:
    """A group that only has a place."""

    def __init__(self, rank: int, size: int) -> None:
        self.ranks = Ranks(rank, size, rank, size)

    def allgather(self, value: object) -> list[object]:
        raise AssertionError("facts are gathered by the command")

    barrier = close = allgather


def facts(size: int, samples: int = 101) -> list[check.Facts]:
    return [check.facts_of(Place(rank, size), "given", samples) for rank in range(size)]


def test_a_sound_job_ends_well(mpirun: Job, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PIPELINE)
    child = mpirun(3, COMMAND.format(words=["cluster-check", "mine:train"]))
    assert child.returncode == 0, child.stdout + child.stderr
    assert "All 3 ranks fit together" in child.stdout
    assert child.stdout.count("MPI, multiple") == 3
    assert ".shuffle(seed=1).shard().batch(4)" in child.stdout


def test_ranks_with_other_data_are_found_out(mpirun: Job, tmp_path: Path) -> None:
    text = PIPELINE.replace("range(100)", "range(100 + int(os.environ['PMI_RANK']) // 2)")
    (tmp_path / "mine.py").write_text("import os\n" + text)
    child = mpirun(3, COMMAND.format(words=["cluster-check", "mine:train"]))
    assert child.returncode == 1, child.stdout + child.stderr
    assert "PROBLEM: the data's fingerprint differs: " in child.stdout
    assert "on ranks 0-1; " in child.stdout


def test_a_pipeline_that_cannot_be_opened_is_said_by_rank(mpirun: Job) -> None:
    child = mpirun(2, COMMAND.format(words=["cluster-check", "nosuch:train"]))
    assert child.returncode == 1, child.stdout + child.stderr
    assert "PROBLEM: rank 1 cannot open nosuch:train: ModuleNotFoundError" in child.stdout


def test_ranks_that_cannot_talk_are_told_why() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    child = command("cluster-check", **step)
    assert child.returncode == 2
    assert "rank 0 of 2: srun: there is nothing to talk over" in child.stderr


@pytest.mark.parametrize("size", [1, 2, 5])
def test_equal_ranks_have_no_problem(size: int) -> None:
    assert check.problems(facts(size), 101) == []


def test_what_differs_is_named_with_the_ranks() -> None:
    odd = facts(4)
    odd[2] = replace(odd[2], gil=not odd[2].gil, versions=(("numpy", "1.0"),), pipeline="other")
    said = "\n".join(check.problems(odd, 101))
    assert "the GIL differs" in said
    assert "numpy differs" in said and "'1.0' on rank 2" in said
    assert "nogil_loader differs" in said and "'missing' on rank 2" in said
    assert "the pipeline differs: None on ranks 0-1, 3; 'other' on rank 2" in said


def test_shards_that_overlap_or_leave_out_are_counted() -> None:
    wrong = facts(4)
    wrong[1] = replace(wrong[1], shard=wrong[0].shard)
    said = check.problems(wrong, 101)
    assert "25 positions belong to several ranks" in said
    assert "26 positions belong to no rank, where 1 would be left over" in said


def test_two_ranks_in_one_place_are_found_out() -> None:
    wrong = facts(3)
    wrong[2] = replace(wrong[2], local_rank=0)
    (said,) = check.problems(wrong, 101)
    assert said.startswith("ranks 0, 2 all say they are local rank 0 of ")


def test_the_command_is_there_without_a_launcher() -> None:
    child = command("cluster-check")
    assert child.returncode == 0, child.stderr
    assert "All 1 ranks fit together" in child.stdout

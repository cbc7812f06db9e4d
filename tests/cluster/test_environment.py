"""What launchers say, as they say it, and what is refused."""

from __future__ import annotations

import pytest

from nogil_loader.cluster.environment import read, tasks_per_node
from nogil_loader.cluster.group import ClusterError, Ranks

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
SRUN = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}
ONE_A_NODE = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_LOCALID": "0",
}


@pytest.mark.parametrize("environ", [TORCHRUN, HYDRA, OPEN_MPI, SRUN])
def test_every_launcher_tells_rank_and_place_on_the_node(environ: dict[str, str]) -> None:
    launched, outer = read(environ)
    assert launched is not None
    assert launched.ranks == Ranks(5, 8, 1, 4)
    assert outer == ()


def test_no_launcher_is_nobody() -> None:
    assert read({"PATH": "/bin"}) == (None, ())


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"},
        {**SRUN, "SLURM_STEP_ID": "4294967291"},
        {**SRUN, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
    ],
    ids=["sbatch script", "batch step", "interactive step"],
)
def test_slurm_counts_only_inside_a_job_step(environ: dict[str, str]) -> None:
    assert read(environ) == (None, ())


def test_a_step_smaller_than_the_allocation_has_its_own_size() -> None:
    launched, _ = read({**SRUN, "SLURM_NTASKS": "64"})
    assert launched is not None
    assert launched.ranks.world_size == 8


def test_launchers_that_agree_are_one() -> None:
    launched, outer = read({**SRUN, **HYDRA, **TORCHRUN})
    assert launched is not None
    assert (launched.launcher, outer) == ("torchrun", ())


def test_launchers_that_disagree_are_refused_and_both_named() -> None:
    with pytest.raises(
        ClusterError, match=r"torchrun: rank 1 of 2; mpiexec \(Hydra\): rank 5 of 8"
    ):
        read({**HYDRA, "RANK": "1", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("inner", "launcher"), [(TORCHRUN, "torchrun"), (HYDRA, "mpiexec (Hydra)")]
)
def test_what_srun_started_once_a_node_is_what_counts(inner: dict[str, str], launcher: str) -> None:
    launched, outer = read({**SRUN, **ONE_A_NODE, **inner})
    assert launched is not None
    assert (launched.launcher, launched.ranks.rank) == (launcher, 5)
    assert [one.launcher for one in outer] == ["srun"]


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "1"}, "RANK=1 is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set and RANK is not"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "RANK='one' is not a number"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, r"rank 4 is not in range\(world size 4\)"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "local rank 4 of 4"),
    ],
)
def test_variables_that_make_no_sense_are_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        read(environ)


@pytest.mark.parametrize(
    ("text", "counts"), [("", []), ("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,2(x2)", [4, 2, 2])]
)
def test_tasks_per_node_are_read(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts

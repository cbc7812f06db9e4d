"""What launchers write into the environment: rank and world size, and nothing more.

Guarantees
- Pure: ``read`` is a function of a mapping; nothing is imported or started.
- SLURM's variables count only inside a job *step* (``srun``): in a batch script or an
  interactive allocation they describe the allocation, not this process.
- Two launchers that are both there must agree. The one exception is a launcher that
  started one process a node, in which another started the real ranks (``srun torchrun``,
  ``mpiexec`` over ``srun``): the inner one counts, and ``read`` says so.

Variables, by the launchers' own manuals: torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE), srun (SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID,
SLURM_STEP_NUM_NODES, SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID), Open MPI
(OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE), and Hydra, which MPICH, Intel MPI
and MVAPICH use (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from nogil_loader.cluster.group import ClusterError, Ranks

_NO_STEP = range(4294967290, 4294967296)
"""Step ids that SLURM keeps for the batch script, the external and the interactive step."""


@dataclass(frozen=True, slots=True)
class Launched:
    """What one launcher says of this process."""

    launcher: str
    ranks: Ranks
    nodes: int | None = None
    """On how many nodes the launcher started processes, where it tells."""
    mpi: bool = False
    """Does an MPI library in this process find the same ranks?"""

    @property
    def one_per_node(self) -> bool:
        """Did it start one process on each node, as what starts the real launcher does?"""
        if self.nodes is not None:
            return self.nodes == self.ranks.world_size
        return self.ranks.local_size == 1

    def __str__(self) -> str:
        return f"{self.launcher}: rank {self.ranks.rank} of {self.ranks.world_size}"


def read(environ: Mapping[str, str]) -> tuple[Launched | None, tuple[Launched, ...]]:
    """The launcher that counts, and those around it that do not; (None, ()) without any.

    Raises ``ClusterError`` where two launchers disagree, or where one's variables make no
    sense.

    >>> inner, outer = read({"RANK": "3", "WORLD_SIZE": "8"})
    >>> str(inner), outer
    ('torchrun: rank 3 of 8', ())
    """
    found = [
        launched
        for launched in (_torchrun(environ), _hydra(environ), _open_mpi(environ), _slurm(environ))
        if launched is not None
    ]
    if not found:
        return None, ()
    inner, *others = found
    outer = []
    for other in others:
        same = (other.ranks.rank, other.ranks.world_size) == (
            inner.ranks.rank,
            inner.ranks.world_size,
        )
        if same:
            continue
        if not other.one_per_node:
            raise ClusterError(
                f"two launchers disagree: {inner}; {other}. Remove the variables of the one that"
                " did not start this process, or give shard(rank=, world_size=)"
            )
        outer.append(other)
    return inner, tuple(outer)


def _torchrun(environ: Mapping[str, str]) -> Launched | None:
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    return _launched("torchrun", environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _hydra(environ: Mapping[str, str]) -> Launched | None:
    if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
        return None
    return _launched(
        "mpiexec (Hydra)",
        environ,
        *("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        mpi=True,
    )


def _open_mpi(environ: Mapping[str, str]) -> Launched | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    prefix = "OMPI_COMM_WORLD_"
    return _launched(
        "mpirun (Open MPI)",
        environ,
        *(f"{prefix}RANK", f"{prefix}SIZE", f"{prefix}LOCAL_RANK", f"{prefix}LOCAL_SIZE"),
        mpi=True,
    )


def _slurm(environ: Mapping[str, str]) -> Launched | None:
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    if step is None or "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return None
    if step.isdecimal() and int(step) in _NO_STEP:
        return None
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    rank, size, local = (_number("srun", environ, name) for name in names)
    assert rank is not None and size is not None
    per_node = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    node = _number("srun", environ, "SLURM_NODEID")
    local_size = per_node[node] if node is not None and node < len(per_node) else None
    ranks = Ranks(rank, size, local, local_size)
    return Launched("srun", ranks, _number("srun", environ, "SLURM_STEP_NUM_NODES"))


def tasks_per_node(text: str) -> list[int]:
    """SLURM's shorthand for how many tasks each node has.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts


def _launched(
    launcher: str,
    environ: Mapping[str, str],
    rank: str,
    size: str,
    local_rank: str,
    local_size: str,
    *,
    mpi: bool = False,
) -> Launched:
    numbers = [_number(launcher, environ, name) for name in (rank, size, local_rank, local_size)]
    if numbers[0] is None or numbers[1] is None:
        there, missing = (rank, size) if numbers[1] is None else (size, rank)
        raise ClusterError(
            f"{launcher}: {there}={environ[there]} is set and {missing} is not; set both, or"
            " neither"
        )
    return Launched(launcher, Ranks(numbers[0], numbers[1], *numbers[2:]), mpi=mpi)


def _number(launcher: str, environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise ClusterError(f"{launcher}: {name}={text!r} is not a number")
    return int(text)

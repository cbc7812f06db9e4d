"""Which ranks there are: found once, when a run starts, and said.

Guarantees
- ``find`` starts no MPI and imports nothing: it looks at what the process already is.
- ``connect`` gives ranks that can talk; it imports mpi4py only where an MPI launcher
  started this process.
- What was found and where is a sentence in ``Found.why``, and logged.
- What disagrees is refused (``ClusterError``) and never guessed: an MPI library that sees
  one process where ``mpiexec`` started four, say.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nogil_loader.cluster import environment, torch
from nogil_loader.cluster.group import ClusterError, Group, Ranks, Solo
from nogil_loader.cluster.mpi import MpiGroup

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """The ranks, and how they were found."""

    ranks: Ranks
    why: str
    group: Group | None = None
    """Ranks that can talk, from ``connect``; None from ``find``."""


def find(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Found:
    """This process's place, without starting anything.

    In this order: what is given (a data-parallel rank, say); ``torch.distributed`` where
    the user has initialised it; MPI where mpi4py has started it; the launcher's variables;
    one process alone. Where several of these speak they must agree, except that what is
    given goes before all.

    >>> find(2, 4, environ={}).why
    'rank 2 of 4: given'
    >>> find(environ={"PMI_RANK": "1", "PMI_SIZE": "3"}).ranks.world_size
    3
    """
    return _said(_find(rank, world_size, os.environ if environ is None else environ))


def connect(*, environ: Mapping[str, str] | None = None) -> Found:
    """Ranks that can talk: torch.distributed, MPI, or one process alone. Collective.

    Raises ``ClusterError`` where there are several ranks and nothing to talk over (a
    torchrun job before ``init_process_group``, an srun job without MPI).
    """
    environ = os.environ if environ is None else environ
    found = _find(None, None, environ)
    launched, _ = environment.read(environ)
    group: Group
    if torch.initialised():
        group = torch.TorchGroup()
    elif _mpi_runs() or (launched is not None and launched.mpi):
        group = MpiGroup()
    elif found.ranks.world_size == 1:
        group = Solo()
    else:
        raise ClusterError(
            f"{found.why}: there is nothing to talk over. Call"
            " torch.distributed.init_process_group before, import mpi4py.MPI before, or"
            " launch with mpiexec"
        )
    _agree(found.why, found.ranks, f"the group ({type(group).__name__})", group.ranks)
    if group.ranks.local_size is not None and found.ranks.local_size is None:
        found = Found(group.ranks, found.why)
    return _said(Found(found.ranks, f"{found.why}; talks over {type(group).__name__}", group))


def _find(rank: int | None, world_size: int | None, environ: Mapping[str, str]) -> Found:
    launched, outer = environment.read(environ) if rank is None else (None, ())
    if (rank is None) != (world_size is None):
        raise ClusterError("give both rank and world_size, or neither to have them found")
    if rank is not None and world_size is not None:
        return Found(Ranks(rank, world_size), f"rank {rank} of {world_size}: given")
    live = _live()
    if live is None and launched is None:
        return Found(Ranks(0, 1, 0, 1), "rank 0 of 1: no launcher, torch.distributed or MPI")
    if live is not None and launched is not None:
        _agree(live[0], live[1], launched.launcher, launched.ranks)
    if launched is None:
        assert live is not None
        who, ranks = live
    else:
        who, ranks = launched.launcher, launched.ranks
        if live is not None:
            who = f"{who} and {live[0]}"
    why = f"rank {ranks.rank} of {ranks.world_size}: {who}"
    if outer:
        why += f" (inside {', '.join(one.launcher for one in outer)}, one process a node)"
    return Found(ranks, why)


def _live() -> tuple[str, Ranks] | None:
    """What a library that is already running in this process says."""
    if torch.initialised():
        return "torch.distributed", torch.TorchGroup().ranks
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and _mpi_runs():
        world = mpi.COMM_WORLD
        return "MPI", Ranks(world.rank, world.size)
    return None


def _mpi_runs() -> bool:
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()


def _agree(one: str, ranks: Ranks, other: str, others: Ranks) -> None:
    if (ranks.rank, ranks.world_size) == (others.rank, others.world_size):
        return
    hint = ""
    if 1 in (ranks.world_size, others.world_size):
        hint = (
            " One of them sees a single process: a launcher and an MPI library of different"
            " makes do that (use the mpiexec that came with the library), or an"
            " initialisation that came too early."
        )
    raise ClusterError(
        f"{one} says rank {ranks.rank} of {ranks.world_size}, {other} says rank"
        f" {others.rank} of {others.world_size}.{hint} shard(rank=, world_size=) settles it"
    )


def _said(found: Found) -> Found:
    _log.info("%s", found.why)
    return found

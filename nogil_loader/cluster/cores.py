"""What ranks of one node share: its cores, and work that is done once for all of them.

Guarantees
- The shares of a node's ranks are disjoint in number: together they are the usable cores,
  and each rank has at least one.
- A launcher that has already given each rank cores of its own is not divided again.
- ``once`` runs its function in one process of a node; the others wait in the kernel, without
  spinning and without any group, and a rank that dies leaves no lock behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from nogil_loader import runtime
from nogil_loader.cluster.group import Ranks


def workers_of(ranks: Ranks, usable: int | None = None, machine: int | None = None) -> int:
    """How many workers this rank should run.

    ``usable``: cores this process may use (affinity, quota); ``machine``: cores the machine
    has; both are looked up if None. Where the process may use so few that all ranks of the
    node can have as many, its launcher bound it, and it uses all of them.

    >>> workers_of(Ranks(1, 8, 1, 4), usable=10, machine=10), workers_of(Ranks(0, 8, 0, 4), 10, 10)
    (3, 3)
    >>> workers_of(Ranks(1, 8, 1, 4), usable=4, machine=16)
    4
    """
    usable = runtime.usable_cores() if usable is None else usable
    machine = (os.cpu_count() or usable) if machine is None else machine
    if ranks.local_rank is None or not ranks.local_size or ranks.local_size == 1:
        return usable
    if usable * ranks.local_size <= machine:
        return usable
    share, rest = divmod(usable, ranks.local_size)
    return max(1, share + (ranks.local_rank < rest))


def once(path: str | os.PathLike[str], build: Callable[[Path], None]) -> Path:
    """``path``, made by the first process of this node that asks for it.

    ``build(temporary)`` writes a file or folder at ``temporary``, beside ``path``, which then
    takes the name ``path`` in one step: nobody ever sees a half of it. If ``build`` raises,
    the next process that waits tries. The lock file ``path + ".lock"`` stays, empty. On a
    file system that nodes share this is once for all nodes, where it supports locks.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> once(folder / "index", lambda new: new.write_text("built") and None).read_text()
    'built'
    """
    target = Path(path)
    if target.exists():
        return target
    with open(f"{target}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back by the kernel, whatever happens
        if not target.exists():
            temporary = target.with_name(f"{target.name}.{os.getpid()}.part")
            build(temporary)
            os.replace(temporary, target)
    return target

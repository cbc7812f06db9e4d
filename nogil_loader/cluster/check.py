"""Does this job fit together? What every rank says of itself, compared.

Guarantees
- Every rank computes the same verdict from the same gathered facts, so all exit alike.
- Shards are checked by counting: each rank tells which positions it would get, and together
  these are every position once, but for the declared remainder.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import numpy as np

from nogil_loader import __version__, runtime
from nogil_loader.cluster.cores import workers_of
from nogil_loader.cluster.group import Group, by_rank, spans
from nogil_loader.cluster.mpi import MpiGroup
from nogil_loader.position.order import Sequential, Shuffled
from nogil_loader.position.shard import Shard

PACKAGES = ("numpy", "pillow", "mpi4py", "torch", "cupy", "pyarrow", "obstore", "soundfile")
"""Those whose versions decide what a sample is, or whether ranks understand each other."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one rank says of itself."""

    rank: int
    local_rank: int | None
    host: str
    pid: int
    python: str
    gil: bool
    cores: int
    workers: int
    found: str
    threads: str
    """The MPI thread level, or what it talks over."""
    versions: tuple[tuple[str, str], ...]
    data: str | None
    """Fingerprint of the data, where some was named."""
    pipeline: str | None
    shard: bytes
    """One bit for each position: is it this rank's?"""


def facts_of(
    group: Group, found: str, samples: int, data: str | None = None, pipeline: str | None = None
) -> Facts:
    """This rank's facts. ``samples``: positions to deal out."""
    ranks = group.ranks
    order = Shard(Shuffled(Sequential(samples), seed=17), ranks.rank, ranks.world_size)
    mine = np.zeros(samples, np.bool_)
    mine[order.locate(np.arange(order.length or 0), 0).indices] = True
    talks = f"MPI, {group.thread_level}" if isinstance(group, MpiGroup) else type(group).__name__
    return Facts(
        rank=ranks.rank,
        local_rank=ranks.local_rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        python=f"{platform.python_version()}{'t' if runtime.free_threaded() else ''}",
        gil=runtime.gil_enabled(),
        cores=runtime.usable_cores(),
        workers=workers_of(ranks),
        found=found,
        threads=talks,
        versions=tuple(versions().items()),
        data=data,
        pipeline=pipeline,
        shard=np.packbits(mine).tobytes(),
    )


def versions() -> dict[str, str]:
    """Of this package and of what it may use, where installed."""
    found = {"nogil_loader": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def problems(facts: Sequence[Facts], samples: int) -> list[str]:
    """What does not fit together, one sentence each; empty if all is well."""
    found = []
    for what, values in (
        ("Python", [one.python for one in facts]),
        ("the GIL", ["on" if one.gil else "off" for one in facts]),
        ("the data's fingerprint", [one.data for one in facts]),
        ("the pipeline", [one.pipeline for one in facts]),
        ("what the ranks talk over", [one.threads for one in facts]),
    ):
        if any(value != values[0] for value in values):
            found.append(f"{what} differs: {by_rank(values)}")
    for package in sorted({name for one in facts for name, _ in one.versions}):
        installed = [dict(one.versions).get(package, "missing") for one in facts]
        if any(version != installed[0] for version in installed):
            found.append(f"{package} differs: {by_rank(installed)}")
    found += _shard_problems(facts, samples)
    homes: dict[tuple[str, int | None], list[int]] = {}
    for one in facts:
        if one.local_rank is not None:
            homes.setdefault((one.host, one.local_rank), []).append(one.rank)
    found += [
        f"ranks {spans(ranks)} all say they are local rank {local} of {host}"
        for (host, local), ranks in homes.items()
        if len(ranks) > 1
    ]
    return found


def _shard_problems(facts: Sequence[Facts], samples: int) -> list[str]:
    owners = np.zeros(samples, np.int64)
    counts = []
    for one in facts:
        mine = np.unpackbits(np.frombuffer(one.shard, np.uint8), count=samples)
        owners += mine
        counts.append(int(mine.sum()))
    found = []
    if (owners > 1).any():
        found.append(f"{int((owners > 1).sum())} positions belong to several ranks")
    left, allowed = int((owners == 0).sum()), samples % len(facts)
    if left != allowed:
        found.append(f"{left} positions belong to no rank, where {allowed} would be left over")
    if len(set(counts)) > 1:
        found.append(f"ranks have different numbers of samples: {by_rank(counts)}")
    return found

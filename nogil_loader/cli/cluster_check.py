"""``nogil-loader cluster-check``: do the ranks of this job fit together?

Run it as the job itself is run: ``mpiexec -n 4 nogil-loader cluster-check``, ``srun …``,
``torchrun --no-python … nogil-loader cluster-check``.

Guarantees
- One table, printed by rank 0; the same exit status on every rank: 0 all is well, 1 the ranks
  do not fit together, 2 they cannot even talk.
- Checked: the launcher, the library and the group name the same ranks; Python, GIL state,
  package versions, data and pipeline are the same everywhere; shards are disjoint and complete.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from nogil_loader.cli._terminal import Style, UsageError, table
from nogil_loader.cluster import check, environment, torch
from nogil_loader.cluster.detect import Found, connect
from nogil_loader.cluster.group import ClusterError
from nogil_loader.cluster.mpi import import_mpi
from nogil_loader.pipeline import Pipeline

if TYPE_CHECKING:
    from argparse import _SubParsersAction
    from collections.abc import Sequence

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

SAMPLES = 10_007
"""Positions dealt out to see whether shards fit: prime, so that there is a remainder."""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "cluster-check",
        help="under mpiexec, srun or torchrun: do the ranks of this job fit together",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument(
        "pipeline",
        nargs="?",
        metavar="MODULE:NAME",
        help="a pipeline to open on every rank: the data and the stages must be the same",
    )
    parser.add_argument(
        "--mpi", action="store_true", help="talk over MPI whatever started the ranks (srun, say)"
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Gather, compare, print on rank 0."""
    try:
        found = _connect(mpi=args.mpi)
    except (ClusterError, ImportError) as error:
        raise UsageError(str(error)) from None
    assert found.group is not None
    with closing(found.group) as group:
        data = pipeline = None
        failure = ""
        if args.pipeline is not None:
            try:
                data, pipeline = _fingerprints(args.pipeline)
            except Exception as problem:  # told to all ranks, or they would wait for this one
                failure = f"{type(problem).__name__}: {problem}"
        facts = check.facts_of(group, found.why, SAMPLES, data, pipeline)
        said = group.allgather((facts, failure))
        everyone = [one for one, _ in _pairs(said)]
        problems = [
            f"rank {one.rank} cannot open {args.pipeline}: {text}"
            for one, text in _pairs(said)
            if text
        ]
        problems += check.problems(everyone, SAMPLES)
        if facts.rank == 0:
            print(render(everyone, problems, Style(sys.stdout)), flush=True)
        group.barrier()
    return 1 if problems else 0


def _connect(*, mpi: bool) -> Found:
    if mpi:
        import_mpi()
    launched, _ = environment.read(os.environ)
    if launched is not None and launched.launcher == "torchrun" and not torch.initialised():
        torch.start()
    return connect()


def _pairs(said: list[object]) -> list[tuple[check.Facts, str]]:
    return [(one[0], one[1]) for one in said if isinstance(one, tuple)]


def _fingerprints(name: str) -> tuple[str, str]:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"{name!r} is not MODULE:NAME")
    sys.path.insert(0, os.getcwd())
    pipeline = getattr(importlib.import_module(module), attribute)
    if not isinstance(pipeline, Pipeline):
        raise TypeError(f"{name} is a {type(pipeline).__name__}, not a pipeline")
    with closing(pipeline.source.open()) as reader:
        return reader.fingerprint(), repr(pipeline)


def render(facts: Sequence[check.Facts], problems: Sequence[str], style: Style) -> str:
    """The ranks as a table, and the verdict."""
    head = ("rank", "local", "host", "pid", "Python", "GIL", "cores", "workers", "talks over")
    rows = [[style.dim(word) for word in head]]
    for one in facts:
        gil = style.bad("on") if one.gil and one.python.endswith("t") else "on"
        rows.append(
            [
                str(one.rank),
                "-" if one.local_rank is None else str(one.local_rank),
                one.host,
                str(one.pid),
                one.python,
                gil if one.gil else style.good("off"),
                str(one.cores),
                str(one.workers),
                one.threads,
            ]
        )
    parts = [style.bold("Ranks"), table(rows, ">><>>>>><"), "", f"Found: {facts[0].found}"]
    versions = ", ".join(f"{name} {version}" for name, version in facts[0].versions)
    parts += [f"Versions: {versions}"]
    if facts[0].data is not None:
        parts += [f"Data: {facts[0].data}", f"Pipeline: {facts[0].pipeline}"]
    parts.append("")
    if problems:
        parts += [style.bad("PROBLEM: ") + problem for problem in problems]
    else:
        parts.append(
            f"All {len(facts)} ranks fit together: shards of {SAMPLES} positions are disjoint"
            " and complete."
        )
    return "\n".join(parts)

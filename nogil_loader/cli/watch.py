"""``nogil-loader watch COMMAND…``: run a rank, and name it if it dies.

A launcher that ends a job because of one process tells at most its number and host, and it
kills the other ranks before any of them could say more. So the rank's parent says it:
``mpiexec -n 4 nogil-loader watch python train.py``, and the same after ``srun`` or ``torchrun
--no-python``.

Guarantees
- A rank that a signal ends, or that exits with a status other than 0, is named in one line on
  stderr: its rank, host and process, how it ended and after how long. This is written before
  the launcher can know that anything has happened.
- To the launcher this process ends as the command did: with its status, or by its signal. With
  ``--exit-status`` a signal n becomes the status 128 + n: MPICH's mpiexec kills the other ranks
  of a node if one of them ends by a signal, even under ``-disable-auto-cleanup``.
- Neither outlives the other. SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on; SIGINT is not,
  for a terminal sends it to both.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import socket
import sys
from time import monotonic
from typing import TYPE_CHECKING

from nogil_loader.cli._terminal import UsageError
from nogil_loader.cluster import ClusterError, environment

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

_PASSED_ON = {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}

_BOUND = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: prctl(2)
if os.getppid() == int(sys.argv[1]):
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"nogil-loader watch: {sys.argv[2]}: {error.strerror}")
"""
"""Bind this process to its parent's life, then become the command."""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "watch",
        help="run a rank of a job, and say which one it was if it dies",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument(
        "--exit-status",
        action="store_true",
        help="end with status 128 + n where signal n ended the rank, so that the launcher lets"
        " the others live (mpiexec -disable-auto-cleanup)",
    )
    parser.add_argument("line", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Run, wait, tell, and end in the same way."""
    line = args.line[1:] if args.line[:1] == ["--"] else args.line
    if not line:
        raise UsageError("watch what? mpiexec -n 4 nogil-loader watch python train.py")
    heard = _listen()
    begun = monotonic()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-ISc", _BOUND, str(os.getpid()), *line],
        os.environ,
        setsigmask=(),
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores, and hands down so
    )
    code = _wait(pid, heard)
    if code != 0:
        who = f"{_rank()} (host {socket.gethostname()}, pid {pid})"
        print(f"{who} {how(code)} after {monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
    if code < 0 and args.exit_status:
        return 128 - code
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core worth having is written
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _listen() -> int:
    """Where the numbers of signals can be read from now on.

    Not ``sigwait``: NumPy's libraries have threads that block nothing, and the kernel may give
    them a signal that nobody waits for at that moment. A handler hears it in any thread.
    """
    heard, tell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(tell)
    for number in (*_PASSED_ON, signal.SIGINT):
        signal.signal(number, _heard)
    return heard


def _heard(number: int, frame: object) -> None:
    """What is to be done about a signal, ``_wait`` does."""


def _wait(pid: int, heard: int) -> int:
    """Its exit status, or the signal that ended it, negative; pass signals on meanwhile."""
    child = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([child, heard], [], [])
        if child in ready:
            os.close(child)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for number in os.read(heard, 64):
            if number in _PASSED_ON:
                os.kill(pid, number)


def _rank() -> str:
    try:
        launched, _ = environment.read(os.environ)
    except ClusterError as error:
        return f"a rank that no launcher names ({error})"
    if launched is None:
        return "the one process of this job"
    return f"rank {launched.ranks.rank} of {launched.ranks.world_size}"


def how(code: int) -> str:
    """How a process ended, by its ``returncode``.

    >>> how(-9)
    'was killed by signal 9 (SIGKILL)'
    >>> how(1)
    'ended with exit status 1'
    """
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"

"""Ranks of an MPI job, through mpi4py.

Guarantees
- Groups talk on a communicator of their own, so nothing they say can be mistaken for the
  user's messages. It is duplicated once and kept with the user's communicator, as an MPI
  attribute: groups that are made for every epoch use no more than that one.
- Every rank makes its collective calls from one thread: the first that makes one. Another
  thread gets an error instead of a deadlock, and where MPI was started for its main thread
  alone (``MPI.THREAD_FUNNELED``), so does any thread but that.
- Who waits for a rank that has ended gets ``RankFailed``, which names it: from the kernel, if
  it was one of its own node; else from a neighbour of the dead that waits, too. MPI itself
  tells nobody: where mpiexec does not end the job (``-disable-auto-cleanup``), its collectives
  wait for ever.
- Where this module has started MPI, it ends it, too, and without waiting for the dead: a rank
  that knows of one, or that an exception ends, leaves without ``MPI.Finalize``.

MPI moves nothing on unless it is asked, and has no wait that ends for another reason. So a
collective is begun, asked for as MPI's own wait would, in a loop, and from then on once a
millisecond; between two questions the thread waits in the kernel for the end of a neighbour.
"""

from __future__ import annotations

import atexit
import functools
import pickle
import sys
import threading
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from nogil_loader.cluster.group import ClusterError, RankFailed, Ranks
from nogil_loader.cluster.peers import Peers

if TYPE_CHECKING:
    from types import ModuleType

    from mpi4py import MPI


_SPINS = 1000
"""Questions without a pause: a collective among ranks that are there is over before."""
_PAUSE = 0.001
"""Seconds between two questions after that."""
_GRACE = 2.0
"""Seconds that a collective may take when a rank has ended: it may have had its say before."""
_OBITUARY = 1
"""Tag of a message that names the dead; the communicator is our own, so any will do."""


class MpiGroup:
    """The ranks of ``comm`` (``MPI.COMM_WORLD`` if None). Collective: every rank makes one.

    Importing ``mpi4py.MPI`` starts MPI in this process if nothing has.
    """

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        mpi = import_mpi()
        if not mpi.Is_initialized() or mpi.Is_finalized():
            raise ClusterError("MPI is not running in this process: call MPI.Init first")
        self._level = mpi.Query_thread()
        self._main_only = self._level < mpi.THREAD_SERIALIZED
        self._is_main = mpi.Is_thread_main
        self._caller: int | None = None
        self._check_main()
        base = mpi.COMM_WORLD if comm is None else comm
        kept = base.Get_attr(_keyval())
        if not isinstance(kept, tuple):
            own = base.Dup()
            node = own.Split_type(mpi.COMM_TYPE_SHARED, key=own.rank)
            kept = own, Ranks(own.rank, own.size, node.rank, node.size), Peers.of(own, node)
            node.Free()
            base.Set_attr(_keyval(), kept)
        self._comm: MPI.Comm | None = kept[0]
        self._ranks: Ranks = kept[1]
        self._peers: Peers = kept[2]

    @property
    def ranks(self) -> Ranks:
        return self._ranks

    @property
    def thread_level(self) -> str:
        """``"single"``, ``"funneled"``, ``"serialized"`` or ``"multiple"``."""
        mpi = import_mpi()
        levels = {
            mpi.THREAD_SINGLE: "single",
            mpi.THREAD_FUNNELED: "funneled",
            mpi.THREAD_SERIALIZED: "serialized",
            mpi.THREAD_MULTIPLE: "multiple",
        }
        return levels[self._level]

    def allgather(self, value: object) -> list[object]:
        comm = self._open()
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.empty(comm.size, np.int64)
        self._finish(comm, comm.Iallgather(np.array([mine.size]), sizes))
        said = np.empty(int(sizes.sum()), np.uint8)
        self._finish(comm, comm.Iallgatherv(mine, [said, sizes]))
        return [pickle.loads(part.data) for part in np.split(said, np.cumsum(sizes)[:-1])]

    def barrier(self) -> None:
        comm = self._open()
        self._finish(comm, comm.Ibarrier())

    def _finish(self, comm: MPI.Comm, request: MPI.Request) -> None:
        """Wait for a collective, or for the news that it waits for the dead."""
        for _ in range(_SPINS):
            if request.Test():
                return
        deadline = None
        while not request.Test():
            self._tell(comm, self._peers.wait(_PAUSE))
            while comm.iprobe(tag=_OBITUARY):
                self._peers.ended.update(comm.recv(tag=_OBITUARY))
            if not self._peers.ended:
                continue
            now = monotonic()
            deadline = now + _GRACE if deadline is None else deadline
            if now > deadline:
                self._peers.forsaken.append(request)
                who = ", ".join(name for _, name in sorted(self._peers.ended.items()))
                raise RankFailed(
                    f"{who} ended without a word, and rank {self._ranks.rank} waited in vain"
                )

    def _tell(self, comm: MPI.Comm, dead: dict[int, str]) -> None:
        """Name the dead of this node to the other nodes, which cannot see them."""
        if dead:
            self._peers.forsaken += [
                comm.isend(dead, dest, _OBITUARY)
                for dest in range(comm.size)
                if dest not in self._peers.node
            ]

    def close(self) -> None:
        self._comm = None

    def _open(self) -> MPI.Comm:
        if self._comm is None:
            raise ClusterError("the group is closed")
        self._check_thread()
        return self._comm

    def _check_main(self) -> None:
        if self._main_only and not self._is_main():
            raise ClusterError(
                "MPI was started for its main thread alone (THREAD_FUNNELED), and this is"
                " another: use the group from the main thread, or start MPI with"
                " mpi4py.rc.thread_level = 'multiple' before importing mpi4py.MPI"
            )

    def _check_thread(self) -> None:
        self._check_main()
        here = threading.get_ident()
        if self._caller is None:
            self._caller = here
        elif self._caller != here:
            raise ClusterError(
                "collective calls of a group come from one thread, the first that made one:"
                " two threads would deadlock as soon as ranks differ in their order"
            )


@functools.cache
def _keyval() -> int:
    """The name under which a communicator keeps the one for groups."""
    key: int = import_mpi().Comm.Create_keyval()
    return key


def import_mpi() -> ModuleType:
    """``mpi4py.MPI``, or the sentence that says what is missing."""
    started = "mpi4py.MPI" in sys.modules
    try:
        import mpi4py

        ends_itself = mpi4py.rc.finalize
        if not started:
            mpi4py.rc.finalize = False  # it would wait for ever if a rank is dead
        from mpi4py import MPI
    except ImportError as missing:
        raise ImportError(
            'ranks that talk over MPI need mpi4py: pip install "nogil_loader[mpi]"'
        ) from missing
    except RuntimeError as missing:
        raise ImportError(
            "mpi4py finds no MPI library to load; pip install mpich brings one"
        ) from missing
    if not started and ends_itself is not False:
        atexit.register(_leave)
    module: ModuleType = MPI
    return module


def _leave() -> None:
    """End MPI with the process, unless that would be to wait for the dead."""
    mpi = import_mpi()
    if not mpi.Is_initialized() or mpi.Is_finalized():
        return
    if hasattr(sys, "last_value"):  # an exception ends this process: the others should know
        return
    kept = mpi.COMM_WORLD.Get_attr(_keyval())
    if isinstance(kept, tuple):
        try:
            MpiGroup().barrier()
        except RankFailed:
            return
    mpi.Finalize()

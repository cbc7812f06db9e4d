"""Ranks of an MPI job, through mpi4py.

Guarantees
- The group talks on a communicator of its own, so nothing it says can be mistaken for the
  user's messages; closing it frees that communicator and nothing else.
- Every rank makes its collective calls from one thread: the first that makes one. Another
  thread gets an error instead of a deadlock, and where MPI was started for its main thread
  alone (``MPI.THREAD_FUNNELED``), so does any thread but that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nogil_loader.cluster.group import ClusterError, Ranks

if TYPE_CHECKING:
    from types import ModuleType

    from mpi4py import MPI


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
        self._check_thread()
        base = mpi.COMM_WORLD if comm is None else comm
        self._comm: MPI.Comm | None = base.Dup()
        node = self._comm.Split_type(mpi.COMM_TYPE_SHARED, key=self._comm.rank)
        self._ranks = Ranks(self._comm.rank, self._comm.size, node.rank, node.size)
        node.Free()

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
        return list(self._open().allgather(value))

    def barrier(self) -> None:
        self._open().Barrier()

    def close(self) -> None:
        if self._comm is not None and not import_mpi().Is_finalized():
            self._check_thread()
            self._comm.Free()
        self._comm = None

    def _open(self) -> MPI.Comm:
        if self._comm is None:
            raise ClusterError("the group is closed")
        self._check_thread()
        return self._comm

    def _check_thread(self) -> None:
        here = threading.get_ident()
        if self._main_only and not self._is_main():
            raise ClusterError(
                "MPI was started for its main thread alone (THREAD_FUNNELED), and this is"
                " another: use the group from the main thread, or start MPI with"
                " mpi4py.rc.thread_level = 'multiple' before importing mpi4py.MPI"
            )
        if self._caller is None:
            self._caller = here
        elif self._caller != here:
            raise ClusterError(
                "collective calls of a group come from one thread, the first that made one:"
                " two threads would deadlock as soon as ranks differ in their order"
            )


def import_mpi() -> ModuleType:
    """``mpi4py.MPI``, or the sentence that says what is missing."""
    try:
        from mpi4py import MPI
    except ImportError as missing:
        raise ImportError(
            'ranks that talk over MPI need mpi4py: pip install "nogil_loader[mpi]"'
        ) from missing
    except RuntimeError as missing:
        raise ImportError(
            "mpi4py finds no MPI library to load; pip install mpich brings one"
        ) from missing
    module: ModuleType = MPI
    return module

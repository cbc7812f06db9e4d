"""Ranks of an MPI job, through mpi4py.

Guarantees
- Groups talk on a communicator of their own, so nothing they say can be mistaken for the
  user's messages. It is duplicated once and kept with the user's communicator, as an MPI
  attribute: groups that are made for every epoch use no more than that one.
- Every rank makes its collective calls from one thread: the first that makes one. Another
  thread gets an error instead of a deadlock, and where MPI was started for its main thread
  alone (``MPI.THREAD_FUNNELED``), so does any thread but that.
"""

from __future__ import annotations

import functools
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
        self._check_main()
        base = mpi.COMM_WORLD if comm is None else comm
        kept = base.Get_attr(_keyval())
        if not isinstance(kept, tuple):
            own = base.Dup()
            node = own.Split_type(mpi.COMM_TYPE_SHARED, key=own.rank)
            kept = own, Ranks(own.rank, own.size, node.rank, node.size)
            node.Free()
            base.Set_attr(_keyval(), kept)
        self._comm: MPI.Comm | None = kept[0]
        self._ranks: Ranks = kept[1]

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

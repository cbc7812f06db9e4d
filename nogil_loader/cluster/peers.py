"""The other processes of a node, and which of them have ended.

Guarantees
- Asking waits in the kernel, on a descriptor of each process (``pidfd_open(2)``), and returns
  at once when one has ended, however it did.
- Where the kernel cannot tell (another namespace of processes, a system without such
  descriptors) a process counts as alive.
"""

from __future__ import annotations

import os
import select
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


class Peers:
    """Processes of this node by their rank. ``pids``: rank to process id; ``rank``: this one.

    >>> Peers({3: os.getpid()}, rank=3).wait(0.0)
    {}
    """

    def __init__(self, pids: dict[int, int], rank: int) -> None:
        self.ended: dict[int, str] = {}
        """Who has, as far as was noticed or told: rank to a name for people."""
        self.node = {*pids}
        """Those of this node, which see each other's end themselves."""
        self.forsaken: list[MPI.Request] = []
        """Begun and never to end; MPI may yet write into their buffers."""
        self._alive: dict[int, tuple[int, str]] = {}
        self._poller = select.poll()
        for other, pid in pids.items():
            if other == rank or not hasattr(os, "pidfd_open"):
                continue
            name = f"rank {other} (host {socket.gethostname()}, pid {pid})"
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                self.ended[other] = name
            except OSError:
                continue
            else:
                self._alive[handle] = other, name
                self._poller.register(handle, select.POLLIN)

    @classmethod
    def of(cls, world: MPI.Comm, node: MPI.Comm) -> Peers:
        """The ranks of ``world`` that are in ``node``. Collective over ``node``."""
        return cls(dict(node.allgather((world.rank, os.getpid()))), world.rank)

    def wait(self, timeout: float) -> dict[int, str]:
        """Who of this node was found to have ended, after up to so many seconds for a first."""
        found = {}
        for handle, _ in self._poller.poll(timeout * 1000):
            self._poller.unregister(handle)
            os.close(handle)
            rank, name = self._alive.pop(handle)
            found[rank] = name
        self.ended.update(found)
        return found

"""Ranks of ``torch.distributed``, when the user has initialised it.

Guarantees
- torch is imported by ``start`` alone, which only ``nogil-loader cluster-check`` calls: what
  is not in ``sys.modules`` is not in use.
- Values travel as bytes over the user's default process group or the one given, from the
  thread that calls, in the order of the calls, as everything on that group must.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nogil_loader.cluster.group import ClusterError, Ranks

if TYPE_CHECKING:
    from types import ModuleType


def initialised() -> bool:
    """Has the user initialised ``torch.distributed`` in this process?"""
    distributed = _loaded()
    return distributed is not None and distributed.is_initialized()


def start() -> TorchGroup:
    """Initialise the default process group from torchrun's variables, on the CPU."""
    try:
        import torch.distributed as distributed
    except ImportError as missing:
        raise ImportError("ranks of a torchrun job talk over torch: pip install torch") from missing
    distributed.init_process_group("gloo")
    return TorchGroup()


class TorchGroup:
    """The ranks of a process group (the default one if None)."""

    def __init__(self, process_group: object = None) -> None:
        distributed = _loaded()
        if distributed is None or not distributed.is_initialized():
            raise ClusterError(
                "torch.distributed is not initialised: call init_process_group first"
            )
        self._distributed = distributed
        self._group = process_group
        self._ranks = Ranks(
            distributed.get_rank(process_group), distributed.get_world_size(process_group)
        )

    @property
    def ranks(self) -> Ranks:
        return self._ranks

    def allgather(self, value: object) -> list[object]:
        values: list[object] = [None] * self._ranks.world_size
        self._distributed.all_gather_object(values, value, group=self._group)
        return values

    def barrier(self) -> None:
        self._distributed.barrier(group=self._group)

    def close(self) -> None:
        """Nothing to give back: the process group is the user's, who destroys it."""


def _loaded() -> ModuleType | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return None
    return distributed

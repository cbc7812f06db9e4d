"""The pure core: what may run next, and what follows from what was done.

No threads, clocks or I/O in this room: every interleaving can be tested by calling it.
"""

from nogil_loader.engine.core.block import Block, Failure, Ident, Skip
from nogil_loader.engine.core.core import Core
from nogil_loader.engine.core.level import Delivery, Point
from nogil_loader.engine.core.spec import (
    CoreSpec,
    LevelSpec,
    OpSpec,
    Policy,
    RunStart,
    SegmentSpec,
)
from nogil_loader.engine.core.task import Task

__all__ = [
    "Block",
    "Core",
    "CoreSpec",
    "Delivery",
    "Failure",
    "Ident",
    "LevelSpec",
    "OpSpec",
    "Point",
    "Policy",
    "RunStart",
    "SegmentSpec",
    "Skip",
    "Task",
]

"""Data loading on threads that really run at the same time."""

from nogil_loader.engine.errors import (
    CollateError,
    FieldMissing,
    ForkedRun,
    RunClosed,
    StageTimeout,
    UndeclaredFuture,
)
from nogil_loader.engine.run import Run
from nogil_loader.pipeline import Pipeline
from nogil_loader.sources.read import read
from nogil_loader.stages import Retry
from nogil_loader.start import from_files, from_iterable, from_sequence

__version__ = "0.1.0"

__all__ = [
    "CollateError",
    "FieldMissing",
    "ForkedRun",
    "Pipeline",
    "Retry",
    "Run",
    "RunClosed",
    "StageTimeout",
    "UndeclaredFuture",
    "from_files",
    "from_iterable",
    "from_sequence",
    "read",
]

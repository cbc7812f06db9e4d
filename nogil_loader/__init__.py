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
from nogil_loader.engine.warm import per_worker
from nogil_loader.observe.progress import progress
from nogil_loader.pipeline import Pipeline
from nogil_loader.position.parse import StateMismatch
from nogil_loader.position.state import merge_states
from nogil_loader.sources.read import read
from nogil_loader.stages import Retry
from nogil_loader.start import (
    from_arrays,
    from_files,
    from_iterable,
    from_lines,
    from_parquet,
    from_queue,
    from_sequence,
    from_store,
    from_tar,
    from_zip,
    mix,
    zip_sources,
)

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
    "StateMismatch",
    "UndeclaredFuture",
    "from_arrays",
    "from_files",
    "from_iterable",
    "from_lines",
    "from_parquet",
    "from_queue",
    "from_sequence",
    "from_store",
    "from_tar",
    "from_zip",
    "merge_states",
    "mix",
    "per_worker",
    "progress",
    "read",
    "zip_sources",
]

"""Data loading on threads that really run at the same time.

What a name stands for is imported when the name is first used, so that ``import nogil_loader``
costs next to nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

if not TYPE_CHECKING:
    _HOMES = {
        "engine.errors": (
            "CollateError",
            "FieldMissing",
            "ForkedRun",
            "RunClosed",
            "StageTimeout",
            "UndeclaredFuture",
        ),
        "engine.run": ("Run",),
        "engine.warm": ("per_worker",),
        "observe.progress": ("progress",),
        "pipeline": ("Pipeline",),
        "position.parse": ("StateMismatch",),
        "position.state": ("merge_states",),
        "sources.read": ("read",),
        "stages": ("Retry",),
        "start": (
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
            "mix",
            "zip_sources",
        ),
    }

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for home, names in _HOMES.items():
            if name in names:
                value = getattr(import_module(f"nogil_loader.{home}"), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module 'nogil_loader' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

"""The errors that are the package's own: one type for each remedy."""

from __future__ import annotations


class StageTimeout(TimeoutError):
    """An op took longer than its stage's ``timeout=``.

    Raise the timeout, mend the op, or choose ``on_error="skip"``. The message names stage and
    sample and carries the stack of the thread that hangs.
    """


class CollateError(ValueError):
    """Samples of one batch do not fit together. The message names both and the cure."""


class RunClosed(RuntimeError):
    """The run was closed (or failed) and has no more batches to give: start another."""


class ForkedRun(RuntimeError):
    """A run was used in a child after ``fork``, where its threads do not exist."""


class FieldMissing(KeyError):
    """``key=`` names a field that the sample does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UndeclaredFuture(TypeError):
    """An op returned a ``concurrent.futures.Future`` in a stage without ``in_flight=``."""


class SourceSpent(RuntimeError):
    """A one-shot iterator was asked for a second pass."""

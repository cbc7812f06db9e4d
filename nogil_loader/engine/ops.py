"""Ops: what a worker does with each cell, and how a worker makes an op its own.

Guarantees
- An ``Op`` is frozen and shared; a ``Step`` is the same op bound for one worker, so that no
  callable with state or a reference count of its own is shared on the way of a sample.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from nogil_loader.position.keys import Keyed

Failed: TypeAlias = "list[tuple[int, BaseException]]"
"""Cells whose op raised, by their index."""
Fn: TypeAlias = "Callable[..., object]"

READ, MAP, FILTER, FLAT_MAP = "read", "map", "filter", "flat_map"
MEASURE, KEEP, SEND = "measure", "keep", "send"
PROMISE = "promise"
"""A map whose results may be futures: those stay bare until they are settled."""


@dataclass(frozen=True)
class Op:
    """What a worker does with each cell; frozen and shared, bound before use."""

    kind: str
    fn: Fn
    name: str
    key: object = None
    to: object = None
    rng: bool = False
    timed: bool = False
    future: bool = False
    substitute: Fn | None = None
    remote: bool = False
    """``fn`` runs in worker processes, a block at a time."""
    cached: bool = False
    """There is a cache further down, whose hits this op passes by."""


class Driver(Protocol):
    """A worker process, as far as the engine knows one."""

    spent: float
    """Seconds that the last ``run`` spent on a core, over there."""

    def run(
        self,
        cells: Sequence[object],
        keys: Sequence[tuple[int, ...]] | None = None,
        randomness: tuple[int, int, str] | None = None,
    ) -> list[tuple[bool, object]]:
        """(whether it went well, value or exception) of each cell."""
        ...


class Step:
    """An op bound for one worker."""

    __slots__ = (
        "fn",
        "future",
        "key",
        "keyed",
        "kind",
        "name",
        "op",
        "randomness",
        "remote",
        "substitute",
        "timed",
        "to",
    )

    def __init__(self, op: Op, fn: Fn, keyed: Keyed | None, *, whole: bool = False) -> None:
        """``whole``: ``fn`` takes whole cells, whatever field the op is meant for."""
        self.op = op
        self.kind = PROMISE if op.future else op.kind
        self.name = op.name
        self.fn = fn
        self.key = None if whole else op.key
        self.to = op.key if op.to is None else op.to
        self.keyed = keyed
        self.timed = op.timed
        self.future = op.future
        self.remote: Driver | None = None
        """Drives the worker process that runs the op, if one does."""
        self.randomness: tuple[int, int, str] | None = None
        """What generators in that process are made from."""
        self.substitute = op.substitute


def bind(fn: Fn) -> Fn:
    """A copy of the callable that no other thread touches, where one can be made.

    Objects with ``bind()`` say themselves; partials and bound methods are copied; a plain
    function is used as it is, for module-level functions are free to share.
    """
    own = getattr(fn, "bind", None)
    if own is not None and not isinstance(fn, type):
        bound: Fn = own()
        return bound
    if isinstance(fn, functools.partial):
        return copy.copy(fn)
    method = getattr(fn, "__func__", None)
    if method is not None:
        rebound: Fn = method.__get__(fn.__self__)  # type: ignore[attr-defined]
        return rebound
    return fn


class Final(BaseException):
    """Wraps what a substitute raised: no policy applies to it any more."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error

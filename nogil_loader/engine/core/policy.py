"""What becomes of cells whose op raised: retried, skipped, substituted, or the end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from nogil_loader.engine.core.block import (
    AGAIN,
    SUBSTITUTE,
    Block,
    Failure,
    Pending,
    Skip,
    unit_of,
)
from nogil_loader.engine.core.spec import Policy


def judge(
    block: Block,
    policy: Policy,
    failed: Sequence[tuple[int, BaseException]],
    undone: Sequence[Pending] = (),
) -> tuple[list[Pending], float]:
    """Apply the policy to the failed cells of a half-done block (``block.out`` is set).

    Skipped cells are removed and noted, a failure truncates the block at the first cell that
    ends the run. Returns the cells that still need a result, by their index after all this,
    and the seconds to wait before they are tried again.
    """
    pending = list(undone)
    drops: list[int] = []
    wait = 0.0
    for index, error in failed:
        ident = block.ident(index)
        if not isinstance(error, policy.only) or not isinstance(error, Exception):
            verdict = "raise"
        else:
            verdict = policy.then
            tries = block.tries = block.tries or {}
            count = tries[ident] = 1 + (tries[ident] if ident in tries else 0)
            if count <= policy.retries:
                if policy.backoff is not None:
                    wait = max(wait, policy.backoff(count))
                pending.append(Pending(index, AGAIN, None))
                continue
        if verdict == "raise":
            block.truncate(index, Failure(block.level, ident, block.op, error))
            pending = [entry for entry in pending if entry.cell < index]
            break
        if verdict == "skip":
            drops.append(index)
            block.skips = [*(block.skips or ()), Skip(block.level, ident, block.op, error)]
        else:
            pending.append(Pending(index, SUBSTITUTE, error))
    if drops:
        block.drop(drops)
    moved = [entry._replace(cell=entry.cell - bisect_left(drops, entry.cell)) for entry in pending]
    return sorted(moved, key=_cell), wait


def _cell(entry: Pending) -> int:
    return entry.cell


def scatter(block: Block, pending: Sequence[Pending]) -> list[Block]:
    """Cut a half-done block so that units with pending cells do not hold up the others."""
    parts: list[Block] = []
    waiting = list(pending)
    rest: Block | None = block
    while waiting and rest is not None:
        unit = unit_of(rest.ident(waiting[0].cell))
        if unit > rest.start:
            clean, rest = rest, rest.split(unit)
            before = len(clean.cells or ())
            waiting = [entry._replace(cell=entry.cell - before) for entry in waiting]
            parts.append(clean)
        part = rest
        rest = part.split(unit + 1) if part.count > 1 else None
        cells = len(part.cells or ())
        part.pending = [entry for entry in waiting if entry.cell < cells]
        waiting = [
            entry._replace(cell=entry.cell - cells) for entry in waiting if entry.cell >= cells
        ]
        parts.append(part)
    if rest is not None:
        parts.append(rest)
    return parts

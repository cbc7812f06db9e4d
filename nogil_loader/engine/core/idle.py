"""Why there is no task for a kind of threads: asked when one is about to park."""

from __future__ import annotations

from nogil_loader.engine.core.core import Core
from nogil_loader.observe.counts import CONSUMER, END, INPUT, MEMORY, ORDER, RULE, SOURCE


def idle_reason(core: Core, kind: int) -> str:
    """One of ``observe.counts.WAITS``, for a kind to which ``core.take`` has just said None."""
    if core.spent():
        return END
    for segment in core.kinds[kind]:
        if not segment.units:
            continue
        turn = segment.spec.serial and not segment.running
        return ORDER if turn else RULE
    head, ahead = core.head, core.ahead
    if head.spec.kind != kind or ahead.exhausted:
        return INPUT
    if ahead.left <= 0:
        return SOURCE
    if head.special and not head.admits(ahead.claimed):
        return RULE
    # Batches that wait to be taken hold the budget as well as the look-ahead.
    if core.delivered > core.taken:
        return CONSUMER
    if ahead.memory is not None and not ahead.affordable(ahead.memory, 1):
        return MEMORY
    return ORDER

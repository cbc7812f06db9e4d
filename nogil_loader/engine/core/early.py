"""Early rows: while every stage is one-to-one, row = unit mod batch.

Guarantees
- A unit has its row before anything is known about its neighbours, so the worker that
  finishes it writes it at once.
- A batch is whole when each of its rows was written, in whatever order; the last batch has
  as many rows as there are units left.
"""

from __future__ import annotations

from nogil_loader.engine.core.block import Block
from nogil_loader.engine.core.level import Closed, Level, Slot, Span
from nogil_loader.engine.core.task import Rows


def rows_of(level: Level, rows: int, block: Block) -> list[Rows]:
    """Which rows of which batches the units of a block are."""
    begin, stop = block.start, block.start + block.count
    number, row = divmod(begin - level.first, rows)
    number += level.groups
    if row + block.count <= rows and number in level.slots:
        return [(level.slots[number], row, begin, stop)]  # nearly always, for short blocks
    places: list[Rows] = []
    while begin < stop:
        number, row = divmod(begin - level.first, rows)
        number += level.groups
        end = begin + rows - row
        if end > stop:
            end = stop
        if number not in level.slots:
            whole = rows
            if level.stop is not None and not level.spec.drop_last:
                whole = min(rows, level.stop - (begin - row))
            level.slots[number] = Slot(number, whole, block.since)
            level.slots[number].reserved = level.promised.pop(number, 0)
        places.append((level.slots[number], row, begin, end))
        begin = end
    return places


def written(block: Block, places: list[Rows]) -> list[Slot]:
    """The block's cells are in their rows; returns the batches that are whole by that."""
    assert block.cells is not None
    filled = block.start + len(block.cells)
    block.cells, block.ids, block.size = [], [], 0
    whole = []
    for slot, _, begin, end in places:
        slot.left -= max(0, min(end, filled) - begin)
        if slot.left == 0:
            whole.append(slot)
    return whole


def closed(level: Level, rows: int, slot: Slot) -> Closed:
    """A whole batch, as a closed group."""
    del level.slots[slot.number]
    begin = level.first + (slot.number - level.groups) * rows
    stop = begin + slot.rows
    span = Span(begin, stop, slot.rows, begin, range(begin, stop))
    return Closed(level.number, slot.number, [slot], (), None, span, slot.size, slot.since)


def end(level: Level, rows: int) -> tuple[int, list[Slot]]:
    """The units are at their end, or at a failure: how many batches there are (the one that
    the failure lies in not counted), and the short last one if that makes it whole."""
    units = level.front if level.failure is None else level.front - 1
    groups, rest = divmod(units - level.first, rows)
    number = level.groups + groups
    if level.failure is not None or rest == 0:
        return number, []
    if level.spec.drop_last:
        level.slots.clear()
        return number, []
    if number not in level.slots:
        return number + 1, []  # its end was known, and it is whole already
    slot = level.slots[number]
    slot.left -= slot.rows - rest
    slot.rows = rest
    return number + 1, [slot] if slot.left == 0 else []

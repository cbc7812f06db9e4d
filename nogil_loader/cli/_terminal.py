"""How the command writes: aligned tables, a little emphasis, one line of progress.

Guarantees
- Emphasis and the progress line appear on a terminal only, and not where ``NO_COLOR`` is set
  or ``TERM`` is ``dumb``; what is piped or kept is plain text.
- Columns are aligned by what is seen: emphasis has no width.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

_EMPHASIS = re.compile(r"\x1b\[[0-9;]*m")


class UsageError(Exception):
    """What was asked for makes no sense here; its one line says why. Exit status 2."""


class Style:
    """Emphasis for one output: ``Style(sys.stdout).bold("x")``."""

    def __init__(self, stream: TextIO) -> None:
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self.rich = stream.isatty() and not plain

    def bold(self, text: str) -> str:
        """A heading, or the number to look at."""
        return self._wrap("1", text)

    def dim(self, text: str) -> str:
        """What may be passed over."""
        return self._wrap("2", text)

    def good(self, text: str) -> str:
        """As it should be."""
        return self._wrap("32", text)

    def bad(self, text: str) -> str:
        """What needs a cure."""
        return self._wrap("1;31", text)

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.rich else text


def width(text: str) -> int:
    """How many columns the text takes, emphasis left out."""
    return len(_EMPHASIS.sub("", text))


def table(rows: Sequence[Sequence[str]], align: str, *, indent: int = 2, gap: int = 2) -> str:
    """Rows as aligned lines; ``align`` has ``<`` or ``>`` for each column.

    >>> print(table([["jpeg", "9"], ["png", "10"]], "<>"))
      jpeg   9
      png   10
    """
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for cell, side, wide in zip(row, align, widths, strict=True):
            space = " " * (wide - width(cell))
            cells.append(cell + space if side == "<" else space + cell)
        lines.append(" " * indent + (" " * gap).join(cells).rstrip())
    return "\n".join(lines)


class Progress:
    """One line on a terminal that tells what is going on; silent anywhere else.

    For one thread. Use as a context manager: it clears its line however the block ends.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.show("")

    def show(self, text: str) -> None:
        """Replace the line, cut to the terminal's width."""
        if self._live:
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{text[: columns - 1]}")
            self._stream.flush()

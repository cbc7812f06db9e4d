"""Live progress of a run: how fast, how long still, who waits, what limits.

Guarantees
- No thread, no timer, no polling: the display is renewed as batches are taken, at most a few
  times a second, and what that costs stays below two hundredths of the time.
- On a terminal there is one line that is written over (a bar, where rich is installed);
  anywhere else one plain line every few seconds. Nothing goes to standard output.
- However the loop ends, by ``break``, by an exception or by itself, the display is put away.
"""

from __future__ import annotations

import os
import shutil
import sys
import weakref
from collections import deque
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, TextIO, TypeVar

from nogil_loader.observe.report import Report, seconds
from nogil_loader.observe.verdict import number, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_LIVE = 0.1
"""Seconds between two renewals of a display that is written over."""
_LINES = 10.0
"""Seconds between two plain lines."""
_PRICE = 50.0
"""A renewal that took t is followed by no other one for this many times t."""
_RECENT = 10.0
"""Seconds that rates look back."""
_BAR, _NARROW = 24, 6
"""Columns of the bar, and those below which there is none."""


class Running(Protocol[T_co]):
    """A run, as far as its progress is concerned."""

    def __next__(self) -> T_co:
        """The next batch."""
        ...

    def report(self) -> Report:
        """Where the time went so far."""
        ...

    def close(self) -> bool:
        """Stop."""
        ...


@dataclass(frozen=True)
class Moment:
    """What the display shows."""

    batches: int
    samples: int
    rate: float
    """Samples a second, of late."""
    done: float | None
    """Share of the epoch, 0 to 1, where its length is known."""
    left: float | None
    """Seconds to its end, at the pace of late."""
    stall: float
    """Share of the time, of late, that the consumer waited."""
    failures: int
    skipped: int
    limit: str
    """The bottleneck."""

    def __str__(self) -> str:
        parts = [_batches(self.batches)]
        if self.done is not None:
            parts.append(percent(self.done))
        parts.append(f"{number(self.rate)} samples/s")
        if self.left is not None and self.left > 0.0:
            parts.append(f"{seconds(self.left)} left")
        parts.append(f"stalled {percent(self.stall)}")
        if self.failures:
            parts.append(f"{self.failures:,} failed, {self.skipped:,} skipped")
        parts.append(f"limit: {self.limit}")
        return ", ".join(parts)


def _batches(count: int) -> str:
    return f"{count:,} batch{'' if count == 1 else 'es'}"


class Pace:
    """Turns one report after the other into what happened of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int, float]] = deque([(0.0, 0, 0, 0.0)])

    def moment(self, report: Report) -> Moment:
        """What to show, going by this report and those of the last seconds."""
        counts = report.counts
        consumer = counts.consumer
        now = (counts.seconds, counts.samples, counts.done, consumer.waited)
        seen = self._seen
        while len(seen) > 1 and seen[1][0] < now[0] - _RECENT:
            seen.popleft()
        then = seen[0]
        seen.append(now)
        passed = max(1e-9, now[0] - then[0])
        done = left = None
        if counts.length:
            done = 1.0 if counts.ended else min(1.0, counts.done / counts.length)
            pace = (now[2] - then[2]) / passed
            left = (counts.length - counts.done) / pace if pace > 0.0 else None
        return Moment(
            batches=consumer.batches,
            samples=counts.samples,
            rate=(now[1] - then[1]) / passed,
            done=done,
            left=None if counts.ended else left,
            stall=min(1.0, (now[3] - then[3]) / passed),
            failures=sum(stage.failures for stage in counts.stages),
            skipped=sum(stage.skipped for stage in counts.stages),
            limit=report.verdict.name,
        )


class Display(Protocol):
    """Where moments are shown."""

    interval: float
    """Seconds between two of them."""

    def show(self, moment: Moment) -> None:
        """Show this one instead of the last."""
        ...

    def close(self) -> None:
        """Leave what was shown last, and the terminal as it was. Idempotent."""
        ...


class Progress(Generic[T]):
    """Iterates like the run it is given, and shows how it goes. Made by ``progress``."""

    def __init__(self, run: Running[T], display: Display) -> None:
        self.run = run
        self._display = display
        self._pace = Pace()
        self._due = monotonic() + min(1.0, display.interval)
        self._put_away = weakref.finalize(self, display.close)

    def __iter__(self) -> Progress[T]:
        return self

    def __next__(self) -> T:
        try:
            batch = next(self.run)
        except BaseException:
            self.close()
            raise
        if monotonic() >= self._due:
            self._renew()
        return batch

    def _renew(self) -> None:
        begun = monotonic()
        self._display.show(self._pace.moment(self.run.report()))
        now = monotonic()
        self._due = now + max(self._display.interval, _PRICE * (now - begun))

    def report(self) -> Report:
        """That of the run."""
        return self.run.report()

    def close(self) -> None:
        """Show the last state and put the display away; the run is left as it is."""
        if not self._put_away.alive:
            return
        try:
            self._display.show(self._pace.moment(self.run.report()))
        except RuntimeError:
            pass  # a run in another process that is over: what was shown last stands
        finally:
            self._put_away()

    def __enter__(self) -> Progress[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        self.run.close()


def progress(run: Running[T], *, file: TextIO | None = None) -> Progress[T]:
    """Show how a run goes while its batches are taken.

    ``file``: where to, standard error unless told. The result iterates over the batches of the
    run; used in a ``with`` block it closes the run, too. For one thread.

    >>> import io
    >>> import nogil_loader as nl
    >>> out = io.StringIO()
    >>> with nl.from_sequence(range(100)).batch(10).run() as run:
    ...     total = sum(len(batch) for batch in progress(run, file=out))
    >>> out.getvalue()
    '10 batches, 100 %, ... samples/s, stalled ... %, limit: ...'
    """
    stream = sys.stderr if file is None else file
    return Progress(run, display_for(stream))


def display_for(stream: TextIO) -> Display:
    """A bar, a line that is written over, or plain lines: what the stream can bear."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return Lines(stream)
    try:
        import rich  # noqa: F401
    except ImportError:
        return Line(stream)
    return Bar(stream)


class Lines:
    """Plain lines, one after the other."""

    interval = _LINES

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, moment: Moment) -> None:
        """One more line."""
        print(moment, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to put away."""


class Line:
    """One line of a terminal, written over."""

    interval = _LIVE

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._open = False

    def show(self, moment: Moment) -> None:
        """Write over the line, cut to the terminal's width."""
        columns = shutil.get_terminal_size().columns
        self._stream.write(f"\r\x1b[K{str(moment)[: columns - 1]}")
        self._stream.flush()
        self._open = True

    def close(self) -> None:
        """Leave the line."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False


class Bar:
    """A bar and a line of figures, by rich, which is told when to draw and never does by itself."""

    interval = _LIVE

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=stream)
        self._live = Live(
            console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def show(self, moment: Moment) -> None:
        """Draw it."""
        if not self._live.is_started:
            self._live.start()
        self._live.update(draw(moment, self._live.console.width), refresh=True)

    def close(self) -> None:
        """Leave the last drawing, and the cursor where it can be seen."""
        self._live.stop()


def draw(moment: Moment, width: int) -> RenderableType:
    """A moment as one row of ``width`` columns: a bar, if there is room for one, and figures,
    which go on in a second row rather than be cut."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    cells = [Text(_batches(moment.batches))]
    if moment.done is not None:
        cells.insert(0, Text(percent(moment.done)))
    cells.append(Text(f"{number(moment.rate)} samples/s", style="bold"))
    if moment.left is not None and moment.left > 0.0:
        cells.append(Text(f"{seconds(moment.left)} left"))
    waits = "yellow" if moment.stall > 0.1 else "green"
    cells.append(Text(f"stalled {percent(moment.stall)}", style=waits))
    if moment.failures:
        cells.append(Text(f"{moment.failures:,} failed, {moment.skipped:,} skipped", style="red"))
    cells.append(Text(f"limit: {moment.limit}", style="dim"))
    figures = Text("  ").join(cells)
    room = width - figures.cell_len - 2
    if moment.done is None or room < _NARROW:
        return figures
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_row(ProgressBar(1.0, moment.done, width=min(_BAR, room)), figures)
    return row

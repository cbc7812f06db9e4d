"""Live progress: what it says, where it says it, and that it leaves nothing behind."""

from __future__ import annotations

import builtins
import io
import os
import pty
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TextIO

import pytest

import nogil_loader as nl
from nogil_loader.observe import progress as module
from nogil_loader.observe.counts import ConsumerCount, Counts, StageCount
from nogil_loader.observe.progress import Bar, Line, Lines, Pace, Progress, display_for
from nogil_loader.observe.report import Report

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


def at(seconds: float, done: int, waited: float = 0.0, failures: int = 0) -> Report:
    stage = StageCount("f", "workers", failures=failures, skipped=failures)
    consumer = ConsumerCount(done // 10, waited)
    counts = Counts(seconds, False, done, done=done, length=1000, stages=(stage,))
    return Report.of(replace(counts, consumer=consumer))


def test_rate_and_time_left_follow_the_last_seconds() -> None:
    pace = Pace()
    first = pace.moment(at(10.0, 100))
    assert (first.rate, first.done, first.left) == (10.0, 0.1, 90.0)
    for second in range(11, 41):  # ten times as fast from now on
        moment = pace.moment(at(float(second), 100 + (second - 10) * 20))
    assert moment.rate == pytest.approx(20.0)
    assert moment.left == pytest.approx((1000 - 700) / 20.0)


def test_stalls_are_those_of_the_last_seconds() -> None:
    pace = Pace()
    pace.moment(at(10.0, 100, waited=10.0))
    for second in range(11, 41):
        moment = pace.moment(at(float(second), 100, waited=10.0))
    assert moment.stall == 0.0


def test_a_length_that_is_not_known_leaves_out_share_and_time_left() -> None:
    report = at(10.0, 100)
    moment = Pace().moment(replace(report, counts=replace(report.counts, length=None)))
    assert (moment.done, moment.left) == (None, None)
    assert "left" not in str(moment)


def test_failures_are_shown_when_there_are_any() -> None:
    assert "failed" not in str(Pace().moment(at(1.0, 10)))
    assert "3 failed, 3 skipped" in str(Pace().moment(at(1.0, 10, failures=3)))


class Every:
    """A display that is due at every batch."""

    interval = 0.0

    def __init__(self) -> None:
        self.shown: list[module.Moment] = []
        self.closed = 0

    def show(self, moment: module.Moment) -> None:
        self.shown.append(moment)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PRICE", 0.0)


def batches() -> nl.Pipeline[object]:
    return nl.from_sequence(range(100)).batch(10)


@pytest.mark.usefixtures("unhurried")
def test_every_batch_passes_through_and_the_last_state_is_shown() -> None:
    display = Every()
    with Progress(batches().run(), display) as run:
        assert [len(batch) for batch in run] == [10] * 10  # type: ignore[arg-type]
    assert len(display.shown) == 11
    assert (display.shown[-1].batches, display.shown[-1].done) == (10, 1.0)
    assert display.closed == 1


@pytest.mark.usefixtures("unhurried")
def test_a_break_puts_the_display_away_and_leaves_the_run_alone() -> None:
    display = Every()
    with batches().run() as run:
        for _ in Progress(run, display):
            break
        assert display.closed == 1
        assert sum(1 for _ in run) == 9


@pytest.mark.usefixtures("unhurried")
def test_an_error_in_an_op_puts_the_display_away_and_goes_on_up() -> None:
    def fail(n: int) -> int:
        raise ValueError(n)

    display = Every()
    run = nl.from_sequence(range(10)).map(fail).run()
    with run, pytest.raises(ValueError, match="0"):
        list(Progress(run, display))
    assert display.closed == 1


class Gone:
    """A run whose process is gone: it raises, and has nothing to report."""

    def __next__(self) -> int:
        raise KeyError("what went wrong")

    def report(self) -> Report:
        raise nl.RunClosed("the run is over")

    def close(self) -> bool:
        return True


def test_a_run_that_cannot_report_any_more_hides_no_error() -> None:
    display = Every()
    with pytest.raises(KeyError, match="what went wrong"), Progress(Gone(), display) as run:
        next(run)
    assert (display.shown, display.closed) == ([], 1)


def test_looking_costs_a_fiftieth_of_the_time_at_most() -> None:
    display = Every()
    data = nl.from_sequence(range(2000))
    with data.run() as run:
        assert sum(1 for _ in Progress(run, display)) == 2000
    assert len(display.shown) < 1000


def test_without_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    with batches().run() as run:
        list(nl.progress(run, file=out))
    text = out.getvalue()
    assert text.startswith("10 batches, 100 %, ")
    assert text.endswith("\n")
    assert "\x1b" not in text


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal() as (stream, _):
        assert isinstance(display_for(stream), Lines)


def test_a_terminal_without_rich_gets_a_line_that_is_written_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    real = builtins.__import__

    def without_rich(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("rich"):
            raise ImportError(name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_rich)
    with terminal() as (stream, seen):
        display = display_for(stream)
        assert isinstance(display, Line)
        display.show(Pace().moment(at(10.0, 100)))
        display.show(Pace().moment(at(20.0, 200)))
        display.close()
    text = seen()
    assert text.count("\r\x1b[K") == 2
    assert text.endswith("\n")


def test_a_terminal_with_rich_gets_a_bar_and_its_cursor_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    with terminal() as (stream, seen):
        before = threading.active_count()
        display = display_for(stream)
        assert isinstance(display, Bar)
        display.show(Pace().moment(at(10.0, 400)))
        assert threading.active_count() == before
        display.close()
    text = seen()
    assert "40 %" in text
    assert "━" in text
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40])
def test_whatever_the_width_of_the_terminal_no_figure_is_cut(width: int) -> None:
    console = pytest.importorskip("rich.console")
    screen = console.Console(file=io.StringIO(), width=width)
    moment = Pace().moment(at(10.0, 400, waited=9.0, failures=12345))
    screen.print(module.draw(moment, width))
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).translate(dict.fromkeys(map(ord, "━╺╸"), " ")).split()
    figures = "40 % 40 batches 40 samples/s 15.00 s left stalled 90 % 12,345 failed, 12,345 skipped"
    assert " ".join(words) == f"{figures} limit: nothing"
    assert ("━" in lines[0]) == (width >= 120)


@contextmanager
def terminal() -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A pseudo-terminal: the stream that writes to it, and what was written, once closed."""
    leader, follower = pty.openpty()
    chunks: list[bytes] = []

    def drain() -> None:
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:  # the other side was closed
                return
            if not chunk:
                return
            chunks.append(chunk)

    def seen() -> str:
        return b"".join(chunks).decode().replace("\r\n", "\n")

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        with os.fdopen(follower, "w", encoding="utf-8") as stream:
            yield stream, seen
    finally:
        reader.join()
        os.close(leader)

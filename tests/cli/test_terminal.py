"""What the command writes is aligned, and plain where nobody looks."""

from __future__ import annotations

import io

import pytest

from nogil_loader.cli._terminal import Progress, Style, table, width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colourful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_columns_align_by_what_is_seen() -> None:
    bold = Style(Terminal()).bold
    lines = table([[bold("a"), "1"], ["long name", "100"]], "<>").splitlines()
    assert [width(line) for line in lines] == [16, 16]
    assert lines[1] == "  long name  100"


def test_emphasis_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Style(io.StringIO()).bad("x") == "x"
    assert Style(Terminal()).bad("x") != "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style(Terminal()).bad("x") == "x"


def test_progress_is_one_line_that_goes_away() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    with Progress(terminal) as progress:
        progress.show("x" * 500)
    with Progress(pipe) as progress:
        progress.show("never seen")
    assert pipe.getvalue() == ""
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().count("x") < 500
    assert terminal.getvalue().endswith("\r\x1b[K")

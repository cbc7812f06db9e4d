"""The benchmark command: what it shows, what it refuses, and what it leaves behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from nogil_loader import runtime
from nogil_loader.cli import _measure, _results, bench
from nogil_loader.cli._measure import Measurement
from nogil_loader.cli._results import Result, Series
from nogil_loader.cli._terminal import Style
from nogil_loader.testing import media
from nogil_loader.testing.child import in_child

pytest.importorskip("PIL")

ROOT = Path(__file__).parents[2]


def start(*words: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nogil_loader.cli", "bench", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NOGIL_LOADER_REFERENCE": "", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def bench_of(*words: str, **env: str) -> tuple[int, str, str]:
    with start(*words, **env) as child:
        out, err = child.communicate(timeout=100)
    return child.returncode, out, err


def test_pictures_of_ones_own_are_measured_and_broken_ones_named(tmp_path: Path) -> None:
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    scratch.mkdir()
    paths = media.write_photos(data, 6, size=(320, 240))
    (data / "beach" / "broken.jpg").write_bytes(paths[0].read_bytes()[:2000])
    (data / "beach" / "notes.txt").write_text("no picture")
    report = tmp_path / "report.json"
    words = [str(data), "--quick", "--seconds", "0.1", "--workers", "1,2", "--json", str(report)]
    if find_spec("matplotlib"):
        words += ["--html", str(tmp_path / "page.html")]
    code, out, err = bench_of(*words, TMPDIR=str(scratch))
    assert (code, err) == (0, "")
    if find_spec("matplotlib"):
        assert "rows and engine" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "6 of 7 pictures in" in out
    assert "1 left out" in out
    assert "broken.jpg" in out
    found = json.loads(report.read_text())["workloads"][0]
    keys = [(series["key"], series["workers"]) for series in found["series"]]
    expected = ["off", "on", "hand"] if runtime.free_threaded() else ["on", "hand"]
    assert keys == [(key, count) for key in expected for count in (1, 2)]
    for series in found["series"]:
        (measured,) = series["measurements"]
        assert measured["samples"] % 6 == 0
        assert measured["first"] > 0
        assert 10e6 < measured["peak"] < 1e9
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("what", ["missing", "empty", "no pictures", "all broken", "a file"])
def test_data_that_cannot_be_measured_is_one_line_and_status_two(what: str, tmp_path: Path) -> None:
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    scratch.mkdir()
    if what == "a file":
        data.write_text("x")
    elif what != "missing":
        data.mkdir()
        name = {"no pictures": "a.txt", "all broken": "a.jpg"}.get(what)
        if name:
            (data / name).write_text("these are words")
    code, _, err = bench_of(str(data), "--quick", "--workload", "pictures", TMPDIR=str(scratch))
    assert code == 2
    assert err.startswith("nogil-loader: ")
    assert err.count("\n") == 1
    assert str(data) in err
    assert list(scratch.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_data_that_may_not_be_read_is_one_line_and_status_two(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        code, _, err = bench_of(str(tmp_path), "--quick")
    finally:
        tmp_path.chmod(0o700)
    assert (code, err) == (2, f"nogil-loader: cannot read {tmp_path}: Permission denied\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_child_and_no_file(number: signal.Signals, tmp_path: Path) -> None:
    words = ["--workload", "text", "--quick", "--seconds", "90", "--workers", "1"]
    with start(*words, TMPDIR=str(tmp_path)) as child:
        deadline = time.monotonic() + 60
        while not (grandchildren := measuring(child.pid)):
            assert child.poll() is None and time.monotonic() < deadline, child.communicate(None, 1)
            time.sleep(0.02)
        assert len(list(tmp_path.iterdir())) == 1
        child.send_signal(number)  # to the command alone: it has to end its child itself
        _, err = child.communicate(timeout=20)
    assert (child.returncode, err.strip()) == (130, "nogil-loader: interrupted")
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{grandchildren[0]}").exists()


def measuring(pid: int) -> list[str]:
    """The children of a process that run a measurement."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    try:
        return [c for c in children if b"_workload" in Path(f"/proc/{c}/cmdline").read_bytes()]
    except FileNotFoundError:
        return []  # one has just ended


@pytest.mark.parametrize(
    "words", [["--rounds", "0"], ["--seconds", "-1"], ["--workers", "1,0"], ["--json", "/no/x"]]
)
def test_options_that_make_no_sense_exit_with_two(words: list[str]) -> None:
    code, out, err = bench_of(*words)
    assert (code, out) == (2, "")
    assert err


def test_a_reference_that_does_not_run_is_said(tmp_path: Path) -> None:
    if not runtime.free_threaded():
        pytest.skip("a GIL build has nothing to be compared with")
    code, _, err = bench_of("--quick", "--reference", str(tmp_path / "python"))
    assert code == 2
    assert "does not run" in err


def result(rates: dict[str, list[float]]) -> Result:
    series = tuple(Series(key, f"the {key}", (), "engine") for key in rates)
    found = {
        (key, 1): [Measurement(100, 100 / rate, 1, 0.01, 50_000_000) for rate in values]
        for key, values in rates.items()
    }
    return Result("text", "some lines", series, (1,), found)


def test_ratios_are_of_neighbours_and_refused_where_the_ceiling_is_unsteady() -> None:
    steady = result({"off": [90, 180, 270], "hand": [100, 104, 108], "on": [50, 100, 150]})
    text = _results.render(steady, Style(io.StringIO()))
    assert "x1.73 the throughput of the loop by hand" in text
    assert "no ratio to 'the on', which varied by more than 15%" in text
    assert "unsteady" in text


def test_the_spread_is_shown_as_half_the_range() -> None:
    text = _results.render(
        result({"off": [95, 100, 105], "hand": [100, 100, 100]}), Style(io.StringIO())
    )
    assert "100  ± 5%" in text


def test_a_machine_that_is_busy_is_said_loudly() -> None:
    facts = {**_measure.machine(), "load": 3.0}
    assert "busy (load 3.0)" in _results.heading(facts, "3.13.5t", Style(io.StringIO()))


def test_the_reference_is_found_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOGIL_LOADER_REFERENCE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _measure.reference_python() is None
    python = tmp_path / "nogil-loader/env/reference-1-2/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert _measure.reference_python() == str(python)
    monkeypatch.setenv("NOGIL_LOADER_REFERENCE", "/some/python")
    assert _measure.reference_python() == "/some/python"


def test_an_interpreter_is_like_itself() -> None:
    mine = _measure.identify(sys.executable)
    assert _measure.like_for_like(mine, mine)
    assert not _measure.like_for_like(mine, {**mine, "version": "3.11.0"})


def test_a_childs_failure_is_its_last_line() -> None:
    with pytest.raises(_measure.ChildFailed, match=r"^ValueError: no$"):
        _measure.run_child([sys.executable, "-c", "raise ValueError('no')"])


def test_workers_double_up_to_the_cores() -> None:
    assert [bench.worker_counts(n) for n in (1, 2, 6, 8)] == [
        (1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8),
    ]  # fmt: skip


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
@in_child()  # matplotlib keeps the files of its fonts open
def test_the_page_needs_nothing_but_itself() -> None:
    from nogil_loader.cli._page import page

    shown = result({"off": [90, 180, 270], "hand": [100, 104, 108], "on": [50, 100, 150]})
    shown = replace(shown, about="files in <odd> & 'named'")
    text = page(_measure.machine(), [shown], ["A note."])
    assert text.count("<svg") == text.count("</svg>") == 1
    assert "files in &lt;odd&gt; &amp;" in text
    assert "x1.73 the throughput of the loop by hand" in text
    assert not re.search(r"<script|<link|<img|src=|@import|url\((?!#)", text)
    assert page(_measure.machine(), [shown], ["A note."]).count("samples a second") == 1

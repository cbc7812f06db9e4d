"""The doctor says what is there, and loudly what is broken."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nogil_loader import runtime
from nogil_loader.cli import doctor
from nogil_loader.cli._terminal import Style

ROOT = Path(__file__).parents[2]


def command(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    return subprocess.run(
        [sys.executable, "-m", "nogil_loader.cli", *words],
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.fixture(scope="module")
def facts() -> doctor.Facts:
    return doctor.examine()


def test_the_facts_come_as_json_too() -> None:
    child = command("doctor", "--json")
    assert (child.returncode, child.stderr) == (0, "")
    found = json.loads(child.stdout)
    assert found["interpreter"]["free_threaded"] == runtime.free_threaded()
    assert found["packages"][0]["name"] == "numpy"
    assert found["packages"][0]["keeps_gil_off"] == (True if runtime.free_threaded() else None)
    assert found["problems"] == []


def test_a_stranger_can_read_it(facts: doctor.Facts) -> None:
    text = doctor.render(facts, Style(io.StringIO()))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 120
    for heading in ("Interpreter", "Packages", "Pillow's codecs", "GPU"):
        assert f"\n{heading}\n" in "\n" + text
    assert text.splitlines()[-1].startswith("No problem found")


def test_a_pillow_without_jpeg_is_said_loudly(
    facts: doctor.Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.delattr(image.core, "jpeg_encoder")
    codecs = {codec.format: codec.works for codec in doctor.examine_codecs()}
    assert (codecs["JPEG"], codecs["PNG"]) == (False, True)
    broken = doctor.examine_codecs()
    problems = doctor.problems_of((), facts.packages, broken)
    assert len(problems) == 1
    found = replace(facts, codecs=broken, problems=problems)
    text = doctor.render(found, Style(io.StringIO()))
    assert "MISSING" in text
    assert "PROBLEM: this Pillow was built without JPEG" in text.splitlines()[-1]


def test_a_package_that_does_not_import_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('libfoo.so is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    package = doctor.examine_package("numpy", ("numpy",), "arrays", "")
    assert (package.broken, package.note) == (True, "ImportError: libfoo.so is missing")


def test_a_package_that_is_not_installed_names_its_extra() -> None:
    package = doctor.examine_package("nowhere", ("no-such-distribution",), "nothing", "image")
    assert (package.version, package.broken) == (None, False)
    assert package.note == 'pip install "nogil_loader[image]"'


def test_a_gil_that_an_import_switched_on_is_named(facts: doctor.Facts) -> None:
    interpreter = replace(facts.interpreter, free_threaded=True, gil=True, gil_reason="import")
    text = doctor.render(
        replace(facts, interpreter=interpreter, culprits=("careless",)), Style(io.StringIO())
    )
    assert "on: importing careless did it" in text


def test_a_command_that_is_none_exits_with_two() -> None:
    child = command("cure")
    assert child.returncode == 2
    assert "invalid choice: 'cure'" in child.stderr
    assert command("--version").stdout.startswith("nogil-loader ")

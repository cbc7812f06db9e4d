"""The watch over what tests leave behind: it must bite, and must not bite the tidy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

LEAKS = {
    "thread": """
        import threading
        release = threading.Event()
        def test_leaves():
            threading.Thread(target=release.wait, name="forgotten", daemon=True).start()
    """,
    "file descriptor": """
        import os
        def test_leaves():
            os.open(os.devnull, os.O_RDONLY)
    """,
    "child process": """
        import os, signal
        def test_leaves():
            pid = os.posix_spawn("/bin/sleep", ["sleep", "20"], {})
            kept.append(pid)
        kept = []
        def teardown_module():
            os.kill(kept[0], signal.SIGKILL)
            os.waitpid(kept[0], 0)
    """,
}

TIDY = """
    import subprocess, threading
    def test_finishing_thread():
        threading.Timer(0.1, print).start()
    def test_finished_child():
        with subprocess.Popen(["true"]):
            pass
    def test_closed_file(tmp_path):
        with open(tmp_path / "f", "w"):
            pass
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run pytest over one module, under the configuration and conftest of this suite."""
    root = Path(__file__).parent.parent
    (folder / "pyproject.toml").write_bytes((root / "pyproject.toml").read_bytes())
    (folder / "conftest.py").write_bytes((root / "tests" / "conftest.py").read_bytes())
    (folder / "test_it.py").write_text(dedent(code))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_it.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("kind", LEAKS)
def test_a_test_that_leaves_something_fails_and_says_what(kind: str, tmp_path: Path) -> None:
    result = run(tmp_path, LEAKS[kind])
    assert result.returncode == 1, result.stdout
    assert f"left behind: {kind}" in result.stdout


def test_tidy_tests_pass(tmp_path: Path) -> None:
    result = run(tmp_path, TIDY)
    assert result.returncode == 0, result.stdout
    assert "3 passed" in result.stdout

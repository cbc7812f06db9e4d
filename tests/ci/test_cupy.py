"""``ci/cupy`` where CuPy cannot be had: a sentence, at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nogil_loader import runtime

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    not runtime.free_threaded() or sys.version_info >= (3, 14),
    reason="only free-threaded 3.13 compiles CuPy",
)
def test_without_a_toolkit_it_says_what_is_missing_and_makes_nothing(tmp_path: Path) -> None:
    child = subprocess.run(
        [ROOT / "ci" / "cupy", "python", "-c", "import cupy"],
        env={
            **os.environ,
            "CUDA_PATH": str(tmp_path / "no-cuda"),
            "NOGIL_PYTHON": sys.executable,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == 1
    assert "no-cuda has no nvcc" in " ".join(child.stderr.split())
    assert "install a CUDA toolkit" in child.stderr
    assert not (tmp_path / "cache").exists()

"""The benchmark of the ring runs from end to end where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_measures_prints_and_keeps_its_numbers(tmp_path: Path) -> None:
    kept = tmp_path / "numbers.json"
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.device", "--device", "host", "--quick", "--json", kept],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    for numbers in json.loads(kept.read_text()).values():
        assert numbers["wrong sums"] == 0
        assert numbers["batches checked"] == 500
        assert numbers["ring GB/s"] > 0
        assert numbers["grown"] == 0
    assert "step / resident" in child.stdout
    assert "BROKEN PROMISE" not in child.stdout

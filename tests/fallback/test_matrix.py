"""The whole contract again, with worker processes and with isolation (and with threads, so that
a row is known to mean the same everywhere): see ``tests.fallback.matrix``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nogil_loader import runtime
from tests.fallback.matrix import ROWS

MODES = ("threads", "isolated") if runtime.free_threaded() else ("threads", "process", "isolated")
DEADLINE = 110.0
Outcomes = dict[str, str | None]


@pytest.fixture(scope="module", params=MODES)
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """By row: None, or what went wrong."""
    command = [sys.executable, "-m", "tests.fallback.matrix", request.param]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, wrong = child.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        child.kill()
        said, wrong = child.communicate()
    told = map(json.loads, said.splitlines())
    found = {entry["row"]: entry["error"] for entry in told}
    return {row: found[row] if row in found else f"never reached:\n{wrong}" for row in ROWS}


@pytest.mark.parametrize("row", ROWS)
def test_the_contract_holds(outcomes: Outcomes, row: str) -> None:
    assert outcomes[row] is None, outcomes[row]

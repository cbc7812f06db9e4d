"""``kill -9`` of either side leaves no hang, no orphan and no memory: see ``kills``."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

COUNT = 200 if os.environ.get("NOGIL_LOADER_SOAK") == "1" else 3


@pytest.mark.parametrize("kind", ["isolated", "process"])
@pytest.mark.parametrize("who", ["child", "parent"])
def test_a_kill_at_any_moment_leaves_nothing(who: str, kind: str) -> None:
    seed = random.randrange(10**6)
    command = [sys.executable, "-m", "tests.fallback.kills", who, kind, str(COUNT), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, (seed, done.stdout, done.stderr)

"""The death of a rank ends its job and is told: see ``kills``."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys

import pytest

from tests.cluster.conftest import MPIEXEC

COUNT = 50 if os.environ.get("NOGIL_LOADER_SOAK") == "1" else 3


@pytest.mark.timeout(60 + 30 * COUNT)
def test_a_rank_killed_at_any_moment_ends_the_job_and_is_named() -> None:
    if not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None:
        pytest.skip(f"no mpiexec beside {sys.executable}: pip install mpi4py mpich")
    seed = random.randrange(10**6)
    command = [sys.executable, "-m", "tests.cluster.kills", str(COUNT), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, (seed, done.stdout, done.stderr)

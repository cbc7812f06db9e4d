"""Real ranks: programs under the mpiexec that the mpich wheel brings."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sys.executable).with_name("mpiexec")

LAUNCHERS = ("OMPI_", "PMI", "MPI_", "SLURM_", "HYDRA_")
TORCHRUN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}

Job = Callable[..., subprocess.CompletedProcess[str]]


def clean_environment() -> dict[str, str]:
    """This environment without what a launcher may have put there."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHERS) and name not in TORCHRUN
    }


@pytest.fixture
def mpirun(tmp_path: Path) -> Job:
    """``mpirun(ranks, program, *options)``: run the source text on that many ranks."""
    if not MPIEXEC.exists() or importlib.util.find_spec("mpi4py") is None:
        pytest.skip(f"no mpiexec beside {sys.executable}: pip install mpi4py mpich")

    def run(
        ranks: int, program: str, *options: str, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(program))
        return subprocess.run(
            [MPIEXEC, *options, "-n", str(ranks), sys.executable, "-W", "error", script],
            env={**clean_environment(), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def ranks_say(mpirun: Job) -> Callable[..., list[object]]:
    """Run a program that calls ``say(value)`` once on each rank; the values by rank."""

    def run(ranks: int, program: str, *options: str) -> list[object]:
        head = """
            import json, os
            def say(value):
                rank = int(os.environ["PMI_RANK"])
                os.write(1, f"{json.dumps([rank, value])}\\n".encode())
        """
        child = mpirun(ranks, textwrap.dedent(head) + textwrap.dedent(program), *options)
        assert child.returncode == 0, child.stdout + child.stderr
        said = dict(json.loads(line) for line in child.stdout.splitlines())
        assert sorted(said) == list(range(ranks)), child.stdout + child.stderr
        return [said[rank] for rank in range(ranks)]

    return run

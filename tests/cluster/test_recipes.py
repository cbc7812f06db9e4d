"""The recipes of docs/cluster.md are run as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()
LINES = re.findall(r"^mpiexec .*$", PAGE, re.MULTILINE)

TRAIN = """
import os
import nogil_loader as nl
from nogil_loader.cluster import find

train = nl.from_sequence(range(64)).shuffle(seed=17).shard().batch(2)
if __name__ == "__main__":
    count = sum(1 for _ in train)
    ranks = find().ranks
    place = f"{ranks.rank}/{ranks.world_size} {ranks.local_rank}/{ranks.local_size}"
    os.write(1, f"{place}: {count} batches\\n".encode())
"""


def test_the_page_has_recipes() -> None:
    assert len(LINES) >= 4


@pytest.mark.parametrize("line", LINES)
def test_an_mpiexec_line_of_the_page_does_what_it_says(line: str, tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    if not (folder / "mpiexec").exists():
        pytest.skip(f"no mpiexec beside {sys.executable}: pip install mpi4py mpich")
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "data.py").write_text(TRAIN)
    (tmp_path / "train.py").write_text(TRAIN)
    command = tmp_path / "bin" / "nogil-loader"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m nogil_loader.cli "$@"\n')
    command.chmod(0o755)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PMI", "MPI_", "OMPI_"))},
        "PATH": os.pathsep.join([str(command.parent), str(folder), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "HYDRA_LAUNCHER": "fork",  # node1 and node2 are this machine, under two names
    }
    child = subprocess.run(
        ["sh", "-c", line],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    ranks = int(re.search(r"-n (\d+)", line)[1])
    if "cluster-check" in line:
        assert f"All {ranks} ranks fit together" in child.stdout
        return
    local = int(found[1]) if (found := re.search(r"-ppn (\d+)", line)) else ranks
    said = sorted(child.stdout.splitlines())
    assert said == [
        f"{rank}/{ranks} {rank % local}/{local}: {32 // ranks} batches" for rank in range(ranks)
    ]


def test_a_torchrun_job_finds_its_ranks(tmp_path: Path) -> None:
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if torchrun is None:
        pytest.skip("torch is not installed: no torchrun")
    (tmp_path / "train.py").write_text(TRAIN)
    child = subprocess.run(
        [torchrun, "--standalone", "--nproc-per-node", "4", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    said = sorted(line for line in child.stdout.splitlines() if "batches" in line)
    assert said == [f"{rank}/4 {rank}/4: 8 batches" for rank in range(4)]


def test_cluster_check_talks_over_torch_under_torchrun(tmp_path: Path) -> None:
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if torchrun is None:
        pytest.skip("torch is not installed: no torchrun")
    child = subprocess.run(
        [
            torchrun,
            "--standalone",
            "--nproc-per-node",
            "3",
            "-m",
            "nogil_loader.cli",
            "cluster-check",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert "All 3 ranks fit together" in child.stdout
    assert "rank 0 of 3: torchrun and torch.distributed; talks over TorchGroup" in child.stdout

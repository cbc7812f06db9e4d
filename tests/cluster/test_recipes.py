"""The recipes of docs/cluster.md are run as they stand."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import ROOT, clean_environment

PAGE = (ROOT / "docs" / "cluster.md").read_text()
BLOCKS = "".join(re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
LINES = re.findall(r"^mpiexec .*$", BLOCKS, re.MULTILINE)
TORCHRUN = re.findall(r"^torchrun .*$", BLOCKS, re.MULTILINE)

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
    assert len(LINES) >= 4 and len(TORCHRUN) >= 3


def follow(line: str, folder: Path) -> subprocess.Popen[str]:
    """What a reader of the page would do, in a folder with a training script."""
    if not (folder / "train.py").exists():
        package = folder / "mypackage"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "data.py").write_text(TRAIN)
        (folder / "train.py").write_text(TRAIN)
        command = folder / "bin" / "nogil-loader"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m nogil_loader.cli "$@"\n')
        command.chmod(0o755)
    path = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    return subprocess.Popen(
        ["sh", "-c", line],
        cwd=folder,
        env={
            **clean_environment(),
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": str(ROOT),
            "HYDRA_LAUNCHER": "fork",  # node1 and node2 are this machine, under two names
            "OMP_NUM_THREADS": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("line", LINES)
def test_an_mpiexec_line_of_the_page_does_what_it_says(line: str, tmp_path: Path) -> None:
    folder = Path(sys.executable).parent
    if not (folder / "mpiexec").exists():
        pytest.skip(f"no mpiexec beside {sys.executable}: pip install mpi4py mpich")
    child = follow(line, tmp_path)
    out, err = child.communicate(timeout=100)
    assert child.returncode == 0, out + err
    ranks = int(re.search(r"-n (\d+)", line)[1])
    if "cluster-check" in line:
        assert f"All {ranks} ranks fit together" in out
        return
    local = int(found[1]) if (found := re.search(r"-ppn (\d+)", line)) else ranks
    said = sorted(out.splitlines())
    assert said == [
        f"{rank}/{ranks} {rank % local}/{local}: {32 // ranks} batches" for rank in range(ranks)
    ]


@pytest.mark.parametrize("line", TORCHRUN)
def test_a_torchrun_line_of_the_page_does_what_it_says(line: str, tmp_path: Path) -> None:
    """One that starts several nodes is started as often, with a master that is this machine."""
    if shutil.which("torchrun", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("torch is not installed: no torchrun")
    nodes = int(found[1]) if (found := re.search(r"--nnodes (\d+)", line)) else 1
    line = line.replace("node1:29500", f"localhost:{free_port()}")
    agents = [follow(line, tmp_path) for _ in range(nodes)]
    ended = [agent.communicate(timeout=100) for agent in agents]
    out = "".join(out for out, _ in ended)
    assert all(agent.returncode == 0 for agent in agents), ended
    each = int(re.search(r"--nproc-per-node (\d+)", line)[1])
    ranks = nodes * each
    if "cluster-check" in line:
        assert f"All {ranks} ranks fit together" in out
        assert "torchrun and torch.distributed; talks over TorchGroup" in out
        return
    assert sorted(said for said in out.splitlines() if "batches" in said) == [
        f"{rank}/{ranks} {rank % each}/{each}: {32 // ranks} batches" for rank in range(ranks)
    ]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port: int = listener.getsockname()[1]
        return port

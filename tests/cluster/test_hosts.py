"""Several hosts on one machine: each a network namespace with a name and an address of its own.

Needs root and ``ip netns``; where the machine does not allow it, these say so and are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import MPIEXEC, ROOT, clean_environment

HOSTS = 3
BRIDGE = f"nlb{os.getpid() % 100000}"

LAUNCH = """
#!/bin/sh
# What ssh would be: options, an address, a command.
while [ "${1#-}" != "$1" ]; do shift; done
number=${1##*.}; shift
exec ip netns exec %s-$number unshare --uts sh -c "hostname node$number; exec $*"
"""


def ip(*arguments: object) -> None:
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """``mpiexec`` and its options, for three hosts with two ranks each."""
    tmp_path = tmp_path_factory.mktemp("launcher")
    if not MPIEXEC.exists() or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs mpiexec (pip install mpi4py mpich), ip and unshare")
    try:
        yield build(tmp_path)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as refused:
        pytest.skip(
            f"no hosts in network namespaces here: {refused} {refused.stderr or ''}".strip()
        )
    finally:
        for number in range(1, HOSTS + 1):
            subprocess.run(["ip", "netns", "del", f"{BRIDGE}-{number}"], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)


def build(folder: Path) -> list[str]:
    """The hosts; an error of a command where the machine does not allow them, or where ranks on
    them cannot even be started."""
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("link", "set", BRIDGE, "up")
    for number in range(1, HOSTS + 1):
        space, end = f"{BRIDGE}-{number}", f"{BRIDGE}v{number}"
        ip("netns", "add", space)
        ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", end, "master", BRIDGE, "up")
        ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        ip("-n", space, "link", "set", "lo", "up")
    launch = folder / "launch"
    launch.write_text((LAUNCH % BRIDGE).lstrip())
    launch.chmod(0o755)
    addresses = ",".join(f"10.77.0.{number}" for number in range(1, HOSTS + 1))
    mpiexec = [
        *("ip", "netns", "exec", f"{BRIDGE}-1", "unshare", "--uts"),
        *("sh", "-c", 'hostname node1; exec "$@"', "sh", str(MPIEXEC), "-launcher", "ssh"),
        *("-launcher-exec", str(launch), "-iface", "eth0", "-hosts", addresses),
        *("-ppn", "2", "-n", str(2 * HOSTS)),
    ]
    barrier = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
    run([*mpiexec, sys.executable, "-c", barrier]).check_returncode()
    return mpiexec


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={**clean_environment(), "PYTHONPATH": str(ROOT), "FI_PROVIDER": "tcp"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_ranks_of_several_hosts_share_an_epoch(hosts: list[str], tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import json, os, socket
            import nogil_loader as nl
            from nogil_loader.cluster import connect

            group = connect().group
            place = group.ranks
            chain = nl.from_sequence(range(100)).shuffle(1).shard(uneven="agree").filter(bool)
            mine = [n for batch in chain.batch(5) for n in batch.tolist()]
            said = group.allgather([socket.gethostname(), place.local_rank, place.local_size, mine])
            if place.rank == 0:
                os.write(1, json.dumps(said).encode())
            """
        )
    )
    child = run([*hosts, sys.executable, str(script)])
    assert child.returncode == 0, child.stdout + child.stderr
    said = json.loads(child.stdout)
    assert [(host, local, size) for host, local, size, _ in said] == [
        (f"node{host}", local, 2) for host in range(1, HOSTS + 1) for local in range(2)
    ]
    shown = [number for *_, mine in said for number in mine]
    assert len(set(shown)) == len(shown)
    assert len({len(mine) for *_, mine in said}) == 1


def test_cluster_check_sees_every_host(hosts: list[str]) -> None:
    child = run([*hosts, sys.executable, "-m", "nogil_loader.cli", "cluster-check"])
    assert child.returncode == 0, child.stdout + child.stderr
    assert "All 6 ranks fit together" in child.stdout
    assert all(f"node{number}" in child.stdout for number in range(1, HOSTS + 1))


DEATH = """
import os, signal, time
import nogil_loader as nl
from nogil_loader.cluster import RankFailed, connect

group = connect().group
group.barrier()
rank = group.ranks.rank
if rank in {dead}:
    os.kill(os.getpid(), signal.SIGKILL)
begun = time.monotonic()
try:
    group.allgather(rank)
except RankFailed as error:
    assert time.monotonic() - begun < 8
    os.write(1, f"said: {{rank}} {{error}}\\n".encode())
"""


def die(hosts: list[str], tmp_path: Path, dead: set[int]) -> tuple[list[str], str]:
    """What the survivors said, and what stderr has."""
    script = tmp_path / "program.py"
    script.write_text(DEATH.format(dead=dead))
    watch = [sys.executable, "-m", "nogil_loader.cli", "watch", "--exit-status"]
    child = run([*hosts, "-disable-auto-cleanup", *watch, sys.executable, str(script)])
    assert child.returncode != 0
    return sorted(re.findall(r"^said: (.*)$", child.stdout, re.MULTILINE)), child.stderr


def test_ranks_of_other_hosts_are_told_by_a_neighbour_of_the_dead(
    hosts: list[str], tmp_path: Path
) -> None:
    said, told = die(hosts, tmp_path, {3})
    dead = re.search(r"^(rank 3) of 6 (\(host node2, pid \d+\)) was killed by", told, re.MULTILINE)
    assert dead is not None, told
    assert said == [
        f"{rank} {dead[1]} {dead[2]} ended without a word, and rank {rank} waited in vain"
        for rank in (0, 1, 2, 4, 5)
    ]


def test_a_rank_of_another_host_that_dies_ends_the_job_and_is_named(
    hosts: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(DEATH.format(dead={5}))
    watch = [sys.executable, "-m", "nogil_loader.cli", "watch"]
    child = run([*hosts, *watch, sys.executable, str(script)])
    assert child.returncode != 0
    assert re.search(r"rank 5 of 6 \(host node3, pid \d+\) was killed by signal 9", child.stderr)

"""What the ranks of a node share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader import runtime
from nogil_loader.cluster.cores import once, workers_of
from nogil_loader.cluster.group import Ranks


@given(st.integers(1, 64), st.integers(1, 256))
def test_shares_add_up_to_the_cores_of_the_node(ranks: int, cores: int) -> None:
    shares = [workers_of(Ranks(r, ranks, r, ranks), cores, cores) for r in range(ranks)]
    assert min(shares) >= 1
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == max(cores, ranks)


def test_cores_that_the_launcher_gave_are_not_divided_again() -> None:
    assert workers_of(Ranks(0, 8, 0, 8), usable=16, machine=128) == 16


def test_a_rank_that_knows_no_neighbours_uses_what_it_has() -> None:
    assert workers_of(Ranks(0, 4)) == runtime.usable_cores()


def test_one_process_of_a_node_builds_while_the_others_wait(tmp_path: Path) -> None:
    program = """
import os, sys, time
from pathlib import Path
from nogil_loader.cluster.cores import once
folder = Path(sys.argv[1])
def build(new):
    (folder / f"built-by-{os.getpid()}").touch()
    time.sleep(0.2)
    new.write_text("whole")
print(once(folder / "index", build).read_text(), time.process_time())
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ranks = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    said = [rank.communicate(timeout=30)[0].split() for rank in ranks]
    assert [words[0] for words in said] == ["whole"] * 4
    assert len(list(tmp_path.glob("built-by-*"))) == 1


def test_when_building_fails_the_next_one_builds(tmp_path: Path) -> None:
    entered, fail = threading.Event(), threading.Event()

    def failing(_: Path) -> None:
        entered.set()
        fail.wait(10)
        raise OSError("disk full")

    errors = []

    def first() -> None:
        try:
            once(tmp_path / "index", failing)
        except OSError as error:
            errors.append(str(error))

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(10)
    fail.set()
    built = once(tmp_path / "index", lambda new: new.mkdir())
    thread.join()
    assert errors == ["disk full"]
    assert built.is_dir()
    assert not list(tmp_path.glob("*.part"))


def test_nothing_is_built_twice(tmp_path: Path) -> None:
    once(tmp_path / "index", lambda new: new.touch())
    once(tmp_path / "index", lambda new: pytest.fail("built again"))

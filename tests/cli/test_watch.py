"""``nogil-loader watch``: who died, in one line, and the same end for the launcher."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RANK = {"PMI_RANK": "2", "PMI_SIZE": "5"}


def start(*line: str, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI_", "SLURM_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "nogil_loader.cli", "watch", *line],
        env={**kept, "PYTHONPATH": str(ROOT), **(RANK if environ is None else environ)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def watch(*line: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    process = start(*line, environ=environ)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("ending", "status", "told"),
    [
        ("kill -9 $$", -9, "was killed by signal 9 (SIGKILL)"),
        ("kill -SEGV $$", -11, "was killed by signal 11 (SIGSEGV)"),
        ("kill -TERM $$", -15, "was killed by signal 15 (SIGTERM)"),
        ("exit 3", 3, "ended with exit status 3"),
    ],
)
def test_a_rank_that_dies_is_named_and_its_end_passed_on(
    ending: str, status: int, told: str
) -> None:
    code, out, err = watch("sh", "-c", f"echo $$; {ending}")
    assert code == status
    assert re.fullmatch(
        rf"rank 2 of 5 \(host \S+, pid {out.strip()}\) {re.escape(told)} after \d+\.\d s\n", err
    )


def test_a_rank_that_ends_well_is_not_spoken_of() -> None:
    assert watch("sh", "-c", "echo done") == (0, "done\n", "")


def test_a_process_that_no_launcher_started_is_named_so() -> None:
    _, _, err = watch("--", "false", environ={})
    assert err.startswith("the one process of this job (host ")


def test_launchers_that_disagree_do_not_hide_the_death() -> None:
    environ = {**RANK, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    code, _, err = watch("false", environ=environ)
    assert code == 1
    assert err.startswith("a rank that no launcher names (two launchers disagree")


def test_what_cannot_be_run_is_said() -> None:
    code, _, err = watch("no-such-program")
    assert code == 1
    assert "no-such-program: No such file or directory" in err
    assert watch()[0] == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_command(number: signal.Signals) -> None:
    trap = f"trap 'echo heard; exit 0' {number.name[3:]}; echo ready"
    process = start("sh", "-c", f"{trap}; while :; do sleep 0.05; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("heard\n", "")
    assert process.returncode == 0


def test_the_command_does_not_outlive_its_watch() -> None:
    """Its end of the pipe closes, and so it is gone."""
    process = start("sh", "-c", "echo ready; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    assert process.communicate(timeout=30) == ("", "")

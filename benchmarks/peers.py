"""The peers: how each is installed, and why one is left out.

Guarantees
- Each peer has an environment of its own, made once by ``environment`` under the user's cache
  folder, from wheels only; a peer whose wheels an interpreter lacks is left out by name.
- The versions that were measured are pinned here, so that a second run measures the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peer:
    """What to install, and on which interpreters it is tried, the first that works being taken.

    ``"this"`` is the interpreter that runs the benchmarks; other names are looked up on PATH.
    """

    name: str
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]


BASE = ("numpy>=2.1,<2.5", "pillow>=11.1,<12.3")
WITH_GIL = ("python3.13", "python3.12", "python3.11")
PEERS = {
    peer.name: peer
    for peer in (
        Peer("SPDL", ("spdl-core==0.8.0", *BASE), ("this",)),
        Peer("SPDL, GIL", ("spdl-core==0.8.0", *BASE), WITH_GIL),
        Peer("torch", ("torch==2.13.0", *BASE), WITH_GIL),
    )
}


class LeftOut(Exception):
    """A peer cannot be measured here; the message says why."""


def environment(name: str) -> str:
    """The Python of the peer's environment, which is made if it is missing.

    Raises ``LeftOut``. Makes one at a time: two processes that make the same one at once both
    do the work, and one of the results stays.
    """
    peer = PEERS[name]
    reasons = []
    for python in _interpreters(peer):
        recipe = hashlib.sha256(repr((peer.requirements, python)).encode()).hexdigest()[:16]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = cache / "nogil-loader" / "peers" / recipe
        if (home / "complete").exists():
            return str(home / "bin" / "python")
        print(f"installing {name} for {python}", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        install = ["-m", "pip", "--quiet", "install", "--only-binary=:all:", *peer.requirements]
        for command in ([python, "-m", "venv", str(home)], [str(home / "bin/python"), *install]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
                reasons.append(f"{python}: {lines[-1]}")
                break
        else:
            (home / "complete").touch()
            return str(home / "bin" / "python")
    raise LeftOut(f"{name} is left out: {'; '.join(reasons) or 'no interpreter for it here'}.")


def _interpreters(peer: Peer) -> Iterator[str]:
    for name in peer.pythons:
        path = sys.executable if name == "this" else shutil.which(name)
        if path is not None:
            yield path

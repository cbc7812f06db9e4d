"""The peers: how each is installed, and why one is left out.

``python -m benchmarks.peers [NAME…]`` makes the environments, all by default, and says for each
where it is or why there is none.

Guarantees
- A peer has an environment of its own, made once under the user's cache folder, from wheels
  only; peers with the same requirements on the same interpreter share one.
- An environment counts only when the peer was imported and run in it; a peer whose wheels an
  interpreter lacks, or that does not run, is left out by name and with the reason.
- The versions that are measured are pinned here, so that a second run measures the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nogil-loader"


@dataclass(frozen=True, slots=True)
class Peer:
    """What to install, on which interpreters it is tried, and what must run there.

    ``"this"`` is the interpreter that runs the benchmarks. ``$NAME`` is what that variable
    names. Other names are looked up on PATH, then among those that uv and pyenv keep. The first
    where everything works is taken. ``probe`` is Python code that fails where the peer does not
    work; ``kind`` says who does the work, for the reader of a table.
    """

    name: str
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]
    probe: str
    kind: str


BASE = ("numpy>=2.1,<2.5", "pillow>=11.1,<12.3")
ALONE = ("soundfile==0.14.0",)
"""Installed without what it requires: only the libsndfile in its wheel is used, as we use it."""
WITH_GIL = ("$GIL_PYTHON", "python3.13", "python3.12", "python3.11")
SPDL = "spdl-core==0.8.0"
TORCH = ("torch==2.13.0", "torchdata==0.11.0", "webdataset==1.0.2")
TORCH_PYTHONS = ("python3.11", *WITH_GIL)  # 3.11 first: the newest that has a CPU-only wheel
PICTURE = """
import io, spdl.pipeline, spdl.io
from PIL import Image
Image.new("RGB", (8, 8)).save(file := io.BytesIO(), "JPEG")
spdl.io.load_image(file.getvalue())
"""
"""SPDL io needs FFmpeg's libraries, which are no wheels: whether they are there, it tells."""
PEERS = {
    peer.name: peer
    for peer in (
        Peer("SPDL", (SPDL,), ("this",), "import spdl.pipeline", "threads, GIL off"),
        Peer("SPDL, GIL", (SPDL,), WITH_GIL, "import spdl.pipeline", "threads, GIL"),
        Peer(
            "SPDL io",
            (SPDL, "spdl-io==0.8.0"),
            ("this",),
            PICTURE,
            "threads, its own decoders over FFmpeg, GIL off",
        ),
        Peer(
            "dataloader-rs",
            ("dataloader-rs==0.1.0",),
            ("this",),
            "import dataloader_rs",
            "threads in Rust, GIL off; 0.1.0 is the last with wheels for this interpreter",
        ),
        Peer(
            "dataloader-rs, GIL",
            ("dataloader-rs==0.2.0",),
            WITH_GIL,
            "import dataloader_rs",
            "threads in Rust, GIL",
        ),
        Peer("torch", TORCH, TORCH_PYTHONS, "import torch.utils.data", "processes, GIL"),
        Peer(
            "torchdata", TORCH, TORCH_PYTHONS, "import torchdata.nodes", "threads, GIL: its nodes"
        ),
        Peer(
            "WebDataset",
            TORCH,
            TORCH_PYTHONS,
            "import webdataset",
            "processes of torch's DataLoader, GIL",
        ),
        Peer("Grain", ("grain==0.2.18",), WITH_GIL, "import grain", "processes, GIL"),
        Peer(
            "tf.data",
            ("tensorflow-cpu==2.21.0",),
            WITH_GIL,
            "import tensorflow",
            "threads in C++ that call the same Python, GIL",
        ),
    )
}


class LeftOut(Exception):
    """A peer cannot be measured here; the message says why."""


def environment(name: str) -> str:
    """The Python of the peer's environment, which is made if it is missing.

    Raises ``LeftOut``. Makes one at a time: two processes that make the same one at once both
    do the work, and one of the results stays. What failed is remembered too, for as long as the
    recipe is the same; removing the folder ``peers`` in the cache forgets it.
    """
    peer, reasons = PEERS[name], []
    for python in _interpreters(peer):
        recipe = hashlib.sha256(repr((peer.requirements, BASE, ALONE, python)).encode())
        home = CACHE / "peers" / recipe.hexdigest()[:16]
        complete, failed = home / "complete", home / "failed"
        if not complete.exists() and not failed.exists():
            print(f"installing {name} for {python}", file=sys.stderr, flush=True)
            if reason := _make(home, python, peer):
                failed.write_text(reason)
            else:
                complete.touch()
        if complete.exists():
            if reason := _run(str(home / "bin/python"), "-c", peer.probe):
                reasons.append(f"{Path(python).name}: {reason}")
                continue
            return str(home / "bin" / "python")
        reasons.append(f"{Path(python).name}: {failed.read_text()}")
    raise LeftOut(f"{name} is left out: {'; '.join(reasons) or 'no interpreter for it here'}.")


def join(pythons: dict[str, tuple[str, ...]], names: Mapping[str, str]) -> list[str]:
    """Add the Python of each peer, given as label: name of the peer, to those of the other
    subjects; returns why some are left out."""
    reasons = []
    for label, name in names.items():
        try:
            pythons[label] = (environment(name),)
        except LeftOut as reason:
            reasons.append(str(reason))
    return reasons


def _make(home: Path, python: str, peer: Peer) -> str:
    """Make the environment; the reason if it cannot be made."""
    shutil.rmtree(home, ignore_errors=True)
    install = ("-m", "pip", "--quiet", "install", "--only-binary=:all:")
    inside = str(home / "bin/python")
    return (
        _run(python, "-m", "venv", str(home))
        or _run(inside, *install, *peer.requirements, *BASE)
        or _run(inside, *install, "--no-deps", *ALONE)
    )


def _run(*command: str) -> str:
    """Nothing, or the last line that says why the command failed."""
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.returncode:
        return ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in said if "ERROR" in line or "Error" in line]
    return (errors or said or [f"status {done.returncode}"])[-1].strip()


def _interpreters(peer: Peer) -> Iterator[str]:
    """The interpreters to try, each once."""
    seen = set()
    for name in peer.pythons:
        for path in _called(name):
            real = os.path.realpath(path)
            if real not in seen and not _run(path, "-c", "import venv, ensurepip"):
                seen.add(real)
                yield path


def _called(name: str) -> Iterator[str]:
    if name == "this":
        yield sys.executable
    elif name.startswith("$"):
        yield from filter(None, [os.environ.get(name[1:])])
    else:
        yield from filter(None, [shutil.which(name)])
        home = Path.home()
        uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
        pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
        for folder in (pyenv, uv):
            yield from sorted(str(path) for path in folder.glob(f"*/bin/{name}"))


def main() -> int:
    """Make the environments that were named, all by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}")
    args = parser.parse_args()
    if unknown := set(args.names) - set(PEERS):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}: {', '.join(PEERS)}")
    for name in args.names or PEERS:
        try:
            print(f"{name}: {environment(name)}", flush=True)
        except LeftOut as reason:
            print(reason, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

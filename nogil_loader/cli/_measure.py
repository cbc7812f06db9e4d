"""Measuring in child processes, in turn, and what may be said about the numbers.

Guarantees
- Every measurement has a process of its own, so neither memory nor a GIL that an import
  switched on is carried from one to the next.
- Subjects take turns, forwards and backwards (A B C, C B A, …): a machine that slows down
  slows all of them, and a ratio is the median of ratios of neighbours.
- No ratio is given where what it would be compared with varied by more than ``UNSTEADY``.
- Whatever ends the parent's wait, Ctrl-C included, ends the child first.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median

from nogil_loader import __version__, runtime

UNSTEADY = 0.15
PACKAGE_PARENT = str(Path(__file__).parents[2])


class ChildFailed(RuntimeError):
    """A measurement's process failed; the message is the last line it wrote."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one process reported. Seconds and bytes; ``first`` is from the start of a run to
    its first batch, ``peak`` the most memory the process ever held. ``stages``: the seconds
    that each stage of the last pass was busy, a sample, where a report told."""

    samples: int
    wall: float
    cpu: float
    first: float
    peak: int
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.wall

    @property
    def cost(self) -> float:
        """CPU seconds a sample, over all threads."""
        return self.cpu / self.samples


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to measure: a name, the command of a Python, and what its child is asked."""

    name: str
    python: tuple[str, ...]
    question: Mapping[str, object]
    module: str = "nogil_loader.cli._workload"


def run_child(
    command: Sequence[str],
    *,
    timeout: float = 600,
    watch: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> dict[str, object]:
    """Run a command whose last line of output is a JSON object, and return that object.

    ``watch(process id)`` is entered while the command runs.
    """
    env = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE_PARENT, env.get("PYTHONPATH")]))
    child: subprocess.Popen[str] | None = None
    try:
        with _signals_held_back():
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
            )
        with watch(child.pid):
            out, err = child.communicate(timeout=timeout)
    finally:
        if child is not None:
            child.kill()  # does nothing to one that has ended
            with child:
                pass
    if child.returncode:
        said = [line for line in err.splitlines() if line.strip()]
        raise ChildFailed(said[-1] if said else f"status {child.returncode}, without a word")
    answer = json.loads(out.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Ctrl-C waits for the end of the block: a ``Popen`` that is interrupted between its fork
    and its return leaves a child that nobody knows of."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def measure(subject: Subject) -> Measurement:
    """One measurement of one subject."""
    question = json.dumps(subject.question)
    answer = run_child([*subject.python, "-m", subject.module, question])
    return Measurement(**answer)  # type: ignore[arg-type]


def take_turns(
    subjects: Sequence[Subject],
    rounds: int,
    tell: Callable[[int, int, Subject], None],
    measure: Callable[[Subject], Measurement] = measure,
) -> dict[str, list[Measurement]]:
    """``rounds`` measurements of each subject, by name. ``tell(done, of, next)`` before each."""
    found: dict[str, list[Measurement]] = {subject.name: [] for subject in subjects}
    for number in range(rounds):
        order = subjects if number % 2 == 0 else subjects[::-1]
        for place, subject in enumerate(order):
            tell(number * len(subjects) + place, rounds * len(subjects), subject)
            found[subject.name].append(measure(subject))
    return found


def spread(values: Sequence[float]) -> float:
    """How far the values lie apart, as a share of their median."""
    return (max(values) - min(values)) / median(values)


def ratio(over: Iterable[float], under: Sequence[float]) -> float | None:
    """The median of the ratios of each pair; None where ``under`` is unsteady."""
    if spread(under) > UNSTEADY:
        return None
    return median(a / b for a, b in zip(over, under, strict=True))


def machine() -> dict[str, object]:
    """What a reader needs to know about where the numbers come from."""
    versions = {}
    for name in ("numpy", "pillow", "soundfile", "cupy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _from_proc("cpuinfo", "model name"),
        "cores": runtime.usable_cores(),
        "memory": _from_proc("meminfo", "MemTotal"),
        "system": platform.platform(),
        "load": round(load, 2),
        "nogil_loader": __version__,
        "packages": versions,
    }


def _from_proc(file: str, key: str) -> str:
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return "unknown"
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(key))
    return next(found, "unknown")


_IDENTIFY = """
import importlib.util, json, platform, sysconfig
options = (sysconfig.get_config_var("CONFIG_ARGS") or "").replace("'", "").split()
ignored = ("--prefix", "--disable-gil", "--with-ensurepip")
print(json.dumps({
    "version": platform.python_version(),
    "compiler": platform.python_compiler(),
    "options": sorted(option for option in options if not option.startswith(ignored)),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "modules": [name for name in ("numpy", "PIL") if importlib.util.find_spec(name)],
}))
"""


def identify(python: str) -> dict[str, object]:
    """Version, compiler and build options of an interpreter, and which packages it has."""
    return run_child([python, "-c", _IDENTIFY], timeout=60)


def reference_python() -> str | None:
    """The same interpreter with a GIL, where one is known.

    ``NOGIL_LOADER_REFERENCE`` names its executable; else the newest environment that
    ``ci/reference`` made is taken.
    """
    named = os.environ.get("NOGIL_LOADER_REFERENCE")
    if named is not None:
        return named or None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nogil-loader")
    made = [path for path in cache.glob("env/reference-*/bin/python") if path.exists()]
    return str(max(made, key=lambda path: path.lstat().st_mtime)) if made else None


def like_for_like(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Same version, compiler and build options, so that only the GIL differs."""
    return all(one[key] == other[key] for key in ("version", "compiler", "options"))


def this_python(*options: str) -> tuple[str, ...]:
    """The command of this interpreter."""
    return (sys.executable, *options)

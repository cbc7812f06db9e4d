"""Which interpreter this is, whether its threads run at the same time, and on how many cores.

Guarantees
- Every function may be called from any thread at any time; none holds a lock while it works.
- Asking costs microseconds to milliseconds; only ``gil_culprits`` starts a child process.
- ``guard`` warns at most once per process, and only where an import switched the GIL on for
  good: while any extension is being loaded the GIL is on for that moment, and says nothing.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import warnings
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path, PurePosixPath
from types import FrameType

REQUIRE = "NOGIL_LOADER_REQUIRE_NOGIL"


class GilWarning(RuntimeWarning):
    """The GIL of a free-threaded build is on, because an import switched it on."""


class GilRequiredError(RuntimeError):
    """``NOGIL_LOADER_REQUIRE_NOGIL=1`` is set and the GIL is on."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """``gil_reason``: ``"off"``, ``"build"`` (this build always has a GIL), ``"asked"``
    (``PYTHON_GIL=1`` or ``-X gil=1``) or ``"import"``."""

    version: str
    free_threaded: bool
    gil: bool
    gil_reason: str
    cores: int


def interpreter() -> Interpreter:
    """The facts about this process, now."""
    build, gil = free_threaded(), gil_enabled()
    asked = "asked" if gil_asked_for() else "import"
    reason = "off" if not gil else asked if build else "build"
    version = ".".join(map(str, sys.version_info[:3])) + ("t" if build else "")
    return Interpreter(version, build, gil, reason, usable_cores())


def free_threaded() -> bool:
    """True on a build that can run without a GIL (3.13t and later ``t`` builds)."""
    import sysconfig

    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def gil_enabled() -> bool:
    """True where the GIL is on at this moment: an import may switch it on later, never off."""
    probe = getattr(sys, "_is_gil_enabled", None)
    return probe is None or bool(probe())


def gil_asked_for() -> bool:
    """True where ``-X gil=1`` or, without ``-X gil``, ``PYTHON_GIL=1`` keeps the GIL on."""
    env = None if sys.flags.ignore_environment else os.environ.get("PYTHON_GIL")
    return sys._xoptions.get("gil", env) == "1"


def usable_cores() -> int:
    """How many cores this process may keep busy: at least 1.

    The smaller of its CPU affinity (in whose place ``PYTHON_CPU_COUNT`` may stand on 3.13 and
    newer) and its control group's quota, rounded up; not the number of cores in the machine.
    """
    cores = getattr(os, "process_cpu_count", os.cpu_count)()
    if sys.version_info < (3, 13) and hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores or 1, math.ceil(cpu_quota() or sys.maxsize)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """How many cores' worth of time the control groups grant, or None without a limit.

    A group may not exceed any of its ancestors: the smallest quota up to the top of each
    mounted hierarchy (version 1 or 2) holds. ``root`` is the folder that holds ``proc``.
    Source: the kernel's cgroup-v2.rst (``cpu.max``) and sched-bwc.rst (``cpu.cfs_quota_us``).
    """
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    quotas, paths = [], {}  # controller -> path of our group; "" stands for version 2
    for line in own:
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    for line in mounts:
        before, _, after = line.partition(" - ")
        top, point = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        if kind != "cgroup2" and not (kind == "cgroup" and "cpu" in options.split(",")):
            continue
        group = PurePosixPath(paths.get("" if kind == "cgroup2" else "cpu", "/"))
        # In a container the mount may begin at our own group instead of the hierarchy's top.
        inner = group.relative_to(top) if group.is_relative_to(top) else PurePosixPath()
        quotas += [_quota(root / point.lstrip("/") / up) for up in (inner, *inner.parents)]
    return min((quota for quota in quotas if quota), default=None)


def _quota(folder: Path) -> float | None:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
        except OSError:
            continue
        return None if quota in ("max", "-1") else int(quota) / int(period)
    return None


def guard() -> None:
    """Called when a run starts: speak up where threads cannot run at the same time.

    Raises ``GilRequiredError`` where ``NOGIL_LOADER_REQUIRE_NOGIL=1`` and the GIL is on, why
    ever. Else issues one ``GilWarning`` per process where an import did it, naming the module.
    Where another thread is just loading an extension, it is for the next run to say.
    """
    by_import = free_threaded() and not gil_asked_for()
    if not gil_enabled() or (by_import and _loading()):
        return
    if os.environ.get(REQUIRE) == "1":
        raise GilRequiredError(f"{REQUIRE}=1, but {_why()}")
    if by_import and _WARNED.acquire(blocking=False):
        why = _why()
        if not gil_enabled() or _loading():
            _WARNED.release()
            return
        try:
            warnings.warn(f"{why}: threads take turns", GilWarning, stacklevel=3)
        except GilWarning:
            _WARNED.release()  # warnings are errors here: the next run has to fail as well
            raise


def _loading() -> bool:
    """Whether some thread is inside the loading of an extension module at this moment.

    CPython holds the GIL from before the module's init function until it knows what the module
    declares (``_imp_create_dynamic_impl`` in ``Python/import.c``).
    """
    create = ExtensionFileLoader.create_module.__code__
    for frame in sys._current_frames().values():
        above: FrameType | None = frame
        while above is not None:
            if above.f_code is create:
                return True
            above = above.f_back
    return False


# A lock that is taken once and kept: of any number of racing threads exactly one gets it.
_WARNED = threading.Lock()


def _why() -> str:
    if not free_threaded():
        return f"this build of Python {sys.version.split()[0]} always has a GIL: use python3.13t"
    if gil_asked_for():
        return "PYTHON_GIL=1 or -X gil=1 keeps the GIL on: start Python without it"
    name = next(iter(gil_culprits(limit=1)), None)
    return f"importing {name or 'a module that could not be identified'} switched the GIL on"


# CPython looks at what a module declares when it is created. Its body does not run then, so
# each is tried without those that it imports.
_PROBE = """
import importlib.util, json, sys
sys.path[:], modules = json.load(sys.stdin)
for name, file in modules:
    print(name, flush=True)
    try:
        importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, file))
    except BaseException:
        pass  # what cannot be created alone cannot be blamed
    if sys._is_gil_enabled():
        sys.exit("*")
"""


def gil_culprits(limit: int | None = None) -> tuple[str, ...]:
    """The loaded extension modules that switch the GIL on, in the order of their import.

    Each is created alone in a child process that begins with the GIL off, until ``limit`` are
    found. Empty on GIL builds, and where this program is no Python. Takes about 0.1 s.
    """
    import json
    import subprocess
    from functools import partial
    from importlib.machinery import EXTENSION_SUFFIXES

    if not free_threaded() or not Path(sys.executable or "").name.startswith("python"):
        return ()
    left = [
        (name, file)
        for name, module in list(sys.modules.items())
        if (file := getattr(getattr(module, "__spec__", None), "origin", None))
        and str(file).endswith(tuple(EXTENSION_SUFFIXES))
    ]
    env = {key: value for key, value in os.environ.items() if key != "PYTHON_GIL"}
    command = [sys.executable, "-W", "ignore", "-c", _PROBE]
    ask = partial(subprocess.run, command, capture_output=True, env=env, text=True, timeout=30)
    found: list[str] = []
    while left and (limit is None or len(found) < limit):
        try:
            child = ask(input=json.dumps([sys.path, left]))
        except subprocess.TimeoutExpired:
            break  # a module that hangs when it is alone: what was found before it stands
        tried = child.stdout.split()
        if child.stderr.endswith("*\n"):
            found.append(tried[-1])
        left = left[len(tried) or len(left) :]  # a crash counts as tried; no word at all ends it
    return tuple(found)

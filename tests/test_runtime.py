"""What the interpreter is, and that a GIL switched on by an import is noticed and named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from nogil_loader import runtime

ROOT = Path(__file__).parents[1]

free_threaded_only = pytest.mark.skipif(
    not runtime.free_threaded(), reason="needs a free-threaded build"
)


def python(code: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a child process that sees this checkout."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON_")}
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


EXTENSION = """
#include <Python.h>
static PyModuleDef_Slot slots[] = {%(slots)s {0, NULL}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "%(name)s", .m_slots = slots};
PyMODINIT_FUNC PyInit_%(name)s(void) { %(first)s return PyModuleDef_Init(&def); }
"""


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two extension modules: ``careless`` says nothing about the GIL, ``careful``
    does without it, and takes until ``gate.leave`` is set to be loaded."""
    compiler = shutil.which("cc")
    include = Path(sysconfig.get_path("include"))
    if compiler is None or not (include / "Python.h").exists():
        pytest.skip("needs a C compiler and Python.h")
    folder = tmp_path_factory.mktemp("careless")
    (folder / "gate.py").write_text(
        "from threading import Event\ninside, leave = Event(), Event()\n"
    )
    wait = 'PyRun_SimpleString("import gate; gate.inside.set(); gate.leave.wait()");'
    for name, slots, first in [
        ("careless", "", ""),
        ("careful", "{Py_mod_gil, Py_MOD_GIL_NOT_USED},", wait),
    ]:
        source = folder / f"{name}.c"
        source.write_text(EXTENSION % {"name": name, "slots": slots, "first": first})
        target = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        command = [compiler, "-shared", "-fPIC", f"-I{include}", source, "-o", target]
        subprocess.run(command, check=True)
    return folder


def test_the_build_and_the_gil_agree_with_the_interpreter() -> None:
    assert runtime.free_threaded() == ("t" in sys.abiflags)
    facts = runtime.interpreter()
    assert facts.gil == runtime.gil_enabled()
    assert facts.version.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert facts.version.endswith("t") == facts.free_threaded
    if not facts.free_threaded:
        assert (facts.gil, facts.gil_reason) == (True, "build")


@free_threaded_only
@pytest.mark.parametrize(
    ("options", "env", "reason"),
    [
        ((), {}, "off"),
        (("-X", "gil=1"), {}, "asked"),
        (("-X", "gil=0"), {"PYTHON_GIL": "1"}, "off"),
        ((), {"PYTHON_GIL": "1"}, "asked"),
    ],
)
def test_a_gil_that_the_user_asked_for_is_told_from_one_that_an_import_brought(
    options: tuple[str, ...], env: dict[str, str], reason: str
) -> None:
    code = (
        "from nogil_loader import runtime; runtime.guard(); print(runtime.interpreter().gil_reason)"
    )
    child = python(code, "-W", "error", *options, **env)
    assert (child.stdout.strip(), child.stderr) == (reason, "")


@free_threaded_only
def test_the_import_that_switched_the_gil_on_is_named_among_many(careless: Path) -> None:
    code = (
        "import _json, _csv, careless, numpy; from nogil_loader import runtime;"
        " print(runtime.gil_culprits(), runtime.interpreter().gil_reason)"
    )
    child = python(code, PYTHONPATH=os.pathsep.join([str(ROOT), str(careless)]))
    assert child.stdout.strip() == "('careless',) import"


@free_threaded_only
def test_racing_runs_warn_once_and_name_the_module(careless: Path) -> None:
    code = """
import careless, threading, warnings
from nogil_loader import runtime
warnings.simplefilter("always")
gate = threading.Barrier(8)
def race():
    gate.wait()
    runtime.guard()
threads = [threading.Thread(target=race) for _ in range(8)]
for t in threads: t.start()
for t in threads: t.join()
"""
    child = python(code, PYTHONPATH=os.pathsep.join([str(ROOT), str(careless)]))
    assert child.returncode == 0
    assert child.stderr.count("GilWarning") == 1
    assert "importing careless switched the GIL on" in child.stderr


@free_threaded_only
@pytest.mark.parametrize("env", [{}, {runtime.REQUIRE: "1"}])
def test_the_moment_in_which_another_thread_loads_an_extension_is_no_reason_to_warn(
    careless: Path, env: dict[str, str]
) -> None:
    code = """
import gate, sys, threading
from nogil_loader import runtime
thread = threading.Thread(target=__import__, args=("careful",))
thread.start()
gate.inside.wait()
print(runtime.gil_enabled())
runtime.guard()
gate.leave.set()
thread.join()
print(runtime.gil_enabled())
runtime.guard()
del sys.modules["careful"]  # which would wait once more where it is tried alone
import careless
runtime.guard()
"""
    path = os.pathsep.join([str(ROOT), str(careless)])
    ignored = "ignore:The global interpreter lock:RuntimeWarning"
    child = python(code, "-W", "error", "-W", ignored, PYTHONPATH=path, **env)
    assert child.stdout.split() == ["True", "False"]
    assert "importing careless switched the GIL on" in child.stderr


@free_threaded_only
def test_a_warning_that_is_an_error_fails_every_run(careless: Path) -> None:
    code = """
import careless
from nogil_loader import runtime
for _ in range(2):
    try: runtime.guard()
    except runtime.GilWarning: print("failed")
"""
    path = os.pathsep.join([str(ROOT), str(careless)])
    child = python(code, "-W", "ignore", "-W", "error:importing:RuntimeWarning", PYTHONPATH=path)
    assert child.stdout.split() == ["failed", "failed"]


def test_requiring_no_gil_is_an_error_exactly_where_the_gil_is_on() -> None:
    code = "from nogil_loader import runtime; runtime.guard(); print('ran')"
    child = python(code, **{runtime.REQUIRE: "1"})
    if runtime.free_threaded():
        assert child.stdout.strip() == "ran"
        child = python(code, "-X", "gil=1", **{runtime.REQUIRE: "1"})
        assert "start Python without it" in child.stderr
    assert child.returncode == 1
    assert "GilRequiredError: NOGIL_LOADER_REQUIRE_NOGIL=1, but" in child.stderr


@free_threaded_only
def test_requiring_no_gil_names_the_import(careless: Path) -> None:
    code = "import careless; from nogil_loader import runtime; runtime.guard()"
    path = os.pathsep.join([str(ROOT), str(careless)])
    child = python(code, "-W", "ignore", PYTHONPATH=path, **{runtime.REQUIRE: "1"})
    assert "but importing careless switched the GIL on" in child.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity (Linux)")
def test_usable_cores_follow_the_affinity() -> None:
    code = (
        "import os; from nogil_loader import runtime;"
        " os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); print(runtime.usable_cores())"
    )
    assert python(code).stdout.strip() == "1"
    assert 1 <= runtime.usable_cores() <= len(os.sched_getaffinity(0))


MOUNT = "24 1 0:22 {top} {point} rw,relatime - {kind} {kind} {options}\n"


def machine(root: Path, own: str, mounts: str, files: dict[str, str]) -> Path:
    """A root folder whose ``proc`` and control groups say this."""
    for name, text in {"proc/self/cgroup": own, "proc/self/mountinfo": mounts, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def mount(kind: str, point: str, top: str = "/", options: str = "rw") -> str:
    return MOUNT.format(kind=kind, point=point, top=top, options=options)


def test_a_version_2_group_is_bound_by_its_tightest_ancestor(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/user/job\n",
        mount("cgroup2", "/sys/fs/cgroup"),
        {
            "sys/fs/cgroup/user/job/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/user/cpu.max": "150000 100000\n",
        },
    )
    assert runtime.cpu_quota(root) == 1.5


def test_a_version_2_group_without_limit_has_no_quota(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/job\n",
        mount("cgroup2", "/sys/fs/cgroup"),
        {"sys/fs/cgroup/job/cpu.max": "max 100000\n"},
    )
    assert runtime.cpu_quota(root) is None


def test_a_version_1_group_reads_quota_and_period(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/job"
    root = machine(
        tmp_path,
        "4:memory:/other\n3:cpu,cpuacct:/job\n",
        mount("tmpfs", "/sys/fs/cgroup")
        + mount("cgroup", "/sys/fs/cgroup/memory", options="rw,memory")
        + mount("cgroup", "/sys/fs/cgroup/cpu,cpuacct", options="rw,cpu,cpuacct"),
        {f"{folder}/cpu.cfs_quota_us": "50000\n", f"{folder}/cpu.cfs_period_us": "100000\n"},
    )
    assert runtime.cpu_quota(root) == 0.5


def test_a_container_whose_mount_begins_at_its_own_group_is_understood(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/docker/abc\n",
        mount("cgroup2", "/sys/fs/cgroup", top="/docker/abc"),
        {"sys/fs/cgroup/cpu.max": "300000 100000\n"},
    )
    assert runtime.cpu_quota(root) == 3.0


def test_a_machine_without_procfs_has_no_quota(tmp_path: Path) -> None:
    assert runtime.cpu_quota(tmp_path) is None

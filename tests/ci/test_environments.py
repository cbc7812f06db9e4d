"""ci/nogil and its twins: what they find, what they refuse, what they leave alone.

Nothing is built here; ci/test itself, which runs these tests in an environment that ci/nogil
or ci/gil made, is the proof that building works.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
SCRIPTS = ["ci/nogil", "ci/gil", "ci/reference", "ci/test", "ci/soak", ".ci/run"]

needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt-get is not here")


def bash(
    code: str, *arguments: str, cache: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run shell code that has the functions of ci/lib, with a cache of its own."""
    return subprocess.run(
        ["bash", "-c", f'source "{ROOT}/ci/lib"; {code}', "ci/lib", *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def interpreter() -> str:
    """The interpreter below the environment that this test runs in."""
    return os.path.realpath(sys.executable)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_run_and_parsed(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_a_command_is_required(tmp_path: Path) -> None:
    result = subprocess.run(["ci/nogil"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "usage: ci/nogil COMMAND" in result.stderr


def test_an_interpreter_is_known_by_what_it_is(tmp_path: Path) -> None:
    mine, other = ("free-threaded", "ordinary")[:: 1 if FREE_THREADED else -1]
    code = 'is_python "$1" "$2" && echo "$PYTHON"'
    good = bash(code, sys.executable, mine, cache=tmp_path)
    assert good.stdout.strip() == interpreter()
    assert bash(code, sys.executable, other, cache=tmp_path).returncode != 0
    assert bash(code, "/bin/true", mine, cache=tmp_path).returncode != 0


@pytest.mark.skipif(FREE_THREADED, reason="needs an ordinary interpreter to refuse")
def test_a_named_interpreter_of_the_wrong_kind_is_refused_by_name(tmp_path: Path) -> None:
    result = bash("python_nogil", cache=tmp_path, NOGIL_PYTHON=sys.executable)
    assert result.returncode == 1
    assert f"NOGIL_PYTHON={sys.executable} is no free-threaded CPython" in result.stderr


@pytest.mark.skipif(not FREE_THREADED, reason="needs a free-threaded interpreter to find")
@pytest.mark.parametrize("place", ["path", "uv", "pyenv", "ours"])
def test_a_free_threaded_interpreter_is_found_wherever_it_may_be(
    place: str, tmp_path: Path
) -> None:
    name = f"python{sysconfig.get_python_version()}t"
    folder = {
        "path": tmp_path / "bin",
        "uv": tmp_path / "uv" / "cpython-3.13.5+freethreaded-linux-x86_64-gnu" / "bin",
        "pyenv": tmp_path / "pyenv" / "versions" / "3.13.5t" / "bin",
        "ours": tmp_path / "nogil-loader" / "python" / "nogil" / "bin",
    }[place]
    folder.mkdir(parents=True)
    (folder / name).symlink_to(interpreter())
    variables = {
        "HOME": str(tmp_path),
        "NOGIL_PYTHON": "",
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "UV_PYTHON_INSTALL_DIR": str(tmp_path / "uv"),
        "PYENV_ROOT": str(tmp_path / "pyenv"),
    }
    code = 'build() { die "would build"; }; python_nogil; echo "$PYTHON"'
    result = bash(code, cache=tmp_path, **variables)
    assert result.stdout.strip() == interpreter(), result.stderr


def test_what_a_killed_build_left_is_neither_believed_nor_kept(tmp_path: Path) -> None:
    left = tmp_path / "nogil-loader" / "stage.python-nogil.abc123"
    binary = left / "root" / "bin"
    binary.mkdir(parents=True)
    (binary / "python3.13t").symlink_to(interpreter())
    code = 'is_python "$CACHE/python/nogil/bin/python3.13t" free-threaded || echo none'
    assert bash(code, cache=tmp_path).stdout == "none\n"
    result = bash('lock python-nogil; stage python-nogil; basename "$STAGE"', cache=tmp_path)
    assert result.stdout.startswith("stage.python-nogil.")
    assert [path.name for path in (tmp_path / "nogil-loader").iterdir()] == ["locks"]


def test_an_environment_is_believed_only_when_complete(tmp_path: Path) -> None:
    """A stamp that names a folder which lost its last file makes the environment anew."""
    code = """
        python_nogil() { PYTHON=/python; }
        make_environment() {
            mkdir -p "$1/bin"; : >"$1/bin/python"; chmod +x "$1/bin/python"
            printf '%s\\n' "$ROOT" >"$1/complete"; echo made
        }
        environment nogil a,b; environment nogil a,b; rm "$ENVIRONMENT/complete"
        environment nogil a,b
    """
    result = bash(code, cache=tmp_path)
    assert result.stdout == "made\nmade\n", result.stderr


def test_environments_of_checkouts_that_are_gone_go_too(tmp_path: Path) -> None:
    here, gone = (tmp_path / "nogil-loader" / "env" / f"nogil-{name}" for name in ("a", "b"))
    for folder, checkout in ((here, str(ROOT)), (gone, str(tmp_path / "no-such-checkout"))):
        folder.mkdir(parents=True)
        (folder / "complete").write_text(checkout + "\n")
    result = bash("forget_environments nogil", cache=tmp_path)
    assert result.returncode == 0, result.stderr
    assert here.exists()
    assert not gone.exists()


def test_two_at_once_take_turns_and_the_second_says_that_it_waits(tmp_path: Path) -> None:
    code = """
        hold() {
            lock thing
            echo "in $1" >>"$CACHE/log"
            [[ $1 == 1 ]] && { echo holding; read -r; }
            echo "out $1" >>"$CACHE/log"
            unlock
        }
        hold "$1"
    """
    command = ["bash", "-c", f'source "{ROOT}/ci/lib"; {code}', "ci/lib"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    first = subprocess.Popen([*command, "1"], env=env, stdin=pipe, stdout=pipe, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "holding\n"
    second = subprocess.Popen([*command, "2"], env=env, stderr=pipe, text=True)
    assert second.stderr is not None
    assert "waiting for another run" in second.stderr.readline()
    first.communicate("\n", timeout=30)
    second.communicate(timeout=30)
    log = (tmp_path / "nogil-loader" / "log").read_text().split("\n")
    assert log == ["in 1", "out 1", "in 2", "out 2", ""]


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    """Even while a command that it started goes on."""
    code = 'lock thing; sleep 600 >/dev/null 2>&1 9>&- & echo "$!"; kill -9 $$'
    killed = bash(code, cache=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    try:
        result = bash("lock thing; echo mine", cache=tmp_path)
    finally:
        os.kill(int(killed.stdout), signal.SIGKILL)
    assert result.stdout == "mine\n"
    assert "waiting" not in result.stderr


@needs_apt
def test_mirrors_are_read_from_both_styles_of_apt_configuration(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://commented.invalid/debian bookworm main\n"
        "deb [arch=amd64 trusted=yes] http://old.invalid/debian bookworm main\n"
        "deb http://old.invalid/debian-security bookworm-security main\n"
    )
    (parts / "new.sources").write_text(
        "Types: deb\nURIs: http://new.invalid/debian\nSuites: trixie trixie-updates\n"
        "Components: main contrib\nTrusted: yes\n"
    )
    (tmp_path / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list";\n'
        f'Dir::Etc::sourceparts "{parts}";\nDir::State::lists "{tmp_path}/lists";\n'
    )
    result = bash("debian_mirrors", cache=tmp_path, APT_CONFIG=str(tmp_path / "apt.conf"))
    assert result.stdout.split() == ["http://new.invalid/debian", "http://old.invalid/debian"]


@needs_apt
def test_apt_keeps_its_lists_below_the_cache(tmp_path: Path) -> None:
    result = bash(
        'apt-config -c "$(apt_private "$CACHE/apt")" shell L Dir::State::lists/d C Dir::Cache/d '
        "S Dir::Etc::sourcelist/f",
        cache=tmp_path,
    )
    private = tmp_path / "nogil-loader" / "apt"
    assert f"L='{private}/lists/'" in result.stdout
    assert f"C='{private}/cache/'" in result.stdout
    assert str(private) not in result.stdout.split("S=")[1]


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="dpkg is not here")
def test_missing_packages_are_named(tmp_path: Path) -> None:
    assert bash("missing dpkg no-such-package", cache=tmp_path).stdout == "no-such-package "


@needs_apt
def test_who_may_not_install_is_told_what_to_install() -> None:
    code = "BUILD_PACKAGES=(dpkg no-such-package); build nogil"
    command = ["bash", "-c", f'source "{ROOT}/ci/lib"; {code}', "ci/nogil"]
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
        if not all(path.stat().st_mode & 0o001 for path in (ROOT, *ROOT.parents)):
            pytest.skip("the checkout is closed to other users than root")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        result = subprocess.run(
            command,
            env={**os.environ, "XDG_CACHE_HOME": folder},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert result.returncode == 1
    assert "these Debian packages are missing: no-such-package." in result.stderr


@pytest.mark.skipif(
    "nogil-loader/env/" not in sys.prefix, reason="only where ci/nogil or ci/gil made this"
)
def test_the_second_call_costs_less_than_300_ms() -> None:
    script = "ci/nogil" if FREE_THREADED else "ci/gil"

    def call() -> float:
        start = time.perf_counter()
        subprocess.run([script, "true"], cwd=ROOT, check=True, timeout=60)
        return time.perf_counter() - start

    assert min(call() for _ in range(5)) < 0.3


def test_no_file_names_the_host_of_a_registry() -> None:
    """Where packages come from is for the machine's own configuration to say."""
    hosts = ("deb.debian" + ".org", "pypi" + ".org", "pythonhosted" + ".org", "snapshot.debian")
    files = [path for folder in ("ci", ".ci") for path in (ROOT / folder).iterdir()]
    for path in [*files, ROOT / "pyproject.toml", ROOT / "README.md"]:
        if path.is_file():
            assert not [host for host in hosts if host in path.read_text()], path

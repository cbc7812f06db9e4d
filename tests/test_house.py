"""The order of the house: which room may import which, and what a plain import costs.

The order is the one that ``docs/design.md`` states; it is checked on the source, so that an
import inside a function or under ``TYPE_CHECKING`` counts like any other.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nogil_loader"

ROOMS = (
    *(
        "testing",
        "cli",
        "torch",
        "start",
        "pipeline",
        "isolated",
        "epochs",
        "session",
        "mixture",
        "streams",
        "plan",
        "stages",
    ),
    *("engine", "engine.core", "engine.errors"),
    *(
        "observe",
        "cluster",
        "fallback",
        "device",
        "sources",
        "decode",
        "caches",
        "position",
        "runtime",
    ),
)
"""From top to bottom. A room imports itself and rooms that come later."""

ONLY_FROM = {"testing": {"cli"}}
"""Fakes and sample media are for tests and for the bench command, not for the library."""

CORE = (
    "start",
    "pipeline",
    "epochs",
    "session",
    "mixture",
    "streams",
    "stages",
    "plan",
    "engine",
    "position",
    "runtime",
)
"""What imports NumPy and the standard library only, and stays small enough to be read."""

CORE_LINES = 7450
"""Lines with code on them; docstrings, comments and blank lines are free."""

PURE = ("plan", "stages", "engine.core", "engine.errors", "position")
"""No thread, clock, file or connection is in reach of these."""

IMPURE_MODULES = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "threading", "time"),
    *("os", "pathlib", "select", "signal", "socket", "subprocess", "tempfile"),
}

TOP_LEVEL = {
    *("nogil_loader", "tests", "ci", "benchmarks", "docs"),
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"),
}

EXTRAS = {
    *("PIL", "soundfile", "_soundfile_data", "cffi", "obstore", "pyarrow", "cupy", "mpi4py"),
    *("rich", "matplotlib", "torch", "jax", "psutil", "spdl"),
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    """``nogil_loader/decode/_image.py`` is ``decode._image``."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that a module imports, wherever it does so."""
    package = ["nogil_loader", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            for alias in node.names:
                yield node.lineno, ".".join([*base, *filter(None, [node.module]), alias.name])


def room_of(name: str) -> str | None:
    """The room of ``decode._image`` is ``decode``; None for the package's own front."""
    rooms = [room for room in ROOMS if within(name, room)]
    return max(rooms, key=len, default=None)


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def code_lines(path: Path) -> int:
    """How many lines carry code."""
    source = path.read_text()
    docstrings = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    }
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def python(code: str) -> str:
    """What the code prints in a fresh interpreter."""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_module_is_in_a_room() -> None:
    homeless = [dotted(path) for path in modules() if room_of(dotted(path)) is None]
    assert homeless == [""], "give these a place in ROOMS here and in docs/design.md"


def test_the_documented_order_is_the_one_that_is_checked() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    stated = re.search(r"Order, top to bottom:\s*`([^`]+)`", text)
    assert stated is not None
    names = [word.strip() for word in re.sub(r"\([^)]*\)", "", stated[1]).split(",")]
    assert names == [room for room in ROOMS if room in names]
    assert set(names) >= {room for room in ROOMS if "." not in room} - {"testing"}


def test_rooms_import_only_rooms_below_them() -> None:
    wrong = []
    for path in modules():
        here = room_of(dotted(path))
        for line, name in imports(path):
            there = room_of(name.removeprefix("nogil_loader."))
            if not within(name, "nogil_loader") or None in (here, there) or here == there:
                continue
            if ROOMS.index(there) < ROOMS.index(here) and here not in ONLY_FROM.get(there, ()):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {here} imports {there}")
    assert not wrong, "\n".join(wrong)


def test_nothing_but_the_bench_command_imports_the_fakes() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        for line, name in imports(path)
        if within(name, "nogil_loader.testing")
        and room_of(dotted(path)) not in {"testing", *ONLY_FROM["testing"]}
    ]
    assert not wrong


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_reach_no_thread_clock_or_file(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules()
        if within(dotted(path), room)
        for line, name in imports(path)
        if name.split(".")[0] in IMPURE_MODULES
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_imports_numpy_and_the_standard_library_only() -> None:
    allowed = {"nogil_loader", "numpy", *sys.stdlib_module_names}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules()
        if any(within(dotted(path), room) for room in CORE)
        for line, name in imports(path)
        if name.split(".")[0] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_stays_small_enough_to_be_read() -> None:
    core = [path for path in modules() if any(within(dotted(path), room) for room in CORE)]
    assert 0 < sum(map(code_lines, core)) < CORE_LINES
    assert f"below {CORE_LINES:,} lines" in (ROOT / "docs" / "design.md").read_text()


def test_torch_and_jax_are_imported_by_the_adapter_named_after_them_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in modules()
        for line, name in imports(path)
        if (module := name.split(".")[0]) in {"torch", "jax"}
        and room_of(dotted(path)) != module
        and dotted(path) != "cluster." + module
    ]
    assert not wrong, "\n".join(wrong)


def test_there_is_no_asyncio() -> None:
    named = [path for path in modules() if "asyncio" in path.read_text()]
    assert not named


def test_a_plain_import_brings_no_extra() -> None:
    loaded = set(python("import sys, nogil_loader; print(*sys.modules)").split())
    assert "numpy" in loaded
    assert not {name for name in loaded if name.split(".")[0] in EXTRAS | {"asyncio"}}


def test_the_top_level_holds_what_the_design_lists() -> None:
    if (ROOT / ".git").exists():
        git = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", "ls-files"]
        names = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\n")
        found = {name.split("/")[0] for name in names if name}
    else:
        found = {path.name for path in ROOT.iterdir()}
    assert {name for name in found if not name.startswith(".")} == TOP_LEVEL

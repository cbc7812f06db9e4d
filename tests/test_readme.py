"""The README and the pages in docs are executed, as a reader would who follows along.

Python blocks of a page run from top to bottom in one child process, in a folder with sample
data; what a block defines is there for the next one. A block is passed over only with a stated
reason, in a comment right above it: ``<!-- not run: needs a GPU -->``. Of shell blocks, every
command must exist.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import nogil_loader as nl
from nogil_loader import cluster, decode, device
from nogil_loader.testing import media

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

FOLLOW = """
import doctest, json, sys
page, blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
for line, code in blocks:
    if code.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(code, names, page, page, line)
        failures = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
        assert not failures.failed
        names.update(test.globs)
    else:
        exec(compile("\\n" * line + code, page, "exec"), names)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: ``line`` is that of its opening fence, counted from 1."""

    line: int
    language: str
    code: str
    reason: str | None


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        yield Block(line, match["language"], match["code"], match["reason"])


def sample_data(folder: Path) -> None:
    """What the pages speak of."""
    media.write_photos(folder / "train", 40, size=(128, 96))
    media.write_json_lines(folder / "documents.jsonl", 100)
    media.write_clips(folder / "clips", 16, seconds=0.2)
    media.write_arrays(folder / "arrays", 16, shape=(16, 8))
    members = [(f"{i:06}.jpg", media.photo(i, size=(128, 96))) for i in range(40)]
    for shard in range(2):
        media.write_tar(folder / "shards" / f"{shard:03}.tar", members[20 * shard :][:20])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    code = [
        (block.line, block.code)
        for block in blocks(page)
        if block.language == "python" and block.reason is None
    ]
    if not code:
        return
    sample_data(tmp_path)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", FOLLOW],
        input=json.dumps([str(page), code]),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_readme_has_blocks_to_run() -> None:
    runs = [block for block in blocks(ROOT / "README.md") if block.reason is None]
    assert {"python", "bash"} <= {block.language for block in runs}


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_name_commands_that_exist(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tools = {re.split("[^a-z]", tool)[0] for tool in project["optional-dependencies"]["lint"]}
    known = {*project["scripts"], *tools, "pip", "torchrun", "srun", "mpiexec"}
    unknown = [
        f"{page.name}:{block.line}: {word}"
        for block in blocks(page)
        if block.language == "bash"
        for words in commands(block)
        for word in programs(words)
        if word not in known and not (ROOT / word).is_file() and shutil.which(word) is None
    ]
    assert not unknown, "\n".join(unknown)


def programs(words: list[str]) -> Iterator[str]:
    """``A=1 ci/nogil nogil-loader bench`` starts ``ci/nogil`` and ``nogil-loader``."""
    words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
    yield words[0]
    if words[0] in {"ci/nogil", "ci/gil", "ci/reference"}:
        yield words[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    inner = [link for link in links if "://" not in link]
    assert not [link for link in inner if not (page.parent / link).exists()]


def test_the_reference_leaves_out_nothing_public() -> None:
    told = set(re.findall(r"\w+", (ROOT / "docs" / "api.md").read_text()))
    names = {name for room in (nl, decode, device, cluster) for name in room.__all__}
    methods = {name for kind in (nl.Pipeline, nl.Run) for name in vars(kind) if name[0] != "_"}
    assert names | methods <= told

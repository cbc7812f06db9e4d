"""What worker processes and isolation are worth, and what they cost.

- A tokeniser in pure Python on two workers: threads and worker processes, on both builds.
- Arrays through a process stage, beside torch's DataLoader on the same interpreter: how fast
  they get from a worker process into batches.
- The noisy neighbour: steps of about 20 ms of Python, while a loader with one worker keeps the
  other core busy, in the same process or isolated.

``NOGIL_LOADER_REFERENCE`` names the interpreter with a GIL, as for ``nogil-loader bench``.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

import nogil_loader as nl
from benchmarks import peers
from benchmarks.harness import Plan, Row, Size, columns, cpu_seconds, serve, time_passes
from nogil_loader.cli._measure import Subject, reference_python, this_python
from nogil_loader.cli._workload import peak_memory

WORKERS = 2
(COLUMN,) = columns((WORKERS,))
DOCUMENTS, BATCH, TOKENS = 1024, 32, 96
ARRAYS = {"1 MB": (1 << 20, 192, 16), "20 kB": (20_000, 4096, 64)}
"""Bytes of an array, arrays in a pass, arrays in a batch."""
STEP = 480_000
"""Turns of a loop that take about 20 ms on a build with a GIL."""


def plans(folder: Path, size: Size, data: Path | None) -> Iterator[Plan]:
    """Three plans; without an interpreter with a GIL there is nothing to compare."""
    reference = reference_python()
    if reference is None:
        print("fallback: left out, NOGIL_LOADER_REFERENCE names no interpreter", file=sys.stderr)
        return
    builds = {"GIL": (reference,), "GIL off": this_python()}
    yield _tokenise(builds, size.seconds)
    pythons: dict[str, tuple[str, ...]] = {}
    notes = peers.join(pythons, {"torch": "torch"})
    if pythons:
        yield _arrays(pythons["torch"], size.seconds)
    else:
        print("\n".join(notes), file=sys.stderr)
    yield _neighbour(builds, size.seconds)


def _subject(name: str, python: tuple[str, ...], **question: object) -> Subject:
    return Subject(name, python, {"what": name.split(",")[0], **question}, "benchmarks.fallback")


def _tokenise(builds: dict[str, tuple[str, ...]], seconds: float) -> Plan:
    rows = []
    for build, how in (("GIL", "thread"), ("GIL", "process"), ("GIL off", "process"),
                       ("GIL off", "thread")):  # fmt: skip
        label = f"{build}, {how}"
        subject = _subject(f"tokenise, {label}", builds[build], how=how, seconds=seconds)
        versus = {"GIL, process": ("GIL, thread",), "GIL off, thread": ("GIL, process",)}
        rows.append(Row(label, {COLUMN: subject}, versus[label] if label in versus else ()))
    about = (
        "Byte pairs merged in pure Python, 32 documents a batch. In brackets: processes against "
        "threads, and the threads without a GIL against the processes with one."
    )
    return Plan("tokenise", about, (COLUMN,), tuple(rows), ("rate", "cpu", "peak"))


def _arrays(python: tuple[str, ...], seconds: float) -> Plan:
    rows = []
    for how in ("torch", "process"):
        cells = {
            size: _subject(f"arrays, {how}, {size}", python, how=how, size=size, seconds=seconds)
            for size in ARRAYS
        }
        rows.append(Row(how, cells, ("torch",) if how == "process" else (), peer=how == "torch"))
    return Plan(
        "arrays from worker processes",
        "float32 arrays made in two worker processes and stacked in batches, CPython 3.11. In "
        "brackets: against torch's DataLoader.",
        tuple(ARRAYS),
        tuple(rows),
        ("rate", "cpu", "peak"),
    )


def _neighbour(builds: dict[str, tuple[str, ...]], seconds: float) -> Plan:
    rows = []
    for how in ("alone", "isolated", "beside"):
        cells = {
            build: _subject(f"neighbour, {how}, {build}", python, how=how, seconds=seconds)
            for build, python in builds.items()
        }
        rows.append(Row(how, cells, () if how == "alone" else ("alone",)))
    return Plan(
        "the noisy neighbour",
        "Steps of about 20 ms of Python a second (`samples/s`), with a loader of one worker that "
        "is always busy. In brackets: against the steps alone.",
        tuple(builds),
        tuple(rows),
        ("rate",),
    )


# What is done with each sample ----------------------------------------------------------

PAIRS = """t h|th e|i n|in g|a n|an d|e r|r e|o n|ti on|t i|e n|en t|e s|e d|o r|a t|i s|i t|a l
a r|s t|t o|n t|ou r|o u|h e|v e|v er|al l|w i|wi th|th at|e a|i c|o f|l y|c h|m e|s e|c o"""
TEXT = """the thing and nation with entertainment stationary that overall hearing testing ones
coherent weather rendition fortress vision orchestra consideration morphology all"""


def documents() -> list[str]:
    """Texts of 30 to 50 words, always the same."""
    draw = random.Random(0)
    return [" ".join(draw.choices(TEXT.split(), k=draw.randint(30, 50))) for _ in range(DOCUMENTS)]


class Tokeniser:
    """Token numbers of a text, padded or cut to ``TOKENS``; with tables of its own.

    Byte-pair encoding: of the neighbours in a word the pair of the lowest rank is merged, until
    none has a rank (Sennrich, Haddow and Birch, "Neural Machine Translation of Rare Words with
    Subword Units", ACL 2016).
    """

    def __init__(self) -> None:
        pairs = PAIRS.replace("\n", "|").split("|")
        self.ranks = {tuple(pair.split()): number for number, pair in enumerate(pairs)}

    def __call__(self, text: str) -> npt.NDArray[np.int32]:
        ranks = self.ranks
        ids: list[int] = []
        for word in text.lower().split():
            parts = list(word)
            while len(parts) > 1:
                best, at = len(ranks), -1
                for place in range(len(parts) - 1):
                    pair = (parts[place], parts[place + 1])
                    if pair in ranks and ranks[pair] < best:
                        best, at = ranks[pair], place
                if at < 0:
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            ids += [sum(map(ord, part)) for part in parts]
        out = np.zeros(TOKENS, np.int32)
        out[: len(ids)] = ids[:TOKENS]
        return out


class Make:
    """An array of so many bytes for a number; also what torch calls a data set."""

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __call__(self, number: int) -> npt.NDArray[np.float32]:
        return np.full(self.size // 4, number, np.float32)

    __getitem__ = __call__


# How it is done -------------------------------------------------------------------------


def answer(question: dict[str, object]) -> dict[str, object]:
    """Measure one subject."""
    what, how = str(question["what"]), str(question["how"])
    seconds = float(str(question["seconds"]))
    if what == "neighbour":
        return _steps(how, seconds)
    if what == "tokenise":
        os.environ["NOGIL_LOADER_FALLBACK"] = how
        chain = nl.from_sequence(documents()).map(nl.per_worker(Tokeniser), gil_fallback="process")
        return time_passes(_passes(chain.batch(BATCH)), seconds, rows_of)
    size, count, batch = ARRAYS[str(question["size"])]
    if how == "torch":
        return time_passes(_torch(Make(size, count), batch), seconds, rows_of)
    os.environ["NOGIL_LOADER_FALLBACK"] = "process"
    arrays = nl.from_sequence(range(count)).map(Make(size, count), gil_fallback="process")
    return time_passes(_passes(arrays.batch(batch)), seconds, rows_of)


def rows_of(batch: object) -> int:
    """Rows of a batch."""
    return len(cast("npt.NDArray[np.generic]", batch))


def _passes(chain: nl.Pipeline[object]) -> Iterator[Iterator[object]]:
    return cast("Iterator[Iterator[object]]", chain.workers(WORKERS).epochs(1_000_000_000))


def _torch(data: Make, batch: int) -> Iterator[Iterator[object]]:
    from torch.utils.data import DataLoader

    loader = DataLoader(data, batch_size=batch, num_workers=WORKERS, persistent_workers=True)
    while True:
        yield iter(loader)


def _steps(how: str, seconds: float) -> dict[str, object]:
    """Steps of Python, each with a batch if there is one."""
    chain = nl.from_sequence(documents()).repeat().map(nl.per_worker(Tokeniser))
    chain = chain.batch(BATCH).workers(1)
    run = None if how == "alone" else chain.run() if how == "beside" else chain.run(isolate=True)
    if run is not None:
        next(run)
    _step()
    steps, wall, cpu, began = 0, 0.0, cpu_seconds(), time.perf_counter()
    while wall < seconds:
        steps += 1
        if run is not None:
            with suppress(TimeoutError):  # the loader is not as fast as that
                run.next(timeout=0.0)
        _step()
        wall = time.perf_counter() - began
    cpu = cpu_seconds() - cpu
    if run is not None:
        run.close()
    return {"samples": steps, "wall": wall, "cpu": cpu, "first": 0.0, "peak": peak_memory()}


def _step() -> int:
    total = 0
    for number in range(STEP):
        total += number & 7
    return total


if __name__ == "__main__":
    serve(answer)

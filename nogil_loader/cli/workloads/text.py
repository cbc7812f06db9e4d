"""JSON lines through a transform in pure Python to batches of numbers: where a GIL hurts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import nogil_loader as nl
from nogil_loader.cli.workloads.base import Looped, Prepared, Workload, rows_of
from nogil_loader.cli.workloads.byhand import Job
from nogil_loader.pipeline import Pipeline
from nogil_loader.testing import media


def make(folder: Path, count: int, seed: int) -> Prepared:
    """JSON lines of our own."""
    path = media.write_json_lines(folder / "records.jsonl", count, seed=seed)
    size = path.stat().st_size / count
    return Prepared(
        folder, f"{count} JSON lines of {size:.0f} bytes, seed {seed}, to five numbers each"
    )


def lines_of(folder: Path) -> list[bytes]:
    """All lines, in memory."""
    return (folder / "records.jsonl").read_bytes().splitlines()


def summarise(line: str | bytes) -> dict[str, float]:
    """One JSON document to five numbers about it: the Python that a user writes.

    Splitting words and counting them in the interpreter takes most of the time,
    ``json.loads`` a third; nothing here would release a GIL.
    """
    document = json.loads(line)
    counts: dict[str, int] = {}
    letters = 0
    for word in document["text"].lower().split():
        word = word.strip(".?!")
        letters += len(word)
        if word in counts:
            counts[word] += 1
        else:
            counts[word] = 1
    words = sum(counts.values())
    repeated = sum(count * count for count in counts.values()) / (words * words)
    return {
        "id": document["id"],
        "words": words,
        "letters": letters / words,
        "repetition": repeated,
        "reach": document["author"]["followers"] * document["stats"]["score"],
    }


def _new_list(rows: int) -> list[dict[str, float]]:
    return [{}] * rows


def _put_summary(batch: list[dict[str, float]], row: int, line: bytes) -> None:
    batch[row] = summarise(line)


def columns(batch: list[dict[str, float]]) -> dict[str, NDArray[np.float64]]:
    return {key: np.array([row[key] for row in batch]) for key in batch[0]}


def _pipeline(folder: Path) -> Pipeline[object]:
    return nl.from_sequence(lines_of(folder)).map(summarise).batch(TEXT.batch)


def _job(folder: Path) -> Looped:
    return Job(lines_of(folder), _new_list, _put_summary, columns)


TEXT = Workload("text", 256, 12_288, 3_072, make, _pipeline, _job, rows_of("id"))

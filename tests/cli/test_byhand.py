"""The loops written by hand do all of the work, and the same work."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from nogil_loader import decode
from nogil_loader.cli.workloads import WORKLOADS, byhand, passes
from nogil_loader.cli.workloads.pictures import job_of
from nogil_loader.testing import media

LOOPS = sorted(byhand.LOOPS)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("workers", [1, 3])
def test_every_loop_does_every_sample_once(loop: str, workers: int) -> None:
    def put(batch: list[int], row: int, sample: int) -> None:
        batch[row] = sample

    job = byhand.Job(range(101), lambda rows: [-1] * rows, put, tuple)
    batches = list(job.run(loop, 8, workers))
    assert sorted(map(len, batches)) == [5] + [8] * 12
    assert sorted(sample for batch in batches for sample in batch) == list(range(101))


@pytest.mark.parametrize("loop", LOOPS)
def test_an_error_comes_out_and_no_thread_is_left(loop: str) -> None:
    def put(batch: list[int], row: int, sample: int) -> None:
        raise LookupError(sample)

    before = threading.active_count()
    job = byhand.Job(range(10), lambda rows: [0] * rows, put, tuple)
    with pytest.raises(LookupError):
        list(job.run(loop, 4, 2))
    assert threading.active_count() == before


def test_pictures_by_hand_are_those_of_the_decoder(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    small = media.write_photos(tmp_path, 3)
    large = media.write_photos(tmp_path / "large", 2, size=(640, 480))  # drafted at half scale
    paths = [str(path) for path in small + large]
    (batch,) = job_of(paths).run("by_batch", 8, 1)
    decoder = decode.image(size=(224, 224))
    assert np.array_equal(batch, np.stack([decoder(path) for path in paths]))


LARGE = ("wav-60s", "flac-60s", "npy-10MB", "npz-10MB", "mapped-10MB")


@pytest.mark.parametrize("name", sorted(set(WORKLOADS) - set(LARGE)))
def test_the_pipeline_and_the_loop_make_the_same_batches(name: str, tmp_path: Path) -> None:
    workload = WORKLOADS[name]
    if name in ("pictures", "tar"):
        pytest.importorskip("PIL")
    if name.startswith(("wav", "flac")):
        pytest.importorskip("_soundfile_data")
    folder = workload.prepare(tmp_path, 5, 1).folder
    with closing(passes(workload, "engine", folder, 2)) as turns:
        (engine,) = next(turns)
    with closing(passes(workload, "by_batch", folder, 1)) as turns:
        (by_hand,) = next(turns)
    assert workload.rows(engine) == workload.rows(by_hand) == 5
    if isinstance(by_hand, dict):
        for key, column in by_hand.items():
            assert np.array_equal(engine[key], column)  # type: ignore[index]
    else:
        kind = name.partition("-")[0]
        fields = {"pictures": "image", "tar": "image", "wav": "sound", "flac": "sound"}
        mine = engine[fields.get(kind, "x")] if isinstance(engine, dict) else engine
        other = by_hand
        if kind in ("mapped", "tokens"):  # each in an order of its own
            mine, other = np.sort(mine, axis=0), np.sort(by_hand, axis=0)  # type: ignore[call-overload]
        assert np.array_equal(mine, other)

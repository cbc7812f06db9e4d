"""The loops written by hand do all of the work, and the same work."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from nogil_loader import decode
from nogil_loader.cli import _byhand, _workloads
from nogil_loader.testing import media

LOOPS = sorted(_byhand.LOOPS)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("workers", [1, 3])
def test_every_loop_does_every_sample_once(loop: str, workers: int) -> None:
    def put(batch: list[int], row: int, sample: int) -> None:
        batch[row] = sample

    job = _byhand.Job(range(101), lambda rows: [-1] * rows, put, tuple)
    batches = list(job.run(loop, 8, workers))
    assert sorted(map(len, batches)) == [5] + [8] * 12
    assert sorted(sample for batch in batches for sample in batch) == list(range(101))


@pytest.mark.parametrize("loop", LOOPS)
def test_an_error_comes_out_and_no_thread_is_left(loop: str) -> None:
    def put(batch: list[int], row: int, sample: int) -> None:
        raise LookupError(sample)

    before = threading.active_count()
    job = _byhand.Job(range(10), lambda rows: [0] * rows, put, tuple)
    with pytest.raises(LookupError):
        list(job.run(loop, 4, 2))
    assert threading.active_count() == before


def test_pictures_by_hand_are_those_of_the_decoder(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    small = media.write_photos(tmp_path, 3)
    large = media.write_photos(tmp_path / "large", 2, size=(640, 480))  # drafted at half scale
    paths = [str(path) for path in small + large]
    (batch,) = _byhand.pictures(paths, (224, 224)).run("by_batch", 8, 1)
    decoder = decode.image(size=(224, 224))
    assert np.array_equal(batch, np.stack([decoder(path) for path in paths]))


@pytest.mark.parametrize("workload", [_workloads.TEXT, _workloads.PICTURES], ids=lambda w: w.name)
def test_the_pipeline_and_the_loop_make_the_same_batches(
    workload: _workloads.Workload, tmp_path: Path
) -> None:
    if workload is _workloads.TEXT:
        folder = _workloads.make_text(tmp_path, 300, seed=1).folder
    else:
        pytest.importorskip("PIL")
        folder = _workloads.make_pictures(tmp_path, 3, seed=1).folder
    with closing(_workloads.passes(workload, "engine", folder, 2)) as passes:
        engine = list(next(passes))
    with closing(_workloads.passes(workload, "by_batch", folder, 1)) as passes:
        by_hand = list(next(passes))
    assert [workload.rows(b) for b in engine] == [workload.rows(b) for b in by_hand]
    if workload is _workloads.TEXT:
        for one, other in zip(engine, by_hand, strict=True):
            for key, column in other.items():  # type: ignore[attr-defined]
                assert np.array_equal(one[key], column)  # type: ignore[index]
    else:
        assert np.array_equal(engine[0]["image"], by_hand[0])  # type: ignore[index]

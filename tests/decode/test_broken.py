"""Every broken and odd file ends as it is documented to, and no damage ends otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nogil_loader import decode
from nogil_loader.decode import _sndfile_ctypes
from nogil_loader.testing import broken
from nogil_loader.testing.broken import Case
from tests import fuzzed

pytest.importorskip("PIL")
from nogil_loader.testing import broken_pictures

try:
    _sndfile_ctypes.path()
    SOUNDS = list(broken.sounds())
except ImportError:
    SOUNDS = []
PICTURES = list(broken_pictures.pictures())
ARRAYS = list(broken.arrays())


def names(cases: list[Case]) -> list[str]:
    return [case.name for case in cases]


def check(op: Callable[[bytes], object], case: Case, folder: Path) -> None:
    """From memory and, named after another kind of file, from a path."""
    path = folder / "misnamed.txt"
    path.write_bytes(case.data)
    for value in (case.data, path):
        if case.error is not None:
            with pytest.raises(case.error) as caught:
                op(value)  # type: ignore[arg-type]
            assert ("misnamed.txt: " in str(caught.value)) == (value is path)
            continue
        got = op(value)  # type: ignore[arg-type]
        assert isinstance(got, (np.ndarray, dict))
        if case.value is None:
            continue
        assert isinstance(got, np.ndarray)
        assert got.shape == case.value.shape
        if case.margin:
            distance = np.abs(got.astype(float) - case.value.astype(float))
            assert distance.max() <= case.margin
            assert np.median(distance) <= case.margin / 3
        else:
            np.testing.assert_array_equal(got, case.value)


@pytest.mark.parametrize("case", PICTURES, ids=names(PICTURES))
def test_pictures(case: Case, tmp_path: Path) -> None:
    check(decode.image(), case, tmp_path)


@pytest.mark.parametrize("case", SOUNDS, ids=names(SOUNDS))
def test_sounds(case: Case, tmp_path: Path) -> None:
    check(decode.audio(), case, tmp_path)


@pytest.mark.parametrize("case", ARRAYS, ids=names(ARRAYS))
def test_arrays(case: Case, tmp_path: Path) -> None:
    check(decode.array(), case, tmp_path)


def test_cases_have_names_of_their_own() -> None:
    for cases in (PICTURES, SOUNDS, ARRAYS):
        assert len(set(names(cases))) == len(cases)


class TestMutations:
    """In a child process: damage to memory would end it, and a hang ends at its deadline."""

    SCRIPT = Path(__file__).with_name("fuzz.py")

    @pytest.mark.parametrize("kind", fuzzed.DECODERS)
    def test_nothing_but_documented_errors(self, kind: str) -> None:
        if kind == "audio" and not SOUNDS:
            pytest.skip("libsndfile is not installed")
        count = fuzzed.count(kind)
        out = subprocess.run(
            [sys.executable, str(self.SCRIPT), kind, str(count)],
            capture_output=True,
            timeout=3500 if fuzzed.SOAK else 100,
            check=False,
        )
        assert out.returncode == 0, out.stderr.decode(errors="replace")[-4000:]
        outcomes = json.loads(out.stdout.splitlines()[-1])
        assert outcomes.pop("undocumented") == []
        assert sum(outcomes.values()) == count
        assert outcomes["decoded"] > count // 50  # the damage isn't always at the door
        assert outcomes["refused"] > count // 10

    def test_the_same_seed_makes_the_same_damage(self) -> None:
        data = b"x" * 500
        assert list(broken.mutations(data, 50, 7)) == list(broken.mutations(data, 50, 7))
        assert list(broken.mutations(data, 50, 7)) != list(broken.mutations(data, 50, 8))

    def test_damage_is_found_in_most_copies(self) -> None:
        data = bytes(range(256)) * 2
        changed = [copy != data for copy in broken.mutations(data, 200)]
        assert sum(changed) > 180

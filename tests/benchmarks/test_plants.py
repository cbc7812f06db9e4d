"""Every harness catches a planted defect before its numbers mean anything."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from benchmarks import harness, plants
from nogil_loader.cli._measure import ChildFailed, Measurement, Subject, this_python
from nogil_loader.cli.workloads import WORKLOADS
from nogil_loader.cli.workloads.byhand import LOOPS

SIZE = harness.Size(0.05, True)
HARNESSES = {  # the label of the engine's row in the plan
    "overhead": "blocks of one",
    "model": "blocks of 1",
    "skew": "engine",
    "turnaround": "engine",
    "resume": "engine",
}


@pytest.mark.parametrize("name", HARNESSES)
def test_needless_work_in_the_engine_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.PEERS", {})
    monkeypatch.setattr("benchmarks.peers.environment", _none_here)
    plans = importlib.import_module(f"benchmarks.{name}").plans(tmp_path, SIZE, None)
    plan = next(plans)
    try:
        row = next(row for row in plan.rows if row.label == HARNESSES[name])
        subject = next(iter(row.cells.values()))
        healthy = min(_shown(harness.measure(subject)) for _ in range(2))  # a machine may stutter
        planted = _shown(harness.measure(subject, "engine"))
    finally:
        plans.close()
    assert planted > healthy + 0.5 * plants.ENGINE


def _none_here(name: str) -> str:
    from benchmarks.peers import LeftOut

    raise LeftOut(f"{name} is left out: not in a test.")


def _shown(measured: Measurement) -> float:
    """CPU seconds of 256 samples, a batch or more, where they were taken; else a wait."""
    if measured.cpu:
        return 256 * measured.cost
    return measured.stages["turn"] if "turn" in measured.stages else measured.first


def subject_of(name: str, variant: str, folder: Path, of: int) -> Subject:
    question = {"workload": name, "variant": variant, "folder": str(folder), "of": of}
    return Subject(
        variant, this_python(), {**question, "workers": 2, "seconds": 0.05}, "benchmarks.beside"
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WORKLOADS["text"].prepare(tmp_path_factory.mktemp("text"), 512, 0).folder


def test_needless_work_in_the_engine_shows_beside_the_loops(text: Path) -> None:
    subject = subject_of("text", "engine", text, 512)
    healthy = min(harness.measure(subject).cost for _ in range(2))  # a machine may stutter
    assert harness.measure(subject, "engine").cost > healthy + 0.5 * plants.ENGINE / 256


def test_a_slow_loop_by_hand_does_not_become_the_ceiling(text: Path) -> None:
    rows = [
        harness.Row(variant, {"1": subject_of("text", variant, text, 512)}) for variant in LOOPS
    ]
    engine = harness.Row("engine", {"1": subject_of("text", "engine", text, 512)}, tuple(LOOPS))
    plan = harness.Plan("text", "", ("1",), (engine, *rows), ("wall",))
    plan, found = harness.run(plan, 1, lambda *_: None, "ceiling")
    assert harness.ceiling(plan, plan.rows[0], "1", found) is not found["by_batch"]


def test_a_peer_that_is_given_less_work_gets_no_number(text: Path) -> None:
    pytest.importorskip("spdl.pipeline")
    engine, peer = (subject_of("text", name, text, 512) for name in ("engine", "SPDL by batch"))
    rows = (harness.Row("engine", {"1": engine}), harness.Row("peer", {"1": peer}, peer=True))
    plan = harness.Plan("text", "", ("1",), rows, ("wall",))
    plan, found = harness.run(plan, 1, lambda *_: None, "short")
    assert [row.label for row in plan.rows] == list(found) == ["engine"]
    assert "a pass of 256 samples, of 512 that there are" in plan.notes[0]


def test_a_peer_that_delivers_something_else_gets_no_number() -> None:
    total = iter((10.0, 10.0, 10.1))
    rows = tuple(
        harness.Row(label, {"1": Subject(label, (), {})}, peer="peer" in label)
        for label in ("engine", "good peer", "bad peer")
    )
    found = {row.label: [Measurement(1, 1, 1, 1, 1, {"total": next(total)})] for row in rows}
    plan = harness.Plan("x", "", ("1",), rows, ("wall",))
    ((label, why),) = harness._other_results(plan, found)
    assert label == "bad peer" and why == ("its results add up to 10.1, those of the others to 10")
    found["engine"] = [Measurement(1, 1, 1, 1, 1, {"total": 10.0})]
    mine = harness.Row("loop", {"1": Subject("loop", (), {})})
    plan = harness.Plan("x", "", ("1",), (rows[0], mine), ("wall",))
    found["loop"] = [Measurement(1, 1, 1, 1, 1, {"total": 11.0})]
    with pytest.raises(AssertionError, match="loop: its results add up to 11"):
        list(harness._other_results(plan, found))


def test_a_child_that_delivers_too_little_is_an_error(text: Path) -> None:
    with pytest.raises(ChildFailed, match="a pass of 512 samples, of 513 that there are"):
        harness.measure(subject_of("text", "by_stripe", text, 513))

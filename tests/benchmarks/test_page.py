"""The page: what was missed comes first, and everything on it comes from the JSON."""

from __future__ import annotations

import json
from dataclasses import astuple
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import model, page, plots, results, targets
from benchmarks.harness import Plan, Row
from nogil_loader.cli._measure import Measurement, Subject
from nogil_loader.cli.workloads.byhand import LOOPS
from nogil_loader.testing.child import in_child

Found = dict[str, list[Measurement]]


def once(wall: float, cpu: float | None = None) -> Measurement:
    return Measurement(100, wall, wall if cpu is None else cpu, 0.1, 1_000_000)


def measured(name: str, **walls: list[float]) -> tuple[Plan, Found]:
    """A plan whose rows took so long, with two workers; underscores are spaces."""
    rows, found = [], {}
    for key, values in walls.items():
        label = key.replace("__", ", ").replace("_on", " on") if key not in LOOPS else key
        subject = Subject(f"{name}, {label}, {targets.TWO}", (), {})
        versus = () if label in LOOPS else tuple(LOOPS)
        peer = label not in LOOPS and not label.startswith("engine")
        rows.append(Row(label, {targets.TWO: subject}, versus, peer))
        found[subject.name] = [once(value) for value in values]
    for loop in LOOPS:
        if loop not in walls:
            subject = Subject(f"{name}, {loop}, {targets.TWO}", (), {})
            rows.append(Row(loop, {targets.TWO: subject}))
            found[subject.name] = [once(9.0)] * 3
    plan = Plan(name, "About.", (targets.TWO,), tuple(rows), ("rate", "cpu"), ("A note.",))
    return plan, found


def example() -> results.Results:
    text = measured(
        "text", engine=[1.2] * 3, engine__GIL_on=[2.4] * 3, by_batch=[1.0] * 3, torch=[0.9] * 3
    )
    wav = measured("wav", engine=[1.0] * 3, by_batch=[1.0, 1.3, 1.0])
    return results.Results("python -m benchmarks", {"cores": 2}, (text, wav))


def test_aims_are_judged_against_the_ceiling_and_the_best_peer() -> None:
    verdicts = {(one.aim.plan, one.aim.what): one for one in targets.judge(example().measured)}
    by_hand = verdicts["text", "CPU time a sample, loop by hand"]
    assert by_hand.met is False and by_hand.value == pytest.approx(1.2)
    assert by_hand.why == "by_batch"
    best = verdicts["text", "throughput, best peer"]
    assert best.met is False and best.value == pytest.approx(0.75) and best.why == "torch"
    assert verdicts["text", "throughput, GIL on"].met is True


def test_an_unsteady_ceiling_leaves_an_aim_untold() -> None:
    verdicts = {(one.aim.plan, one.aim.what): one for one in targets.judge(example().measured)}
    untold = verdicts["wav", "CPU time a sample, loop by hand"]
    assert untold.met is None and untold.value is None
    assert untold.line[-1] == "by_batch was unsteady"


def test_what_was_missed_comes_first() -> None:
    met = [one.met for one in targets.judge(example().measured)]
    assert met == sorted(met, key=[False, None, True].index)
    text = page.markdown(example())
    assert text.index("Where we miss") < text.index("x0.75 (torch)") < text.index("What holds")
    assert text.index("x1.2 (by_batch)") < text.index("## Tables") < text.index("A note.")


def test_the_same_page_comes_from_the_json() -> None:
    kept = results.from_json(json.loads(json.dumps(results.as_json(example()))))
    assert page.markdown(kept) == page.markdown(example())


def test_only_what_lies_between_the_markers_is_written(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"# Before\n\n{page.BEGIN}\nold\n{page.END}\n\nAfter.\n")
    assert "old" not in page.between(path.read_text(), "new")
    assert page.between(path.read_text(), "new").startswith("# Before\n\n<!-- measured")
    assert page.between(path.read_text(), "new").endswith("-->\n\nAfter.\n")
    with pytest.raises(ValueError, match="no place for measurements"):
        page.between("# Nothing\n", "new")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
@in_child()  # matplotlib keeps the files of its fonts open
def test_plots_and_pages_are_the_same_bytes_each_time() -> None:
    drawn = plots.draw(example())
    assert list(drawn) == ["throughput", "switched"]
    assert all(svg.startswith("<svg") for svg in drawn.values())
    assert drawn == plots.draw(example())
    kept = results.from_json(json.loads(json.dumps(results.as_json(example()))))
    assert page.html(kept) == page.html(example())
    assert page.html(kept).count("<svg") == 2


def test_a_model_is_found_again_with_some_noise() -> None:
    true = model.Model(sample=0.4e-6, block=9e-6, serial_sample=0.05e-6, serial_block=2e-6)
    noise = (1.02, 0.98, 1.01, 0.99, 1.0)
    points = {
        (workers, block): true.wall(workers, block) * noise[(place + workers) % 5]
        for workers in (1, 2)
        for place, block in enumerate(model.BLOCKS)
    }
    found = model.fit(points)
    assert found.block + found.serial_block == pytest.approx(11e-6, rel=0.1)
    assert found.serial(1e-3) == pytest.approx(true.serial(1e-3), rel=0.5)
    assert 7.5 < found.speedup(8, 1e-3) <= 8


def test_no_part_of_a_model_is_negative() -> None:
    points = {(w, b): 1e-6 / w**1.3 + 1e-5 / b for w in (1, 2) for b in model.BLOCKS}
    assert min(astuple(model.fit(points))) >= 0

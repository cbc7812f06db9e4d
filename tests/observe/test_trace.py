"""The timeline: valid by the rules of its format, complete, bounded, free when it is off."""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

import nogil_loader as nl
from nogil_loader.observe.trace import Trace

PAUSE = threading.Event()


def slow(n: int) -> int:
    PAUSE.wait(0.001)
    return n


def half(n: int) -> int:
    return n // 2


def events_of(path: Path) -> list[dict[str, object]]:
    """The events of a file, after checking what the format asks of each.

    Source: "Trace Event Format", sections "JSON Object Format", "Complete Events",
    "Metadata Events".
    """
    document = json.loads(path.read_text())
    assert document["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, object]] = document["traceEvents"]
    for event in events:
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("thread_name", "thread_sort_index")
            assert isinstance(event["args"], dict)
        else:
            assert isinstance(event["cat"], str)
            for key in ("ts", "dur"):
                time = event[key]
                assert isinstance(time, (int, float))
                assert time >= 0
    return events


def complete(path: Path) -> list[dict[str, object]]:
    return [event for event in events_of(path) if event["ph"] == "X"]


def total(events: list[dict[str, object]], name: str) -> int:
    """Units in all events of that name."""
    found = [event["args"] for event in events if event["name"] == name and "args" in event]
    return sum(args["count"] for args in found if isinstance(args, dict))


def traced(path: Path) -> nl.Run[object]:
    data = nl.from_sequence(range(200)).map(slow, threads=3).map(half).batch(10)
    return data.workers(2).run(trace=path)


def test_every_block_and_the_consumer_are_on_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with traced(path) as batches:
        assert sum(1 for _ in batches) == 20
    events = complete(path)
    names = {event["name"] for event in events}
    assert {"read", "slow", "half", "consumer", "wait: batch"} <= names
    for name in ("read", "slow", "half"):
        assert total(events, name) == 200
    lanes = [e["args"] for e in events_of(path) if e["name"] == "thread_name"]
    assert sorted(lane["name"] for lane in lanes if isinstance(lane, dict)) == [
        "consumer",
        *["slow"] * 3,
        *["workers"] * 2,
    ]


def test_the_copies_to_a_device_are_on_the_lane_of_their_thread(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with nl.from_sequence(range(40)).map(half).batch(10).to_device("host").run(trace=path) as run:
        assert sum(1 for _ in run) == 4
    events = events_of(path)
    assert total(events, "to_device") == 4
    lanes = [e["tid"] for e in events if e["name"] == "thread_name" and "to_device" in str(e)]
    assert {e["tid"] for e in events if e["name"] == "to_device"} == set(lanes)


def test_events_of_one_thread_do_not_overlap(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with traced(path) as batches:
        list(batches)
    lanes: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for event in complete(path):
        begin, length = event["ts"], event["dur"]
        assert isinstance(begin, (int, float))
        assert isinstance(length, (int, float))
        lanes[event["tid"]].append((begin, begin + length))
    for lane in lanes.values():
        lane.sort()
        for (_, end), (begin, _) in pairwise(lane):
            assert end <= begin + 0.01  # microseconds: the last digit is rounded


@pytest.mark.parametrize("how", ["closed", "forgotten", "failed"])
def test_the_file_is_written_however_the_run_ends(tmp_path: Path, how: str) -> None:
    path = tmp_path / "trace.json"
    if how == "failed":
        with pytest.raises(ZeroDivisionError):
            list(nl.from_sequence(range(9)).map(lambda n: 1 // (n - 5)).run(trace=path))
    else:
        batches = traced(path)
        next(batches)
        if how == "closed":
            batches.close()
        del batches
    assert complete(path)


def test_a_place_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        nl.from_sequence(range(9)).run(trace=tmp_path / "nowhere" / "trace.json")


def test_a_place_that_vanishes_is_logged_and_costs_no_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    batches = traced(folder / "trace.json")
    (folder / "trace.json").unlink()
    folder.rmdir()
    with caplog.at_level(logging.WARNING, "nogil_loader"):
        assert sum(1 for _ in batches) == 20
        batches.close()
    assert "the trace could not be written" in caplog.text


def test_a_long_trace_keeps_its_newest_part_and_says_what_it_dropped(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = Trace(path, ["work"], ["input"], limit=10)
    busy, calm = trace.lane("busy"), trace.lane("calm")
    for second in range(100):
        busy.add(0, second, second + 0.5, second, 1)
    calm.wait("input", 1.0, 2.0)
    calm.wait("input", 95.0, 96.0)
    trace.write()
    events = complete(path)
    assert [event["ts"] for event in events if event["tid"] == 0] == [n * 1e6 for n in range(10)]
    assert [event["ts"] for event in events if event["tid"] == 1] == [5e6]
    assert json.loads(path.read_text())["otherData"]["dropped"] == 90


def test_a_trace_of_nothing_is_a_valid_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    Trace(path, [], []).write()
    assert events_of(path) == []

"""The process of one measurement: ``python -m nogil_loader.cli._workload QUESTION``.

The question is JSON, ``{"workload", "variant", "folder", "workers", "seconds"}``; the answer,
the last line written, is the JSON of a ``Measurement``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from nogil_loader import Run
from nogil_loader.cli.workloads import WORKLOADS, passes


def answer(question: dict[str, object]) -> dict[str, object]:
    """Make one pass to warm up and to time its first batch, then whole passes for a while."""
    workload = WORKLOADS[str(question["workload"])]
    rows, seconds = workload.rows, float(str(question["seconds"]))
    began = time.perf_counter()
    folder, workers = Path(str(question["folder"])), int(str(question["workers"]))
    turns = passes(workload, str(question["variant"]), folder, workers)
    batches = iter(next(turns))
    expected = rows(next(batches))
    first = time.perf_counter() - began
    expected += sum(map(rows, batches))
    samples, cpu, began = 0, time.process_time(), time.perf_counter()
    for batches in turns:
        samples += sum(map(rows, batches))
        wall = time.perf_counter() - began
        if wall >= seconds:
            break
    cpu = time.process_time() - cpu
    if samples % expected:
        raise AssertionError(f"{samples} samples in passes of {expected}: some were lost")
    return {
        "samples": samples,
        "wall": wall,
        "cpu": cpu,
        "first": first,
        "peak": peak_memory(),
        "stages": busy(batches) if isinstance(batches, Run) else {},
    }


def busy(run: Run[object]) -> dict[str, float]:
    """The seconds that each stage was busy, a sample, by the run's own report."""
    counts = run.report().counts
    stages = {stage.name: stage.busy / counts.samples for stage in counts.stages}
    workers = sum(crew.busy for crew in counts.crews) / counts.samples
    return {**stages, "rows and engine": max(0.0, workers - sum(stages.values()))}


def peak_memory() -> int:
    """The most bytes this process has had in memory since it began to run Python."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        import resource

        # What the parent held counts here where the child was forked from it; bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(answer(json.loads(sys.argv[1]))))

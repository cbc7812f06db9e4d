"""What limits a run, from its counts alone.

Guarantees
- A pure function of ``Counts``: no clock, no machine, no thread is looked at.
- ``sure`` is said only where one resource is nearly always occupied and no other one comes
  close; everything else is an opinion, and says so.

How it is found. Whatever limits a pipeline is occupied all the time, and what is before it
waits for room, what is behind it for input (the utilisation law of operational analysis:
Denning and Buzen, "The Operational Analysis of Queueing Network Models", ACM Computing
Surveys 10, 1978). So each resource gets a share of time in which it was occupied: the
consumer, a stream's reader, each crew of threads, each op that lets in only so many. Where
none is occupied, threads stood idle although there was data: then the reason for which they
waited most is what limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nogil_loader.observe.counts import (
    MEMORY,
    ORDER,
    Counts,
    CrewCount,
    StageCount,
)

_FULL = 0.9
"""Occupied for so much of its time, a resource is surely saturated."""
_SLACK = 0.8
"""Occupied for less, none is: something else keeps the threads from working."""
_MARGIN = 1.25
"""A sure verdict needs the next resource to be occupied this many times less."""
_FEW = 20
"""Deliveries below which nothing is sure."""
_NOTICEABLE = 0.1
"""A share of idle time that is worth a verdict."""


@dataclass(frozen=True)
class Verdict:
    """The bottleneck."""

    name: str
    """A stage, ``"source"``, ``"consumer"``, ``"memory"`` or ``"GIL"``."""
    kind: str
    """``"crew"``, ``"auto"``, ``"serial"``, ``"limit"``, ``"in_flight"``, ``"source"``,
    ``"consumer"``, ``"memory"``, ``"straggler"``, ``"GIL"`` or ``"unknown"``."""
    share: float
    """How much of the time it was occupied, or kept others idle; 0 to 1."""
    sure: bool
    why: str
    """What was seen."""
    cure: str
    """What to try."""
    ceiling: float | None = None
    """Samples a second that loading could give if the consumer took no time."""
    demand: float | None = None
    """Samples a second that the consumer could take if loading took no time."""


@dataclass(frozen=True)
class _Load:
    """A resource and how much of the time it is occupied."""

    kind: str
    name: str
    share: float
    subject: str = ""


def judge(counts: Counts) -> Verdict:
    """Name what limits the run.

    >>> judge(Counts(seconds=0.0, ended=False, samples=0)).kind
    'unknown'
    """
    loads = sorted(_loads(counts), key=lambda load: -load.share)
    loading = [load for load in loads if load.kind != "consumer"]
    rate = counts.samples / counts.seconds if counts.seconds > 0.0 else 0.0
    if not loading or rate == 0.0:
        return Verdict(
            "nothing", "unknown", 0.0, False, "nothing has been delivered yet", "ask again later"
        )
    consumer = counts.consumer.share
    # The rate once the pipeline was filled: that is what limits are about.
    steady = rate * counts.seconds / max(1e-9, counts.seconds - counts.consumer.first)
    demand = steady / consumer if consumer > 0.0 else None
    first, second = loads[0], loads[1].share if len(loads) > 1 else 0.0
    idle = _idle(counts)
    if first.share < _SLACK and idle is not None:
        kind, share = idle
        runner_up = first.share
        sure = _enough(counts) and share > 2 * _NOTICEABLE and runner_up < _SLACK / _MARGIN
        found = _Load(kind, _slowest(counts) if kind == "straggler" else kind, share)
        ceiling = steady / max(1e-9, 1.0 - consumer) if consumer < 0.5 else steady
    else:
        found = first
        sure = _enough(counts) and first.share >= _FULL and first.share >= _MARGIN * second
        ceiling = steady / max(1e-9, loading[0].share)
    crew = _turns(counts)
    if crew is not None and found.kind not in ("consumer", "source"):
        found = _Load("GIL", "GIL", crew.share, crew.name)
        sure = _enough(counts)
    elif found.kind == "crew" and counts.machine.gil:
        # Busy, but not on a core: a GIL, an op that blocks, and other programs look alike.
        busy = counts.crew(found.subject)
        sure = sure and (busy.name != "workers" or busy.cpu > 0.75 * busy.busy)
    why, cure = _explain(counts, found, ceiling)
    return Verdict(found.name, found.kind, found.share, sure, why, cure, ceiling, demand)


def _enough(counts: Counts) -> bool:
    return counts.consumer.batches >= _FEW


def _loads(counts: Counts) -> Iterator[_Load]:
    yield _Load("consumer", "consumer", counts.consumer.share)
    if counts.stream is not None:
        yield _Load("source", "source", counts.stream.reading / max(1e-9, counts.seconds))
    for crew in counts.crews:
        mine = [stage for stage in counts.stages if stage.crew == crew.name]
        if mine and mine[0].rule != "auto":
            costly = max(mine, key=lambda stage: stage.busy)
            yield _Load("crew", costly.name, crew.share, crew.name)
        for stage in mine:
            if stage.rule and crew.active > 0.0:
                flies = stage.rule == "in_flight"
                used = stage.flying / counts.seconds if flies else stage.busy / crew.active
                yield _Load(stage.rule, stage.name, used / stage.bound)


def _idle(counts: Counts) -> tuple[str, float] | None:
    """The reason, other than a lack of input, for which threads with data stood idle."""
    best: tuple[str, float] | None = None
    for crew in counts.crews:
        total = crew.active * crew.threads
        for reason, kind in ((MEMORY, "memory"), (ORDER, "straggler")):
            share = crew.waiting(reason) / total if total > 0.0 else 0.0
            if share > (best[1] if best else _NOTICEABLE):
                best = kind, share
    return best


def _slowest(counts: Counts) -> str:
    """The stage in which single samples took longest."""
    return max(counts.stages, key=lambda stage: stage.slowest).name


def _turns(counts: Counts) -> CrewCount | None:
    """Busy threads that share what amounts to one core, under a GIL.

    Their times are stretched by waiting for each other, so no other share can be believed.
    """
    machine = counts.machine
    if not machine.gil or machine.cores < 2 or counts.seconds <= 0.0:
        return None
    if not 0.75 <= machine.cpu / counts.seconds <= 1.5:
        return None
    for crew in counts.crews:
        active = max(1e-9, crew.active)
        on_core = crew.cpu / active
        if crew.busy / active > 1.5 and 0.5 <= on_core <= 1.1 and crew.cpu <= 0.75 * crew.busy:
            return crew
    return None


# In words -------------------------------------------------------------------------------


def _explain(counts: Counts, load: _Load, ceiling: float) -> tuple[str, str]:
    if load.kind == "consumer":
        return (
            f"the consumer works {percent(load.share)} of the time, and batches wait for it",
            f"loading could give {number(ceiling)} samples/s: make the consumer faster, or "
            f"leave cores to it with workers(share=...)",
        )
    if load.kind == "source":
        return (
            f"the stream takes {percent(load.share)} of the time to yield samples",
            "read it in fewer, larger pieces, or use a source with random access",
        )
    if load.kind == "memory":
        return (
            f"threads stand idle {percent(load.share)} of the time, as the byte budget is used up",
            "raise memory(...), or make samples smaller earlier in the chain",
        )
    if load.kind == "straggler":
        return (
            f"threads stand idle {percent(load.share)} of the time behind single slow samples",
            "look further ahead with prefetch(...), or take batches as they come with "
            "run(ordered=False)",
        )
    if load.kind == "serial":
        return (
            f"it lets in one at a time, and is occupied {percent(load.share)} of the time",
            "leave out serial=True, or do less in it",
        )
    if load.kind == "auto":
        stage = next(stage for stage in counts.stages if stage.name == load.name)
        return (
            f"it runs on {stage.bound} threads, found by trying, busy {percent(load.share)} "
            f"of the time",
            "more gave no gain so far: cache what it fetches, or fetch larger pieces",
        )
    if load.kind in ("limit", "in_flight"):
        stage = next(stage for stage in counts.stages if stage.name == load.name)
        return (
            f"{load.kind}={stage.bound} is used {percent(load.share)} of the time",
            f"raise {load.kind}=",
        )
    return _explain_crew(counts, counts.crew(load.subject), load)


def _explain_crew(counts: Counts, crew: CrewCount, load: _Load) -> tuple[str, str]:
    if load.kind == "GIL":
        return (
            f"{crew.threads} threads are busy {percent(load.share)} of the time, but take turns: "
            f"the process uses {counts.machine.cpu / counts.seconds:.1f} cores",
            _release(counts, crew),
        )
    stage = next(stage for stage in counts.stages if stage.name == load.name)
    threads = f"{crew.threads} thread{'s' * (crew.threads != 1)}"
    if crew.processes:
        return (
            f"its {crew.size} are busy {percent(load.share)} of the time",
            "make it cheaper, drop samples before it, or use more cores",
        )
    if crew.name != "workers":
        return (
            f"its {threads} are busy {percent(load.share)} of the time",
            f"raise threads= above {crew.threads}",
        )
    part = stage.busy / max(1e-9, crew.busy)
    why = f"{threads} are busy {percent(load.share)} of the time, {percent(part)} of it here"
    if crew.cpu < 0.5 * crew.busy:
        return why, _uncover(counts, crew, stage)
    if crew.threads < counts.machine.cores:
        return why, f"there are {counts.machine.cores} cores: raise workers(...)"
    return why, "make it cheaper, drop samples before it, or use more cores"


def holders(counts: Counts, crew: CrewCount) -> list[StageCount]:
    """The stages that held the GIL while the crew took turns, the most costly first: those
    with a fifth of its time on a core. What lets go of the GIL would have used other cores."""
    mine = [stage for stage in counts.stages if stage.crew == crew.name]
    total = sum(stage.cpu for stage in mine)
    found = [stage for stage in mine if total > 0.0 and stage.cpu >= 0.2 * total]
    return sorted(found, key=lambda stage: -stage.cpu)


def _release(counts: Counts, crew: CrewCount) -> str:
    """What to do about turns, and where."""
    held = holders(counts, crew)
    total = sum(stage.cpu for stage in counts.stages if stage.crew == crew.name)
    told = ", ".join(f"{stage.name} ({percent(stage.cpu / total)} of its time)" for stage in held)
    moved = " and ".join(stage.name for stage in held if stage.name != "read")
    begun = f"the GIL was held in {told}: " if told else ""
    give = f", or give {moved or 'the stage'} gil_fallback='process'"
    return f"{begun}run on a free-threaded Python{give}"


def _uncover(counts: Counts, crew: CrewCount, stage: StageCount) -> str:
    """Workers that are busy but not on a core."""
    seen = f"only {percent(crew.cpu / max(1e-9, crew.busy))} of that was spent on a core"
    return (
        f"{seen}: if {stage.name} waits for a disk or a network, give it threads of its own; "
        f"else other programs hold the cores"
    )


def percent(share: float) -> str:
    """A share in words.

    >>> percent(0.954)
    '95 %'
    """
    return f"{100 * share:.0f} %"


def number(value: float) -> str:
    """A count or rate with as many digits as matter.

    >>> [number(value) for value in (0.123, 4.56, 78.9, 1234567)]
    ['0.12', '4.6', '79', '1,234,567']
    """
    if value >= 10:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"

"""What was counted in a run: plain frozen data, whoever counted it.

Guarantees
- Nothing here refers to a thread, a file or a sample: every field is a number, a string or
  more of the same, so a ``Counts`` can be kept, pickled, compared and written as JSON.
- All times are seconds. Times of many threads are added up: 2 threads that are busy for 3 s
  are 6 s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from nogil_loader.device.transfer import TransferReport

SOURCE = "source"
"""An idle thread waits for a stream to yield the next sample."""
INPUT = "input"
"""It waits for what other threads have yet to finish."""
RULE = "rule"
"""There is work, but ``serial``, ``limit`` or ``in_flight`` lets nobody in now."""
MEMORY = "memory"
"""Another sample would exceed the byte budget."""
ORDER = "order"
"""The look-ahead is used up by samples behind one that is not finished."""
CONSUMER = "consumer"
"""The look-ahead is used up by batches that nobody has taken."""
END = "end"
"""No work will come again: the end of the data is being finished by others."""

WAITS = (SOURCE, INPUT, RULE, MEMORY, ORDER, CONSUMER, END)


@dataclass(frozen=True)
class StageCount:
    """One op, over all threads."""

    name: str
    crew: str
    """The threads it runs on: ``"workers"``, or its own name where it has private ones."""
    level: int = 0
    """How many grouping stages come before it: 0 works on samples, 1 on batches, …"""
    samples: int = 0
    """Values that went in (batches, where ``level`` is not 0)."""
    failures: int = 0
    """Calls that raised; a retry that raises again counts again."""
    skipped: int = 0
    busy: float = 0.0
    cpu: float = 0.0
    """Of ``busy``, the time on a core, of threads or of worker processes."""
    p50: float = 0.0
    """Half of the calls took at most so long; cheap ops are timed by the block, not the call."""
    p90: float = 0.0
    p99: float = 0.0
    slowest: float = 0.0
    """Upper edge of the bin, a power of two of nanoseconds, that the slowest call fell into."""
    bytes: int = 0
    """Bytes of what came out, by weighing a few values of each block that was timed."""
    queued: int = 0
    """Samples that wait before it at the moment of the report,"""
    fill: float = 0.0
    """and how many did, on average, whenever a thread came to take some."""
    rule: str = ""
    """``"serial"``, ``"limit"``, ``"in_flight"``, ``"auto"`` or nothing."""
    bound: int = 0
    """How many the rule lets in at once."""
    flying: float = 0.0
    """``in_flight``: the times of all futures, added up."""


@dataclass(frozen=True)
class CrewCount:
    """One kind of threads: the shared workers, or the private threads of a stage."""

    name: str
    threads: int
    busy: float = 0.0
    cpu: float = 0.0
    """Of ``busy``, the time on a core; the rest was spent waiting for a disk, a lock, a core."""
    waits: Mapping[str, float] = field(default_factory=dict)
    """Idle time by reason, one of ``WAITS``."""
    processes: bool = False
    """Whether each thread only drives a worker process, whose time ``cpu`` has, too."""

    @property
    def active(self) -> float:
        """Seconds from the start until there was no more work, for one thread."""
        idle = sum(self.waits.values()) - self.waiting(END)
        return (self.busy + idle) / max(1, self.threads)

    @property
    def share(self) -> float:
        """How much of its active time the crew was busy, 0 to 1."""
        total = self.active * self.threads
        return self.busy / total if total > 0.0 else 0.0

    @property
    def size(self) -> str:
        """How many there are: ``"4"`` threads, or ``"4 processes"``."""
        if not self.processes:
            return str(self.threads)
        return f"{self.threads} process{'es' * (self.threads != 1)}"

    def waiting(self, reason: str) -> float:
        """Idle time for that reason."""
        return self.waits[reason] if reason in self.waits else 0.0


@dataclass(frozen=True)
class StreamCount:
    """The thread that reads a stream."""

    reading: float = 0.0
    """Inside the iterator."""
    paused: float = 0.0
    """Waiting for room."""

    @property
    def share(self) -> float:
        """How much of its time it was inside the iterator, 0 to 1."""
        total = self.reading + self.paused
        return self.reading / total if total > 0.0 else 0.0


@dataclass(frozen=True)
class ConsumerCount:
    """Whoever takes the batches."""

    batches: int = 0
    """Taken; samples, where nothing is batched."""
    waited: float = 0.0
    """For batches, the first one included."""
    first: float = 0.0
    """From the start of the run to the first batch."""
    stalled: float = 0.0
    """Waiting after the first batch had come: what a trainer loses to loading."""
    worked: float = 0.0
    """From the first batch on, without waiting: what is done with them."""
    ready: float = 0.0
    """Deliveries that lay ready, on average, when it asked for one."""
    p50: float = 0.0
    """Half of the batches took at most so long from the source, where a thread set out to read
    the first of their samples, to the consumer's hands."""
    p90: float = 0.0
    p99: float = 0.0

    @property
    def share(self) -> float:
        """How much of its time it worked, from the first batch on, 0 to 1."""
        total = self.worked + self.stalled
        return self.worked / total if total > 0.0 else 0.0


@dataclass(frozen=True)
class MemoryCount:
    """Bytes in flight."""

    limit: int | None = None
    charged: int = 0
    largest: int = 0
    """The largest sample so far; measured only where there is a limit."""
    let_in: int = 0
    """Times that a sample was let in over the bounds because all else stood still."""


@dataclass(frozen=True)
class MachineCount:
    """The process as a whole."""

    cores: int = 1
    gil: bool = False
    cpu: float = 0.0
    """Seconds on a core since the run began, of every thread of the process."""
    isolated: bool = False
    """Whether that is a process of the run's own: ``run(isolate=True)``."""


@dataclass(frozen=True)
class Quarantined:
    """A sample that was dropped because an op raised, under ``on_error="skip"``.

    >>> bad = Quarantined(7, "train/cat/7.jpg", "decode", "ValueError", "no picture")
    >>> bad.error
    'ValueError: no picture'
    """

    position: int | None
    """In the epoch's global order; None for a whole file that could not be opened."""
    sample: str
    """Its reference: a path, a shard's member, a row."""
    stage: str
    type: str
    """Of the exception: the name of its class."""
    message: str
    epoch: int = 0

    @property
    def error(self) -> str:
        """Type and message of the exception."""
        return f"{self.type}: {self.message}"

    def as_line(self) -> str:
        """One line of a quarantine file: JSON, and a newline."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Counts:
    """A whole run, or as much of it as there has been."""

    seconds: float
    ended: bool
    samples: int
    """Samples in the batches that were handed out."""
    done: int = 0
    """Units of the source (what shards and resume count) that have an outcome."""
    length: int | None = None
    """How many there are; None for a stream that has not ended."""
    stages: tuple[StageCount, ...] = ()
    crews: tuple[CrewCount, ...] = ()
    consumer: ConsumerCount = field(default_factory=ConsumerCount)
    stream: StreamCount | None = None
    memory: MemoryCount = field(default_factory=MemoryCount)
    machine: MachineCount = field(default_factory=MachineCount)
    collated: float = 0.0
    """Seconds spent on making batches of samples whose rows were not known beforehand."""
    ordered: bool = True
    quarantined: tuple[Quarantined, ...] = ()
    abandoned: tuple[str, ...] = ()
    """Threads that hang in an op over its timeout, each with its stack."""
    device: TransferReport | None = None
    """What took batches to a device, if anything did; over all epochs of ``epochs()``."""
    changes: tuple[str, ...] = ()
    """What the run changed about itself as it went, and why."""

    def crew(self, name: str) -> CrewCount:
        """The crew of that name."""
        return next(crew for crew in self.crews if crew.name == name)

"""``Run.report()``: where the time went, as a record and as text.

Guarantees
- A ``Report`` is frozen plain data; ``as_dict()`` of it goes through ``json.dumps``.
- The text fits 100 columns as far as names allow, and its last line is ``bottleneck: NAME …``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap

from nogil_loader.observe.counts import END, WAITS, Counts, CrewCount, StageCount
from nogil_loader.observe.verdict import Verdict, judge, number, percent

_LISTED = 10
"""Quarantined samples that the text shows; the record has them all."""


@dataclass(frozen=True)
class Report:
    """What was counted, and what follows from it.

    ``print(report)`` for people; ``report.verdict`` for programs.
    """

    counts: Counts
    verdict: Verdict

    @classmethod
    def of(cls, counts: Counts) -> Report:
        """The report on these counts.

        >>> print(Report.of(Counts(seconds=2.0, ended=False, samples=0)))
        so far: 2.00 s, 0 samples (0.00/s), 0 batches (0.00/s)
        consumer: first batch after 0 us, then waited 0 us, worked 0 us
        bottleneck: nothing - nothing has been delivered yet; ask again later
        """
        return cls(counts, judge(counts))

    @property
    def samples_per_second(self) -> float:
        """Samples handed out, over the whole run."""
        return self.counts.samples / self.counts.seconds if self.counts.seconds > 0.0 else 0.0

    @property
    def batches_per_second(self) -> float:
        """Batches handed out, over the whole run."""
        counts = self.counts
        return counts.consumer.batches / counts.seconds if counts.seconds > 0.0 else 0.0

    @property
    def stall(self) -> float:
        """Share of the consumer's time after the first batch that it waited, 0 to 1."""
        return 1.0 - self.counts.consumer.share if self.counts.consumer.batches else 0.0

    def as_dict(self) -> dict[str, object]:
        """The record as dicts, lists, numbers and strings."""
        plain: dict[str, object] = json.loads(json.dumps(asdict(self)))
        return plain

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: Report) -> Iterator[str]:
    counts = report.counts
    yield (
        f"{'run' if counts.ended else 'so far'}: {seconds(counts.seconds)}, "
        f"{counts.samples:,} samples ({number(report.samples_per_second)}/s), "
        f"{counts.consumer.batches:,} batches ({number(report.batches_per_second)}/s)"
    )
    consumer = counts.consumer
    line = (
        f"consumer: first batch after {seconds(consumer.first)}, "
        f"then waited {seconds(consumer.stalled)}, worked {seconds(consumer.worked)}"
    )
    if consumer.worked + consumer.stalled > 0.0:
        line += f" (stalled {percent(report.stall)})"
    yield line
    if consumer.p99:
        yield (
            f"batches: {number(consumer.ready)} ready when one was asked for; from source to "
            f"consumer p50 {seconds(consumer.p50)}, p99 {seconds(consumer.p99)}"
        )
    if counts.stages:
        yield ""
        yield from _table([_HEAD, *(_row(stage) for stage in counts.stages)], "<<>>>>>>>>")
    if counts.crews:
        yield ""
        yield from _table(_crew_rows(counts), "<" + ">" * 9)
        yield ""
    yield from _remarks(counts)
    verdict = report.verdict
    yield from _estimates(verdict)
    doubt = "" if verdict.sure or verdict.kind == "unknown" else " (not sure)"
    yield f"bottleneck: {verdict.name}{doubt} - {verdict.why}; {verdict.cure}"


_HEAD = (
    "stage", "threads", "samples", "bytes", "failed", "skipped", "queue", "p50", "p90", "p99",
)  # fmt: skip


def _row(stage: StageCount) -> tuple[str, ...]:
    rule = ""
    if stage.rule:
        rule = f" {stage.rule}" if stage.rule == "serial" else f" {stage.rule}={stage.bound}"
    return (
        "  " * stage.level + stage.name,
        stage.crew + rule,
        f"{stage.samples:,}",
        volume(stage.bytes),
        f"{stage.failures:,}",
        f"{stage.skipped:,}",
        number(stage.fill) if stage.fill else "0",
        seconds(stage.p50),
        seconds(stage.p90),
        seconds(stage.p99),
    )


def _crew_rows(counts: Counts) -> list[tuple[str, ...]]:
    reasons = [reason for reason in WAITS if reason != END]
    rows: list[tuple[str, ...]] = [("threads", "count", "busy", "on core", *reasons)]
    for crew in counts.crews:
        total = crew.active * crew.threads
        shares = (crew.busy, crew.cpu, *(crew.waiting(reason) for reason in reasons))
        cells = [percent(share / total) if total > 0.0 else "-" for share in shares]
        rows.append((crew.name, crew.size, *cells))
        rows += _parts(counts, crew)
    if counts.stream is not None:
        share = counts.stream.share
        room = percent(1.0 - share)
        rows.append(("source", "1", percent(share), "", "", room, *[""] * 4))
    return rows


def _parts(counts: Counts, crew: CrewCount) -> Iterator[tuple[str, ...]]:
    """How the busy time of a crew with several stages divides between them."""
    mine = [stage for stage in counts.stages if stage.crew == crew.name]
    total = crew.active * crew.threads
    if total <= 0.0 or not mine or crew.name == mine[0].name:
        return
    parts = {stage.name: stage.busy for stage in mine}
    if crew is counts.crews[0]:
        parts["(batching)"] = counts.collated
    # Writing rows, handing over, and what the machine gave to others in between.
    parts["(the rest)"] = crew.busy - sum(parts.values())
    for name, busy in parts.items():
        if busy > 0.0:
            yield (f"  {name}", "", percent(busy / total), *[""] * 7)


def _remarks(counts: Counts) -> Iterator[str]:
    memory, machine = counts.memory, counts.machine
    if memory.limit is not None:
        yield (
            f"memory: {memory.charged:,} of {memory.limit:,} bytes in flight, largest sample "
            f"{memory.largest:,}; one more let in over the bounds {memory.let_in} times"
        )
    if machine.cpu > 0.0 and counts.seconds > 0.0:
        gil = "on" if machine.gil else "off"
        used = machine.cpu / counts.seconds
        whose = "the run's own process" if machine.isolated else "process"
        yield f"{whose}: {used:.2f} of {machine.cores} cores used, the GIL is {gil}"
    if counts.device is not None:
        yield from wrap(f"device: {counts.device}", 98, subsequent_indent="  ")
    yield from counts.changes
    if counts.quarantined:
        yield f"skipped: {len(counts.quarantined):,}"
        for bad in counts.quarantined[:_LISTED]:
            yield f"  position {bad.position}: {bad.sample} in {bad.stage}: {bad.error}"
        if len(counts.quarantined) > _LISTED:
            yield f"  and {len(counts.quarantined) - _LISTED:,} more in report().counts.quarantined"
    for stack in counts.abandoned:
        yield f"abandoned: {stack}"


def _estimates(verdict: Verdict) -> Iterator[str]:
    parts = []
    if verdict.ceiling is not None:
        parts.append(f"loading alone could give {number(verdict.ceiling)} samples/s")
    if verdict.demand is not None:
        parts.append(f"the consumer alone could take {number(verdict.demand)}")
    if parts:
        yield "ceiling: " + ", ".join(parts)


def seconds(value: float) -> str:
    """A duration with a fitting unit.

    >>> [seconds(value) for value in (0.0000021, 0.0345, 1.5, 90, 7322)]
    ['2.1 us', '34 ms', '1.50 s', '1:30', '2:02:02']
    """
    if value >= 60:
        minutes, rest = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
    if value >= 1:
        return f"{value:.2f} s"
    scaled, unit = (value * 1e3, "ms") if value >= 1e-3 else (value * 1e6, "us")
    return f"{scaled:.1f} {unit}" if 0 < scaled < 10 else f"{scaled:.0f} {unit}"


def volume(count: float) -> str:
    """Bytes with the unit that suits them.

    >>> volume(0), volume(999), volume(1_234_567)
    ('0 B', '999 B', '1.23 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"


def _table(rows: Sequence[Sequence[str]], align: str) -> Iterator[str]:
    """Rows as aligned lines; ``align`` has ``<`` or ``>`` for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:{side}{wide}}" for cell, side, wide in zip(row, align, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()

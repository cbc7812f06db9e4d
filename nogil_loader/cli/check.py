"""``nogil-loader check DATA``: read a whole data set once, before a week of training does.

Guarantees
- Every sample is read, with ``--decode`` decoded; every broken one is named with its reason,
  and none ends the check.
- Memory does not grow with the data, but for the list of what is broken.
- Exit status 1 where something is broken, 2 where there is nothing to check.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import nogil_loader as nl
from nogil_loader.cli._inspect import Inspect, Item
from nogil_loader.cli._results import duration
from nogil_loader.cli._terminal import Style, UsageError, table
from nogil_loader.observe.counts import Quarantined
from nogil_loader.observe.report import volume
from nogil_loader.sources.arrays import Arrays
from nogil_loader.sources.base import Reader, Source
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError, UnsupportedMemberError
from nogil_loader.sources.files import Files
from nogil_loader.sources.lines import Lines
from nogil_loader.sources.locations import listed
from nogil_loader.sources.parquet import Parquet
from nogil_loader.sources.sequence import SequenceReader
from nogil_loader.sources.store import Store
from nogil_loader.sources.tar import Tar
from nogil_loader.sources.zip import Zip

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

SHOWN = 20
"""Broken samples, and kinds, that the text lists; ``--json`` has them all."""
SHAPES = 1_000
"""Different shapes that are counted apart for each kind."""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "check",
        help="read (and decode) a whole data set: what is in it, and what is broken",
        description="Reads a whole data set once and tells what is in it and what is broken.",
    )
    add = parser.add_argument
    add("data", metavar="DATA", help="a folder; tar, zip, Parquet, npy, npz or text files (also"
        " a pattern, 'shards/*.tar'); or the address of a store (s3://…)")  # fmt: skip
    add("--decode", action="store_true", help="decode pictures, sounds, arrays, text and JSON")
    add("--workers", type=int, metavar="N", help="threads that read and decode (usable cores)")
    add("--json", action="store_true", help="print what was found as JSON")
    add("--quarantine", type=Path, metavar="FILE", help="write each broken sample and its reason,"
        " as one JSON object a line")  # fmt: skip
    parser.set_defaults(command=run)


@dataclass
class Kind:
    """What was counted of one kind of content."""

    count: int = 0
    size: int = 0
    smallest: int = sys.maxsize
    largest: int = 0
    seconds: float = 0.0
    shapes: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)

    def add(self, item: Item) -> None:
        """Count one more."""
        self.count += 1
        self.size += item.size
        self.smallest = min(self.smallest, item.size)
        self.largest = max(self.largest, item.size)
        self.seconds += item.seconds
        if item.dtype:
            self.dtypes[item.dtype] += 1
        if item.shape is not None:
            shape = "x".join(map(str, item.shape)) or "scalar"
            if item.seconds:
                shape = f"{item.shape[0]} Hz, {item.shape[1]} ch"
            known = shape in self.shapes or len(self.shapes) < SHAPES
            self.shapes[shape if known else "other"] += 1


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the check found."""

    samples: int
    seconds: float
    kinds: dict[str, Kind]
    broken: list[Quarantined]
    limit: str


class Numbers(SequenceReader):
    """The numbers of an opened source's samples, called by the samples' own names."""

    def __init__(self, named: Reader) -> None:
        super().__init__(range(len(named)))
        self._named = named

    def open(self) -> Numbers:
        """It is its own source."""
        return self

    def ref(self, index: int) -> object:
        return self._named.ref(index)


def run(args: argparse.Namespace) -> int:
    """Open, read, print."""
    if args.workers is not None and args.workers < 1:
        raise UsageError("--workers must be positive")
    if args.quarantine and not args.quarantine.absolute().parent.is_dir():
        raise UsageError(f"cannot write {args.quarantine}: no such folder")
    reader, unopened = open_whole(args.data)
    ending = "json" if args.data.endswith((".jsonl", ".jsonl.gz")) else "txt"
    if args.quarantine:
        with args.quarantine.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(bad.as_line() for bad in unopened)
    try:
        found = check(reader, args.decode, args.workers, ending, args.quarantine)
    finally:
        reader.close()
    found.broken[:0] = unopened
    if args.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        print(render(found, Style(sys.stdout)))
    return 1 if found.broken else 0


def open_data(data: str) -> Reader:
    """The reader for what ``data`` names; ``UsageError`` where there is nothing to read."""
    try:
        reader = source_of(data).open()
    except FileNotFoundError as error:
        raise UsageError(f"there is no {error.filename or data}") from None
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"cannot read {error.filename or data}: {reason}") from None
    except (ValueError, RuntimeError, ImportError) as error:  # empty, damaged, without its extra
        raise UsageError(str(error)) from None
    return reader


def open_whole(data: str) -> tuple[Reader, list[Quarantined]]:
    """A reader over every shard that can be opened, and the others."""
    try:
        return open_data(data), []
    except UsageError:
        source = source_of(data)
        if not isinstance(source, (Tar, Zip, Parquet)):
            raise
        shards = listed(getattr(source, fields(source)[0].name), "shard")
        good, broken = sort_out(type(source), shards)
        if not good or not broken:
            raise
    return type(source)(good).open(), broken


def sort_out(
    make: Callable[[str], Source], shards: list[str]
) -> tuple[list[str], list[Quarantined]]:
    """The shards that can be opened alone, and those that can't, with their reasons."""
    good: list[str] = []
    broken: list[Quarantined] = []
    for shard in shards:
        try:
            make(shard).open().close()
        except (BrokenFileError, EmptySourceError, UnsupportedMemberError, OSError) as error:
            broken.append(Quarantined(None, shard, "open", type(error).__name__, str(error)))
        else:
            good.append(shard)
    return good, broken


BY_ENDING: dict[str, Callable[[str], Source]] = {
    ".tar": Tar,
    ".zip": Zip,
    ".parquet": Parquet,
    ".npy": Arrays,
    ".npz": Arrays,
    **dict.fromkeys((".jsonl", ".txt", ".csv", ".tsv", ".gz"), Lines),
}


def source_of(data: str) -> Source:
    """The source for a folder, a file or a pattern, or an address.

    A folder with nothing but shards of one kind is read as those, any other file by file.
    """
    if os.path.isdir(data):
        names = [name for name in os.listdir(data) if not name.startswith(".")]
        endings = {os.path.splitext(name)[1] for name in names}
        if len(endings) == 1 and (ending := endings.pop()) in (".tar", ".zip", ".parquet"):
            return BY_ENDING[ending](os.path.join(glob.escape(data), f"*{ending}"))
        return Files(data)
    make = BY_ENDING.get(os.path.splitext(urlsplit(data).path if "://" in data else data)[1])
    if make is not None:
        return make(data)
    if "://" in data:
        return Store(data)
    if not os.path.exists(data) and not glob.has_magic(data):
        raise UsageError(f"there is no {data}")
    raise UsageError(f"{data} is no folder and does not end in {', '.join(BY_ENDING)}")


def check(
    reader: Reader,
    decode: bool,
    workers: int | None,
    ending: str = "",
    quarantine: Path | None = None,
) -> Findings:
    """Read every sample of an opened source; progress goes to standard error.

    ``ending`` is that of content that comes without a name, as lines do. ``quarantine``: a file
    to which broken samples are added as they are found.
    """
    op = Inspect(reader, decode, ending)
    numbers: nl.Pipeline[int] = nl.Pipeline(Numbers(reader))
    pipeline = numbers.map(op, threads=reader.threads, on_error="skip", name="inspect")
    pipeline = pipeline.batch(64, collate=list).workers(workers)
    kinds: dict[str, Kind] = {}
    with pipeline.run(quarantine=quarantine) as run, nl.progress(run) as batches:
        for batch in batches:
            assert isinstance(batch, list)
            for item in chain.from_iterable(batch):
                kinds.setdefault(item.kind, Kind()).add(item)
        report = run.report()
    broken = list(report.counts.quarantined)
    return Findings(len(reader), report.counts.seconds, kinds, broken, report.verdict.name)


def render(found: Findings, style: Style) -> str:
    """What was found, for a reader; what is broken comes last."""
    size = sum(kind.size for kind in found.kinds.values())
    rate, speed = found.samples / found.seconds, size / found.seconds
    lines = [
        f"{style.bold(f'{found.samples:,}')} samples, {volume(size)} in {duration(found.seconds)}:"
        f" {rate:,.0f} samples/s, {volume(speed)}/s, limited by {found.limit}",
        "",
    ]
    heads = ("kind", "count", "bytes", "smallest", "largest", "lasts", "shapes and types")
    rows = [[style.dim(head) for head in heads]]
    common = sorted(found.kinds.items(), key=lambda pair: -pair[1].count)
    for name, kind in common[:SHOWN]:
        lasts = f"{kind.seconds / 3600:.2f} h" if kind.seconds else ""
        sizes = [volume(value) for value in (kind.size, kind.smallest, kind.largest)]
        rows.append([name, f"{kind.count:,}", *sizes, lasts, _shapes(kind)])
    lines.append(table(rows, "<>>>>><"))
    if len(common) > SHOWN:
        lines.append(style.dim(f"  and {len(common) - SHOWN} rarer kinds"))
    if not found.broken:
        return "\n".join([*lines, "", style.good("Nothing is broken.")])
    lines += ["", style.bad(f"{len(found.broken):,} broken:")]
    lines += [f"  {bad.sample}\n    {bad.error}" for bad in found.broken[:SHOWN]]
    if len(found.broken) > SHOWN:
        lines.append(f"  and {len(found.broken) - SHOWN:,} more: --quarantine FILE lists them all")
    return "\n".join(lines)


def _shapes(kind: Kind) -> str:
    """The commonest shapes, and the types."""
    common = [f"{shape} ({count:,})" for shape, count in kind.shapes.most_common(3)]
    if len(kind.shapes) > 3:
        common.append(f"{len(kind.shapes) - 3:,} more")
    return "; ".join(filter(None, [", ".join(common), ", ".join(sorted(kind.dtypes)[:3])]))


def as_json(found: Findings) -> dict[str, object]:
    """What was found, for other programs."""
    return {
        "samples": found.samples,
        "seconds": found.seconds,
        "samples_per_second": found.samples / found.seconds,
        "limit": found.limit,
        "kinds": {name: asdict(kind) for name, kind in found.kinds.items()},
        "broken": [asdict(bad) for bad in found.broken],
    }

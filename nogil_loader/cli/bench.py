"""``nogil-loader bench [DATA]``: what free threading is worth, on this machine and these files.

Guarantees
- Measures the pipeline with the GIL off, with the GIL on in the same interpreter, and in the
  reference interpreter where there is one, beside the same work as a loop written by hand; in
  child processes that take turns, so that a busy moment hits all of them.
- Says what is not like for like, and gives no ratio to what was unsteady.
- Ctrl-C, and SIGTERM, leave no child and no temporary file behind.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from nogil_loader import runtime
from nogil_loader.cli import _measure
from nogil_loader.cli._measure import Subject
from nogil_loader.cli._results import Result, Series, as_json, heading, render
from nogil_loader.cli._terminal import Progress, Style, UsageError
from nogil_loader.cli.workloads import WORKLOADS, pictures
from nogil_loader.cli.workloads.base import Prepared

Number = TypeVar("Number", int, float)

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    Subparsers = _SubParsersAction[argparse.ArgumentParser]

USUAL = ("pictures", "text")
"""What is measured unless told; only pictures where the user's own were given."""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure loading with the GIL off and on, beside a loop written by hand",
        description="Measures loading in batches with the GIL off and on, at 1, 2 … usable "
        "cores, beside the same work as a loop written by hand. Takes a good half minute for "
        "each workload.",
    )
    add = parser.add_argument
    data = "a folder of pictures; without it, sample data is made in a temporary folder"
    add("data", nargs="?", type=Path, metavar="DATA", help=data)
    only = f"measure this, not {' and '.join(USUAL)} (may be given again): "
    only += ", ".join(WORKLOADS)
    add("--workload", action="append", choices=tuple(WORKLOADS), metavar="NAME", help=only)
    rounds = "measurements of each line, of which the median is shown (default 3; quick 1)"
    add("--rounds", type=_positive(int), metavar="N", help=rounds)
    seconds = "least duration of one measurement (default 1.0; quick 0.3)"
    add("--seconds", type=_positive(float), metavar="S", help=seconds)
    workers = "numbers of workers (default 1, 2, 4 … usable cores)"
    add("--workers", type=_counts, metavar="N,N", help=workers)
    add(
        "--quick",
        action="store_true",
        help="little data, one short round: a look, not a measurement",
    )
    reference = "a Python built like this one but with the GIL (found where ci/reference made it)"
    add("--reference", metavar="PYTHON", help=reference)
    add("--seed", type=int, default=0, help="of the sample data (default 0)")
    add("--json", type=Path, metavar="FILE", help="write everything to FILE")
    add("--html", type=Path, metavar="FILE", help="write a page with charts (needs matplotlib)")
    parser.set_defaults(command=run)


def _positive(kind: type[Number]) -> Callable[[str], Number]:
    def positive(text: str) -> Number:
        if (value := kind(text)) <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not positive")
        return value

    return positive


def _counts(text: str) -> tuple[int, ...]:
    return tuple(sorted(set(map(_positive(int), text.split(",")))))


def run(args: argparse.Namespace) -> int:
    """Prepare, measure, print."""
    _check_paths(args)
    rounds = args.rounds or (1 if args.quick else 3)
    seconds = args.seconds or (0.3 if args.quick else 1.0)
    workers = args.workers or worker_counts(runtime.usable_cores())
    series, notes = all_series(args.reference)
    facts, results = _measure.machine(), []
    style = Style(sys.stdout)
    print(heading(facts, runtime.interpreter().version, style), flush=True)
    with _temporary_folder() as folder, Progress() as progress:
        for name in args.workload or (USUAL if args.data is None else USUAL[:1]):
            prepared = _prepare(name, folder, args, progress)
            result = _measure_all(name, prepared, series, workers, rounds, seconds, progress)
            results.append(result)
            progress.show("")
            print("\n" + render(result, style), flush=True)
    for note in notes:
        print("\n" + textwrap.fill(note, 98, break_long_words=False, break_on_hyphens=False))
    if args.json:
        args.json.write_text(json.dumps(as_json(facts, results, notes), indent=1) + "\n")
    if args.html:
        from nogil_loader.cli._page import page

        args.html.write_text(page(facts, results, notes), encoding="utf-8")
    return 0


def _check_paths(args: argparse.Namespace) -> None:
    """What cannot be read or written is said at once, not after minutes of measuring."""
    if args.data is not None and not args.data.is_dir():
        what = "is no folder" if args.data.exists() else "does not exist"
        raise UsageError(f"{args.data} {what}: DATA is a folder of pictures")
    for path in (args.json, args.html):
        if path and not path.absolute().parent.is_dir():
            raise UsageError(f"cannot write {path}: no such folder")
    if args.html and importlib.util.find_spec("matplotlib") is None:
        raise UsageError('--html needs matplotlib: pip install "nogil_loader[plot]"')


def worker_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4 … and the number of cores.

    >>> worker_counts(6)
    (1, 2, 4, 6)
    """
    return tuple(sorted({1 << power for power in range(cores.bit_length())} | {cores}))


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that goes however this ends; nothing interrupts its going."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before: list[tuple[signal.Signals, Callable[[int, FrameType | None], object] | int | None]]
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGTERM, stop)
    holder = tempfile.TemporaryDirectory(prefix="nogil-loader-bench-")
    try:
        yield Path(holder.name)
    finally:
        for number, _ in before:
            signal.signal(number, signal.SIG_IGN)
        holder.cleanup()
        for number, handler in before:
            signal.signal(number, handler)


def all_series(reference: str | None) -> tuple[tuple[Series, ...], list[str]]:
    """The interpreters to measure, and what has to be said about them."""
    python, notes = _measure.this_python, []
    version = runtime.interpreter().version
    if not runtime.free_threaded():
        notes.append(
            f"Python {version} always has a GIL, so nothing here shows what free threading is"
            " worth. ci/nogil nogil-loader bench makes a free-threaded Python first."
        )
        return (
            Series("on", "GIL on", python(), "engine"),
            Series("hand", "by hand", python(), "hand"),
        ), notes
    series = [
        Series("off", "GIL off", python("-X", "gil=0"), "engine"),
        Series("on", "GIL on", python("-X", "gil=1"), "engine"),
        Series("hand", "by hand", python("-X", "gil=0"), "hand"),
    ]
    other = reference or _measure.reference_python()
    if other is None:
        notes.append(
            "No reference interpreter: the fair comparison is with the same Python built with"
            " the GIL. `ci/reference true` makes one; --reference names one."
        )
        return tuple(series), notes
    try:
        found, mine = _measure.identify(other), _measure.identify(sys.executable)
    except (OSError, _measure.ChildFailed) as error:
        raise UsageError(f"the reference interpreter {other} does not run: {error}") from None
    if found["free_threaded"]:
        raise UsageError(f"the reference interpreter {other} is free-threaded, too")
    missing = set(mine["modules"]) - set(found["modules"])  # type: ignore[call-overload]
    if missing:
        notes.append(f"The reference {other} is left out: it has no {', '.join(sorted(missing))}.")
        return tuple(series), notes
    label = "reference"
    if not _measure.like_for_like(found, mine):
        label += " (*)"
        notes.append(
            f"(*) Not like for like: the reference, {other}, is Python {found['version']} built"
            f" by {found['compiler']}, this is {mine['version']} by {mine['compiler']}, and the"
            " options of their builds may differ."
        )
    else:
        notes.append(f"The reference, {other}, is the same version, source and options.")
    series.insert(2, Series("reference", label, (other,), "engine"))
    return tuple(series), notes


def _prepare(name: str, folder: Path, args: argparse.Namespace, progress: Progress) -> Prepared:
    workload = WORKLOADS[name]
    count = workload.few if args.quick else workload.count
    count *= max(1, runtime.usable_cores() // 4)  # enough batches for every worker
    home = folder / name
    home.mkdir()
    if name == "pictures" and args.data is not None:
        return pictures.take(home, args.data, count, progress.show)
    progress.show(f"{name}: making {count} samples")
    return workload.prepare(home, count, args.seed)


def _measure_all(
    name: str,
    prepared: Prepared,
    series: Sequence[Series],
    workers: Sequence[int],
    rounds: int,
    seconds: float,
    progress: Progress,
) -> Result:
    subjects, cells = [], {}
    for count in workers:
        for one in series:
            subject = Subject(
                f"{one.label}, {count} worker{'s' * (count > 1)}",
                one.python,
                {
                    "workload": name,
                    "variant": WORKLOADS[name].loop if one.variant == "hand" else one.variant,
                    "folder": str(prepared.folder),
                    "workers": count,
                    "seconds": seconds,
                },
            )
            subjects.append(subject)
            cells[subject.name] = (one.key, count)
    began = time.monotonic()

    def tell(done: int, of: int, subject: Subject) -> None:
        left = (time.monotonic() - began) / done * (of - done) if done else 0
        rest = f", about {left:.0f} s left" if done else ""
        progress.show(f"{name} {done + 1}/{of}: {subject.name}{rest}")

    try:
        found = _measure.take_turns(subjects, rounds, tell)
    except _measure.ChildFailed as error:
        raise UsageError(f"{name}: {error}") from None
    return Result(
        name,
        prepared.about,
        tuple(series),
        tuple(workers),
        {cells[subject]: measured for subject, measured in found.items()},
    )

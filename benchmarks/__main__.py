"""python -m benchmarks [NAME…] [--quick] [--json FILE] [--html FILE] [--page FILE]"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import page
from benchmarks.harness import FULL, QUICK, Plan, Size, report, run
from benchmarks.plants import PLANTS
from benchmarks.results import Found, Results, as_json
from benchmarks.targets import judge
from nogil_loader import runtime
from nogil_loader.cli._measure import Subject, machine
from nogil_loader.cli._terminal import Progress

NAMES = (
    "overhead",
    "model",
    "pictures",
    "text",
    "audio",
    "arrays",
    "tokens",
    "server",
    "turnaround",
    "resume",
    "memory",
    "skew",
    "fallback",
)


def main() -> int:
    """Run the benchmarks that were named, all of them by default, and print their tables."""
    args = _arguments()
    facts = {**machine(), "python": runtime.interpreter().version}
    print("\n".join(f"- {key}: {value}" for key, value in facts.items()), flush=True)
    size = QUICK if args.quick else FULL
    size = Size(args.seconds or size.seconds, size.quick)
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    rounds = args.rounds or (1 if args.quick else 5)
    measured: list[tuple[Plan, Found]] = []
    with Progress() as progress:

        def tell(done: int, of: int, subject: Subject) -> None:
            progress.show(f"{done + 1}/{of}: {subject.name}")

        for name in args.names or NAMES:
            module = importlib.import_module(f"benchmarks.{name}")
            with TemporaryDirectory(prefix="nogil-loader-benchmark-") as folder:
                for plan in module.plans(Path(folder), size, args.data):
                    plan, found = run(plan, rounds, tell, args.plant)
                    progress.show("")
                    measured.append((plan, found))
                    print("\n" + report(plan, found), flush=True)
                    results = Results(command, facts, tuple(measured))
                    if args.json:  # each time: a run that is ended early leaves what it has
                        text = json.dumps(as_json(results), indent=1) + "\n"
                        args.json.write_text(text, encoding="utf-8")
    for one in judge(results.measured):
        print({True: "met   ", False: "MISSED", None: "?     "}[one.met], *one.line)
    if args.html:
        args.html.write_text(page.html(results), encoding="utf-8")
    if args.page:
        page.write(results, args.page)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    add("--data", type=Path, help="a folder of pictures to use, not made ones")
    add("--quick", action="store_true", help="little data, one short round")
    add("--rounds", type=int, help="measurements of each (default 5; quick 1)")
    add("--seconds", type=float, help="least length of a measurement (default 1; quick 0.3)")
    add("--json", type=Path, metavar="FILE", help="write everything to FILE")
    add("--html", type=Path, metavar="FILE", help="write a page that needs nothing but itself")
    add("--page", type=Path, metavar="FILE", help="write the measured part of a Markdown page")
    add("--plant", choices=tuple(PLANTS), help="a defect that the numbers have to show")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}: {', '.join(NAMES)}")
    return args


if __name__ == "__main__":
    sys.exit(main())

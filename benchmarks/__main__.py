"""python -m benchmarks [NAME…] [--data FOLDER] [--quick] [--rounds N] [--json FILE]"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import losses, measure, report
from nogil_loader import runtime
from nogil_loader.cli._measure import Subject, machine, take_turns
from nogil_loader.cli._terminal import Progress

NAMES = ("overhead", "pictures", "text", "audio", "arrays", "turnaround")


TITLE = """# Measurements

Made by `python -m benchmarks {command}`. Medians, with half the range behind ±; subjects took
turns, each measurement in a process of its own. CPU time and memory (PSS) are those of all
processes of a subject.

{head}"""
WORSE = "## Where the engine does worse than something else"


def main() -> int:
    """Run the benchmarks that were named, all of them by default, and print their tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--data", type=Path, help="a folder of pictures to use, not made ones")
    parser.add_argument("--quick", action="store_true", help="little data, one short round")
    parser.add_argument("--rounds", type=int, help="measurements of each (default 5; quick 1)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to FILE")
    args = parser.parse_args()
    if unknown := set(args.names) - set(NAMES):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}: {', '.join(NAMES)}")
    facts = {**machine(), "python": runtime.interpreter().version}
    head = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    print(head, flush=True)
    kept, tables, lost = [], [], []
    with Progress() as progress:

        def tell(done: int, of: int, subject: Subject) -> None:
            progress.show(f"{done + 1}/{of}: {subject.name}")

        for name in args.names or NAMES:
            module = importlib.import_module(f"benchmarks.{name}")
            with TemporaryDirectory(prefix="nogil-loader-benchmark-") as folder:
                for plan in module.plans(Path(folder), args.quick, args.data):
                    rounds = args.rounds or (1 if args.quick else 5)
                    found = take_turns(plan.subjects(), rounds, tell, measure)
                    progress.show("")
                    tables.append(report(plan, found))
                    lost += losses(plan, found)
                    print("\n" + tables[-1], flush=True)
                    measured = {key: [asdict(m) for m in ms] for key, ms in found.items()}
                    kept.append({"name": plan.title, "notes": plan.notes, "measured": measured})
    if args.markdown:
        first = "\n".join(f"- {line}" for line in lost) or "Nowhere in this run."
        parts = [TITLE.format(command=" ".join(sys.argv[1:]), head=head), WORSE, first, *tables]
        args.markdown.write_text("\n\n".join(parts), encoding="utf-8")
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, "benchmarks": kept}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

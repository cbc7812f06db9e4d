"""The nogil-loader command.

Each subcommand is a module with ``add_parser(subparsers)``, which sets ``run`` as its default
for ``command``, and ``run(args) -> int``, whose result is the exit status: 0 when all is well,
1 when what was looked at is not, 2 when the question made no sense.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nogil_loader import __version__
from nogil_loader.cli import bench, check, cluster_check, doctor, watch
from nogil_loader.cli._terminal import UsageError

COMMANDS = (bench, check, doctor, cluster_check, watch)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (``sys.argv[1:]``) and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="nogil-loader",
        description="Data loading on Python threads that really run at the same time.",
    )
    parser.add_argument("--version", action="version", version=f"nogil-loader {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    args = parser.parse_args(argv)
    try:
        return int(args.command(args))
    except UsageError as error:
        print(f"nogil-loader: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nnogil-loader: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `… | head`
        sys.stderr.close()
        return 1

"""Tests in a process of their own, with a deadline: a hang is a failure, not a stuck suite.

Guarantees
- The test's function runs in a fresh interpreter of the same build, with the same warnings
  filter (every warning an error), and with nothing imported but what its module imports.
- A child that is not done in time prints the stack of every thread and is killed.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import TypeAlias

Test: TypeAlias = "Callable[[], None]"

_INSIDE = "NOGIL_LOADER_TEST_CHILD"
"""Set: this is the child already, or one that should do without (``ci/mutants``)."""


def in_child(deadline: float = 20.0, exit_status: int = 0) -> Callable[[Test], Test]:
    """Decorates a test without arguments, so that it runs in a child process.

    ``deadline``: seconds until the child is killed and the test fails. ``exit_status``: what the
    child must exit with; a failed assertion is 1. The message of a failure is what the child
    wrote.
    """

    def decorate(test: Test) -> Test:
        if os.environ.get(_INSIDE):
            return test

        @functools.wraps(test)
        def run() -> None:
            command = [sys.executable, "-m", __name__, test.__code__.co_filename, test.__name__]
            environment = {**os.environ, _INSIDE: str(deadline)}
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            try:
                said, _ = child.communicate(timeout=deadline + 5.0)
            except subprocess.TimeoutExpired:
                child.kill()
                said, _ = child.communicate()
            if child.returncode != exit_status:
                raise AssertionError(f"the child ended with {child.returncode}:\n{said}")

        return run

    return decorate


def main(path: str, name: str) -> None:
    """In the child: run one test of a file."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(float(os.environ[_INSIDE]), exit=True)
    warnings.simplefilter("error")
    spec = importlib.util.spec_from_file_location("tests_in_child", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    getattr(module, name)()


if __name__ == "__main__":
    main(*sys.argv[1:])

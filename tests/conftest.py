"""What holds for every test: it leaves no thread, file descriptor or child process behind.

A thread or child that is already on its way out gets a moment to finish, by waiting for it;
what is still there after that fails the test that left it. Warnings are errors by the
configuration in ``pyproject.toml``.
"""

from __future__ import annotations

import gc
import os
import select
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from hypothesis import Phase, settings

settings.register_profile("mutants", phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""For ``ci/mutants``, which asks whether a test fails and not for the smallest example."""

GRACE = 2.0
"""Seconds that a test's threads and children may take, all together, to be gone."""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    threads, files, children = set(threading.enumerate()), open_files(), child_processes()
    yield
    deadline = time.monotonic() + GRACE
    left = [
        *(f"thread {thread.name!r}" for thread in threads_left(threads, deadline)),
        *(f"child process {pid}: {name}" for pid, name in children_left(children, deadline)),
        *(f"file descriptor {number}: {name}" for number, name in files_left(files)),
    ]
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


def threads_left(before: set[threading.Thread], deadline: float) -> list[threading.Thread]:
    # A dummy stands for a foreign thread, or for one of ours that asks for its name at its very
    # end (in a finalizer): it is no thread that anybody could join.
    started = [
        thread
        for thread in threading.enumerate()
        if thread not in before and not isinstance(thread, threading._DummyThread)
    ]
    for thread in started:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread for thread in started if thread.is_alive()]


def children_left(before: dict[int, str], deadline: float) -> list[tuple[int, str]]:
    """Children that run, and those that ended but were never waited for."""
    if child_processes().keys() - before.keys():
        gc.collect()  # a forgotten Popen or Process reaps its child when it goes
    left = {pid: name for pid, name in child_processes().items() if pid not in before}
    for pid in left:
        await_exit(pid, deadline)
    now = child_processes()
    return [(pid, name) for pid, name in left.items() if pid in now]


def files_left(before: dict[int, str]) -> list[tuple[int, str]]:
    def new() -> list[tuple[int, str]]:
        return [(number, name) for number, name in open_files().items() if number not in before]

    if new():
        gc.collect()
    return new()


def open_files() -> dict[int, str]:
    """What each open descriptor of this process refers to."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    tracker = getattr(resource_tracker._resource_tracker, "_fd", None)
    found.pop(tracker, None)  # multiprocessing's tracker lives as long as the process
    return found


def child_processes() -> dict[int, str]:
    """The command of every child of this process, finished ones included."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            pids = (task / "children").read_text().split()
        except FileNotFoundError:  # a thread that has just ended
            continue
        for pid in map(int, pids):
            found[pid] = command_of(pid)
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    found.pop(tracker, None)
    return found


def command_of(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return "(gone)"
    return command.replace(b"\0", b" ").decode(errors="replace").strip() or "(finished)"


def await_exit(pid: int, deadline: float) -> None:
    """Block until the process has ended or the deadline has passed; never reap it."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        os.close(handle)

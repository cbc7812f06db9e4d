"""A deterministic scheduler for threads: explores interleavings of real code.

Guarantees
- One thread runs at a time. Which one goes on is decided by the scheduler, at every line of
  the watched files and at every lock, queue and wait; the same decisions give the same run.
- ``explore`` goes through every run with at most so many preemptions (switches away from a
  thread that could go on); ``wander`` through runs drawn by a seed.
- A run in which nobody can go on, while somebody waits, is a ``Deadlock`` that says who
  waits where, and how to repeat it.

The code under test is the real code. What it takes from ``threading``, ``queue`` and
``concurrent.futures`` by way of its modules' globals is replaced for as long as a ``stage``
lasts: locks, ``SimpleQueue``, ``wait``, clocks, executors. What is explored are sequentially
consistent interleavings of lines, which is what CPython's threads are held to, with and
without a GIL. The method is iterative context bounding (Musuvathi and Qadeer, PLDI 2007).

>>> def race(world):
...     total = [0]
...     def add():
...         seen = total[0]
...         total[0] = seen + 1
...     world.spawn(add)
...     world.spawn(add)
...     world.join()
...     assert total == [2]
>>> try:
...     explore(race, files=("<doctest",), preemptions=1)
... except AssertionError as error:
...     print("found")
found
"""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from queue import Empty
from random import Random
from types import FrameType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import TraceFunction

T = TypeVar("T")

_STEPS = 50_000
"""Decisions after which a run is taken to go on for ever."""


class Deadlock(AssertionError):
    """Somebody waits, and nobody can go on."""


class Endless(AssertionError):
    """A run did not end within very many decisions."""


class _Cut(BaseException):
    """Ends the threads of a run that is over."""


class Player:
    """One thread of a world."""

    def __init__(self, world: World, body: Callable[[], None], name: str) -> None:
        self.world = world
        self.name = name
        self.turn = threading.Lock()
        """Held until it is this thread's turn: whoever gives it the turn releases it."""
        self.turn.acquire()
        self.waits: Callable[[], bool] | None = None
        """What it waits for; None when it can go on."""
        self.until: float | None = None
        """The time at which it stops waiting."""
        self.done = False
        self.error: BaseException | None = None
        self._body = body
        self.thread = threading.Thread(target=self._live, name=name, daemon=True)

    def _live(self) -> None:
        self.turn.acquire()
        world = self.world
        try:
            if not world.over:
                world.here.player = self
                sys.settrace(world.trace)
                self._body()
        except _Cut:
            pass
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
            self.done = True
            world.leave(self)

    @property
    def able(self) -> bool:
        """Whether it could go on now."""
        if self.done:
            return False
        return self.waits is None or self.waits()


@dataclass
class Choice:
    """A point at which more than one thread could go on."""

    options: int
    taken: int
    free: bool
    """Whether the thread that ran could not go on, so that no choice is a preemption."""


class World:
    """The threads, the time, and what was decided so far in one run."""

    def __init__(self, decide: Callable[[int, int, bool], int], files: Sequence[str]) -> None:
        self._decide = decide
        self._files = tuple(files)
        self._players: list[Player] = []
        self._current: Player | None = None
        self._steps = 0
        self._ended = threading.Event()
        self.here = threading.local()
        self.over = False
        self.now = 1000.0
        self.failure: BaseException | None = None

    # What the code under test sees -----------------------------------------------------

    def spawn(self, body: Callable[[], None], name: str = "") -> Player:
        """Another thread; it runs when the scheduler lets it."""
        player = Player(self, body, name or f"thread {len(self._players)}")
        self._players.append(player)
        player.thread.start()
        self.step()
        return player

    def join(self, *players: Player) -> None:
        """Wait for these threads, or for all the others."""
        me = self._me()
        others = players or tuple(p for p in self._players if p is not me)
        self.wait(lambda: all(player.done for player in others))
        for player in others:
            if player.error is not None:
                raise player.error

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let others run until ``ready()``; False when the time is over before."""
        me = self._me()
        if me is None:
            return ready()
        self.step()
        if ready():
            return True
        if timeout is not None and timeout <= 0:
            return False
        me.waits = ready
        me.until = None if timeout is None else self.now + timeout
        self._switch(me)
        me.waits = me.until = None
        return ready()

    def step(self) -> None:
        """A point at which another thread may go on."""
        me = self._me()
        if me is not None:
            self._switch(me)

    def trace(self, frame: FrameType, event: str, arg: object) -> TraceFunction | None:
        """For ``sys.settrace``: every line of a watched file is a step."""
        if not frame.f_code.co_filename.startswith(self._files):
            return None
        if event == "line":
            self.step()
        return self.trace

    # Who goes on -----------------------------------------------------------------------

    def _me(self) -> Player | None:
        return getattr(self.here, "player", None)

    def _switch(self, me: Player) -> None:
        if self.over:
            raise _Cut
        following = self._following(me)
        if following is me:
            return
        self._current = following
        following.turn.release()
        me.turn.acquire()
        if self.over:
            raise _Cut

    def leave(self, me: Player) -> None:
        """A thread has ended: somebody else goes on, or the run is over."""
        if self.over:
            return
        if me.error is not None or me is self._players[0]:
            self.failure = me.error
            self._end()
            return
        try:
            following = self._following(me)
        except AssertionError as error:
            self.failure = error
            self._end()
            return
        self._current = following
        following.turn.release()

    def _following(self, me: Player) -> Player:
        self._steps += 1
        if self._steps > _STEPS:
            raise Endless(f"no end after {_STEPS} steps")
        able = [player for player in self._players if player.able]
        if not able:
            able = [self._first_timeout()]
        mine = me in able
        if mine:
            able.remove(me)
            able.insert(0, me)
        taken = self._decide(len(able), self._steps, not mine) if len(able) > 1 else 0
        return able[taken]

    def _first_timeout(self) -> Player:
        """Nobody can go on now: time passes until somebody gives up waiting."""
        timed = [player for player in self._players if not player.done and player.until is not None]
        if not timed:
            raise Deadlock(self._who_waits())
        player = min(timed, key=lambda each: each.until or 0.0)
        assert player.until is not None
        self.now = max(self.now, player.until)
        player.waits = None
        return player

    def _who_waits(self) -> str:
        frames = sys._current_frames()
        told = ["nobody can go on"]
        for player in self._players:
            frame = frames.get(player.thread.ident or 0)
            if not player.done and frame is not None:
                stack = traceback.extract_stack(frame)
                lines = [
                    f"    {entry.filename}:{entry.lineno} {entry.name}: {entry.line}"
                    for entry in stack
                    if entry.filename.startswith(self._files)
                ]
                told += [f"  {player.name}", *lines[-4:]]
        return "\n".join(told)

    # From outside ----------------------------------------------------------------------

    def play(self, scenario: Callable[[World], None]) -> None:
        """One run of a scenario, from beginning to end."""
        first = Player(self, lambda: scenario(self), "main")
        self._players.append(first)
        first.thread.start()
        self._current = first
        first.turn.release()
        self._ended.wait()
        for player in self._players:
            if player.turn.locked():
                player.turn.release()
        for player in self._players:
            player.thread.join()
        if self.failure is not None:
            raise self.failure

    def _end(self) -> None:
        self.over = True
        self._ended.set()


# Stand-ins ----------------------------------------------------------------------------------


class Lock:
    """``threading.Lock`` in a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of ``threading.Lock``."""
        if not blocking:
            self._world.step()
            if self._held:
                return False
        elif not self._world.wait(self._is_free, None if timeout < 0 else timeout):
            return False
        self._held = True
        return True

    def release(self) -> None:
        """As of ``threading.Lock``: an error when it is free."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        self._world.step()

    def locked(self) -> bool:
        """Whether it is held."""
        return self._held

    def _is_free(self) -> bool:
        return not self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class SimpleQueue(Generic[T]):
    """``queue.SimpleQueue`` in a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[T] = deque()

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """As of ``queue.SimpleQueue``: never waits."""
        self._items.append(item)
        self._world.step()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """The oldest item."""
        if not self._world.wait(lambda: bool(self._items), timeout if block else 0):
            raise Empty
        return self._items.popleft()

    def get_nowait(self) -> T:
        """The oldest item, or ``queue.Empty``."""
        return self.get(block=False)

    def empty(self) -> bool:
        """Whether there is none."""
        self._world.step()
        return not self._items

    def qsize(self) -> int:
        """How many there are."""
        return len(self._items)


class Pool(Executor):
    """An executor whose threads belong to a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        """Call it on a thread of its own."""
        future: Future[T] = Future()

        def body() -> None:
            try:
                result = fn(*args, **kwargs)
            except _Cut:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._world.spawn(body)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing: the threads end with their calls."""


def stand_ins(world: World) -> dict[str, object]:
    """By the names under which modules import them."""

    def wait(futures: Sequence[Future[object]], timeout: float | None = None) -> object:
        waiting = list(futures)
        world.wait(lambda: all(future.done() for future in waiting), timeout)
        return SimpleNamespace(not_done=[future for future in waiting if not future.done()])

    ours = SimpleNamespace(**vars(threading))
    ours.Lock = lambda: Lock(world)
    return {
        "threading": ours,
        "SimpleQueue": lambda: SimpleQueue(world),
        "wait": wait,
        "Threads": lambda: Pool(world),
        "monotonic": lambda: world.now,
        "perf_counter": lambda: world.now,
    }


@contextlib.contextmanager
def stage(world: World, modules: Sequence[ModuleType]) -> Iterator[None]:
    """While it lasts, the modules take their locks, queues and clocks from the world."""
    ours = stand_ins(world)
    before = [
        (module, name, vars(module)[name])
        for module in modules
        for name in ours
        if name in vars(module)
    ]
    for module, name, _ in before:
        setattr(module, name, ours[name])
    try:
        yield
    finally:
        for module, name, old in before:
            setattr(module, name, old)


# Exploration --------------------------------------------------------------------------------


@dataclass
class Explored:
    """How much was gone through."""

    runs: int = 0
    complete: bool = True


def explore(
    scenario: Callable[[World], None],
    files: Sequence[str],
    preemptions: int = 1,
    runs: int = 10_000,
) -> Explored:
    """Every run with at most so many preemptions, up to a number of runs.

    Raises what the scenario raises, with a note that says after which decisions.
    """
    told = Explored()
    plan: list[int] = []
    while True:
        trail: list[Choice] = []
        _play(scenario, files, _following_plan(plan, trail), trail)
        told.runs += 1
        next_plan = _next(trail, preemptions)
        if next_plan is None:
            return told
        if told.runs >= runs:
            told.complete = False
            return told
        plan = next_plan


def wander(
    scenario: Callable[[World], None],
    files: Sequence[str],
    seed: int,
    runs: int = 100,
    restless: float = 0.05,
) -> Explored:
    """Runs in which each decision is drawn; a thread is preempted with the chance ``restless``."""
    for number in range(runs):
        random = Random(f"{seed} {number}")
        trail: list[Choice] = []
        decide = _by_chance(random, restless, trail)
        _play(scenario, files, decide, trail, f"seed {seed}, run {number}")
    return Explored(runs)


def _by_chance(
    random: Random, restless: float, trail: list[Choice]
) -> Callable[[int, int, bool], int]:
    def decide(options: int, step: int, free: bool) -> int:
        taken = 0
        if free or random.random() < restless:
            taken = random.randrange(options)
        trail.append(Choice(options, taken, free))
        return taken

    return decide


def replay(scenario: Callable[[World], None], files: Sequence[str], plan: Sequence[int]) -> None:
    """The one run with these decisions."""
    trail: list[Choice] = []
    _play(scenario, files, _following_plan(plan, trail), trail)


def _following_plan(plan: Sequence[int], trail: list[Choice]) -> Callable[[int, int, bool], int]:
    def decide(options: int, step: int, free: bool) -> int:
        taken = plan[len(trail)] if len(trail) < len(plan) else 0
        trail.append(Choice(options, taken, free))
        return taken

    return decide


def _play(
    scenario: Callable[[World], None],
    files: Sequence[str],
    decide: Callable[[int, int, bool], int],
    trail: list[Choice],
    what: str = "",
) -> None:
    world = World(decide, files)
    try:
        world.play(scenario)
    except BaseException as error:
        decisions = [choice.taken for choice in trail]
        while decisions and decisions[-1] == 0:
            decisions.pop()
        error.add_note(f"{what}; replay(scenario, files, {decisions})".removeprefix("; "))
        raise


def _next(trail: list[Choice], preemptions: int) -> list[int] | None:
    """The decisions of the next run, depth first."""
    spent = [0]
    for choice in trail:
        spent.append(spent[-1] + (choice.taken > 0 and not choice.free))
    for at in range(len(trail) - 1, -1, -1):
        choice = trail[at]
        if choice.taken + 1 == choice.options:
            continue
        if not choice.free and spent[at] + 1 > preemptions:
            continue
        return [*(earlier.taken for earlier in trail[:at]), choice.taken + 1]
    return None

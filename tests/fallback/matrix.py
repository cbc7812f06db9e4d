"""The contract, row by row, for a chain whose op runs on threads, in worker processes, or in an
isolated run: ``python -m tests.fallback.matrix MODE`` runs every row in this one process.

Guarantees
- A row is a function of a ``Mode``, which alone knows how a pipeline is built and run.
- Each row has a deadline; one that hangs prints every stack and ends the process.
- The outcomes are written as JSON lines: {"row": name, "error": None or a traceback}.

The ops lie in ``tests.fallback.ops``, for they must be importable where they run. Where a mode
keeps a promise differently, the row says so; ``docs/gil-builds.md`` lists these.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nogil_loader as nl
from nogil_loader.isolated import IsolatedRun
from tests.fallback import ops

DEADLINE = 30.0
DATA = nl.from_sequence(range(60)).workers(2)
AnyRun = nl.Run[object] | IsolatedRun[object]


@dataclass(frozen=True)
class Mode:
    """How the op of a chain runs: ``"threads"``, ``"process"`` or ``"isolated"``."""

    name: str

    @property
    def isolated(self) -> bool:
        return self.name == "isolated"

    def op(self, chain: nl.Pipeline[object], fn: ops.Fn, **options: object) -> nl.Pipeline[object]:
        """``chain.map``, in worker processes where that is the mode."""
        fallback = "process" if self.name == "process" else "thread"
        return chain.map(fn, gil_fallback=fallback, **options)  # type: ignore[arg-type]

    def run(self, chain: nl.Pipeline[object], **options: object) -> AnyRun:
        """``chain.run``, isolated where that is the mode."""
        return chain.run(isolate=self.isolated, **options)  # type: ignore[call-overload,no-any-return]

    def all(self, chain: nl.Pipeline[object], **options: object) -> list[object]:
        """What a whole run gives."""
        with self.run(chain, **options) as run:
            return [plain(value) for value in run]


def plain(value: object) -> object:
    return value.tolist() if hasattr(value, "tolist") else value


def notes(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


@contextlib.contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[list[BaseException]]:
    """Like pytest's, which is not imported here."""
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        assert type(error) is kind, repr(error)
        told = f"{error} {notes(error)}"
        assert all(word in told for word in words), told
        caught.append(error)
    else:
        raise AssertionError(f"no {kind.__name__}")


def children() -> list[str]:
    """Processes of this one, but for multiprocessing's tracker."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    named = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids}
    return [pid for pid, name in named.items() if "resource_tracker" not in name]


Row = Callable[[Mode], None]
ROWS: dict[str, Row] = {}


def row(test: Row) -> Row:
    ROWS[test.__name__] = test
    return test


@row
def order_is_the_same_for_every_thread_count_and_block_size(mode: Mode) -> None:
    chain = mode.op(DATA.shuffle(3), ops.jitter).batch(7)
    expected = Mode("threads").all(DATA.shuffle(3).map(ops.jitter).batch(7))
    for workers, block in ((1, None), (3, 4)):
        assert mode.all(chain.workers(workers, block=block)) == expected
    loose = mode.all(chain, ordered=False)
    assert sorted(loose) == sorted(expected)  # type: ignore[type-var]


@row
def results_before_a_failure_come_first_then_the_exception_with_its_note(mode: Mode) -> None:
    """Between processes it is an equal exception with its fields, not the same object."""
    run = mode.run(mode.op(DATA, ops.rare_from_23, name="decode").batch(5))
    got: list[object] = []
    with raises(ops.Rare, "'decode'", "position 23", "sequence[23]") as caught:
        for batch in run:
            got.append(plain(batch))
    error = caught[0]
    assert isinstance(error, ops.Rare) and error.value == 23
    assert got == [list(range(start, start + 5)) for start in range(0, 20, 5)]
    told = "".join(traceback.format_exception(error))
    assert "rare_from_23" in told and "ops.py" in told
    with raises(nl.RunClosed) as closed:
        next(run)
    assert closed[0].__cause__ is error
    assert run.close()


@row
def skipped_samples_are_counted_and_batches_refilled_in_order(mode: Mode) -> None:
    good = [n for n in range(60) if n % 5]
    with mode.run(mode.op(DATA, ops.every_fifth, on_error="skip").batch(4)) as run:
        got = [plain(batch) for batch in run]
        bad = run.report().counts.quarantined
    assert got == [good[start : start + 4] for start in range(0, 48, 4)]
    assert [entry.position for entry in bad] == list(range(0, 60, 5))


@row
def too_many_skips_are_one_group(mode: Mode) -> None:
    chain = mode.op(DATA, ops.every_fifth, on_error="skip", max_skips=3)
    with raises(ExceptionGroup, "max_skips=3") as caught:
        mode.all(chain)
    assert isinstance(caught[0], ExceptionGroup)
    assert [error.args[0] for error in caught[0].exceptions] == [0, 5, 10, 15]


@row
def retries_are_counted_for_each_sample(mode: Mode) -> None:
    with tempfile.TemporaryDirectory() as folder:
        flaky = mode.op(DATA, ops.Flaky(folder, 2), on_error=nl.Retry(2, backoff=0.001))
        assert mode.all(flaky) == list(range(60))
    with tempfile.TemporaryDirectory() as folder:
        flaky = mode.op(DATA, ops.Flaky(folder, 2), on_error=nl.Retry(1, then="skip"))
        assert mode.all(flaky) == [n for n in range(60) if n % 3]


@row
def a_substitute_gets_the_sample_and_the_error(mode: Mode) -> None:
    got = mode.all(mode.op(DATA, ops.every_fifth, on_error=ops.minus))
    assert got == [n if n % 5 else -1 for n in range(60)]


@row
def what_is_no_exception_reaches_the_consumer_whatever_the_policy(mode: Mode) -> None:
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit):
        run = mode.run(mode.op(DATA, ops.Raises(kind), on_error="skip"))
        got: list[object] = []
        with raises(kind):
            for value in run:
                got.append(value)
        assert got == [0, 1, 2]
        assert run.close()


@row
def stop_iteration_of_an_op_is_never_an_early_end(mode: Mode) -> None:
    with raises(RuntimeError, "StopIteration", "position 3"):
        mode.all(mode.op(DATA, ops.Raises(StopIteration)))


@row
def none_is_a_value_like_any_other(mode: Mode) -> None:
    assert mode.all(mode.op(DATA.take(4), ops.none_of_odd)) == [0, None, 2, None]


@row
def a_failing_source_gives_what_it_read_before(mode: Mode) -> None:
    for source, count, where in (
        (nl.from_sequence(ops.Disk()), 6, "'read', position 6"),
        (nl.from_iterable(ops.broken_stream), 20, "source"),
    ):
        run, got = mode.run(mode.op(source.workers(2), ops.whatever)), []
        with raises(ops.Broken, where):
            for value in run:
                got.append(value)
        assert got == list(range(count))


@row
def an_op_over_its_timeout_fails_alone_and_its_stack_is_told(mode: Mode) -> None:
    """A process that hangs is killed, where a thread is given up: none is ever used up."""
    chain = mode.op(DATA.take(20), ops.hangs_at_3_5_11, timeout=0.3, on_error="skip")
    begun = time.monotonic()
    run = mode.run(chain.workers(4, block=10))
    assert list(run) == [n for n in range(20) if n not in (3, 5, 11)]
    assert time.monotonic() - begun < 15
    hung = mode.op(DATA, ops.hangs, timeout=0.3).workers(2, block=1)
    run = mode.run(hung)
    with raises(nl.StageTimeout, "'hangs'", "sequence[5]", "ops.py"):
        list(run)
    run.close(0.1)


@row
def nothing_outlives_a_break_an_exception_or_a_forgotten_run(mode: Mode) -> None:
    chain = mode.op(DATA, ops.slow).batch(4)
    before = threading.active_count()
    for _ in mode.run(chain):
        break
    try:
        for _ in mode.run(chain):
            raise LookupError
    except LookupError:
        pass
    run = mode.run(chain)
    next(run)
    del run
    end = time.monotonic() + 5
    while children() or threading.active_count() > before:
        gc.collect()
        assert time.monotonic() < end, (children(), threading.enumerate())
        time.sleep(0.01)


@row
def a_second_loop_is_the_same_pass_from_the_start(mode: Mode) -> None:
    chain = mode.op(DATA.shuffle(1), ops.whatever).batch(4)
    whole = mode.all(chain)
    for batch in mode.run(chain):
        assert plain(batch) == whole[0]
        break
    assert mode.all(chain) == whole


@row
def close_is_idempotent_bounded_and_running_ops_finish(mode: Mode) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = mode.run(mode.op(DATA, ops.Begun(folder, 1.0)).workers(2, block=1))
        end = time.monotonic() + 10
        while not list(Path(folder).glob("begun-*")):
            assert time.monotonic() < end
            time.sleep(0.01)
        ends: list[str] = []

        def consume() -> None:
            with raises(nl.RunClosed):
                while True:
                    next(run)
            ends.append("closed")

        waiting = threading.Thread(target=consume)
        waiting.start()
        assert run.close(timeout=10) and run.close()
        waiting.join(10)
        assert ends == ["closed"]
        begun = {path.name.split("-")[1] for path in Path(folder).glob("begun-*")}
        ended = {path.name.split("-")[1] for path in Path(folder).glob("ended-*")}
        assert begun == ended and len(begun) < 10


@row
def next_that_times_out_loses_nothing(mode: Mode) -> None:
    got: list[object] = []
    late = 0
    with mode.run(mode.op(DATA.take(12), ops.slow).workers(1, block=1)) as run:
        while len(got) < 12:
            try:
                got.append(run.next(timeout=0.002))
            except TimeoutError:
                late += 1
    assert got == list(range(12)) and late


@row
def ctrl_c_is_raised_at_once_and_the_run_closes(mode: Mode) -> None:
    """As a terminal sends it: to every process at once."""
    with tempfile.TemporaryDirectory() as folder:
        moments: list[float] = []

        def interrupt() -> None:
            time.sleep(0.3)
            moments.append(time.monotonic())
            os.killpg(0, signal.SIGINT)

        chain = mode.op(DATA, ops.Begun(folder, 0.4)).workers(2, block=1)
        with raises(KeyboardInterrupt), mode.run(chain) as run:
            next(run)
            threading.Thread(target=interrupt).start()
            try:
                for _ in run:
                    pass
            finally:
                moments.append(time.monotonic())
        assert moments[1] - moments[0] < 0.2, moments
        assert time.monotonic() - moments[0] < 4


@row
def a_forked_child_gets_a_clear_error_and_the_parent_is_untouched(mode: Mode) -> None:
    run = mode.run(mode.op(DATA, ops.slow).batch(4))
    first = plain(next(run))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what fork itself says
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            next(run)
        except nl.ForkedRun:
            status = 0
            run.close()
        finally:
            os._exit(status)
    got = [first, *map(plain, run)]
    assert got == [list(range(start, start + 4)) for start in range(0, 60, 4)]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@row
def live_data_waits_for_no_block_and_max_wait_bounds_a_batch(mode: Mode) -> None:
    chain = mode.op(nl.from_iterable(ops.slow_stream), ops.whatever).batch(3, max_wait=0.3)
    with mode.run(chain.workers(1)) as run:
        assert plain(run.next(timeout=10)) == [0, 1, 2]
        assert plain(run.next(timeout=10)) == [3]
        assert plain(run.next(timeout=10)) == [4, 5]


@row
def off_the_main_thread_beside_an_event_loop_two_runs_at_once(mode: Mode) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    chain = mode.op(DATA, ops.whatever).batch(6)

    async def main() -> list[list[object]]:
        return await asyncio.gather(*(asyncio.to_thread(mode.all, chain) for _ in range(2)))

    one, two = asyncio.run(main())
    assert one == two == [list(range(start, start + 6)) for start in range(0, 60, 6)]
    assert {number: signal.getsignal(number) for number in handlers} == handlers


@row
def two_threads_that_share_a_run_get_each_batch_once(mode: Mode) -> None:
    got: list[object] = []

    def consume() -> None:
        mine = list(run)
        got.extend(mine)

    with mode.run(mode.op(nl.from_sequence(range(400)).workers(2), ops.whatever)) as run:
        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(got) == list(range(400))  # type: ignore[type-var]


@row
def the_interpreter_exits_promptly_and_silently_with_a_run_alive(mode: Mode) -> None:
    for how in ("idle", "hung"):
        command = [sys.executable, "-m", "tests.fallback.matrix", mode.name, how]
        left = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert (left.returncode, left.stderr) == (0, ""), left
        assert time.time() - float(left.stdout) < 4, how


@row
def bytes_in_flight_stay_within_the_budget(mode: Mode) -> None:
    """Counted where the run is: in an isolated one by the child's own report."""
    chain = mode.op(nl.from_sequence(range(40)).workers(2), ops.megabyte)
    with mode.run(chain.prefetch(30).memory(4_000_000)) as run:
        for value, array in enumerate(run):
            assert array[0] == value  # type: ignore[index]
            if value % 10 == 0:
                memory = run.report().counts.memory
                assert memory.charged <= 4_000_000 + 3 * 1_000_000, memory


@row
def misuse_is_refused_and_the_cure_named(mode: Mode) -> None:
    if mode.name == "process":
        with raises(TypeError, "<lambda>", "per_worker"):
            mode.op(DATA, lambda value: value)
        with raises(ValueError, "in_flight"):
            mode.op(DATA, ops.future, in_flight=2)
        with raises(ValueError, "cache()"):
            mode.op(DATA, ops.whatever).cache("memory")
    if mode.isolated:
        with raises(TypeError, "<lambda", "isolate=True", "per_worker"):
            mode.run(DATA.map(lambda value: value))
        with raises(ValueError, "executor"):
            mode.run(DATA, executor=object())
    with raises(ValueError, "threads"):
        mode.op(DATA, ops.whatever, threads=0)


@row
def samples_that_do_not_fit_are_both_named(mode: Mode) -> None:
    with raises(nl.CollateError, "sequence[4]", "sequence[6]", "(3,)"):
        mode.all(mode.op(DATA, ops.two_or_three).batch(4))


@row
def an_undeclared_future_is_an_error(mode: Mode) -> None:
    """It cannot leave its process, and is a TypeError there, too, though another one."""
    kind = TypeError if mode.name == "process" else nl.UndeclaredFuture
    with raises(kind, "sent between processes" if mode.name == "process" else "in_flight"):
        mode.all(mode.op(DATA, ops.future))


@row
def an_op_that_cannot_be_made_where_it_runs_ends_the_run(mode: Mode) -> None:
    with raises(ops.Broken, "no weights"):
        mode.all(mode.op(DATA, ops.NoWeights(), on_error="skip"))


@row
def objects_of_a_worker_are_closed(mode: Mode) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = nl.from_sequence([folder] * 20).workers(2, block=1)
        assert mode.all(mode.op(data, nl.per_worker(ops.Closed))) == [folder] * 20
        end = time.monotonic() + 5
        while not list(Path(folder).glob("closed-*")):
            assert time.monotonic() < end
            time.sleep(0.01)


@row
def a_state_resumes_bit_by_bit_in_any_mode(mode: Mode) -> None:
    chain = mode.op(DATA.shuffle(5), ops.noise, rng=True).batch(8)
    whole = Mode("threads").all(DATA.shuffle(5).map(ops.noise, rng=True).batch(8))
    with mode.run(chain) as run:
        head = [plain(next(run)) for _ in range(3)]
        state = json.loads(json.dumps(run.state()))
    assert head == whole[:3]
    assert mode.all(chain, resume=state) == whole[3:]
    assert Mode("threads").all(DATA.shuffle(5).map(ops.noise, rng=True).batch(8), resume=state)


@row
def every_rank_has_as_many_batches(mode: Mode) -> None:
    seen: list[object] = []
    for rank in range(2):
        part = mode.all(mode.op(DATA.take(59).shard(rank, 2), ops.whatever).batch(4))
        assert len(part) == 8
        seen += [value for batch in part for value in batch]  # type: ignore[attr-defined]
    assert len(set(seen)) == 58


@row
def a_report_tells_where_it_ran(mode: Mode) -> None:
    with mode.run(mode.op(DATA, ops.jitter).batch(4)) as run:
        for _ in run:
            pass
        told = str(run.report())
    assert ("the run's own process" in told) == mode.isolated
    assert ("2 processes" in told) == (mode.name == "process")


def leave(mode: Mode, how: str) -> None:
    """Start a run, and end the program with it alive."""
    kept = mode.run(mode.op(DATA, ops.whatever if how == "idle" else ops.hangs).batch(2))
    next(kept)
    globals()["kept"] = kept  # so that it dies as late as can be
    if how == "hung":
        time.sleep(0.3)
    print(time.time())


def main(mode: Mode) -> None:
    """Run all rows."""
    faulthandler.enable()
    warnings.simplefilter("error")
    if os.getpgrp() != os.getpid():
        os.setpgrp()  # what Ctrl-C reaches
    for name, test in ROWS.items():
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        error = None
        begun = time.monotonic()
        try:
            test(mode)
        except BaseException:
            error = traceback.format_exc()
        seconds = time.monotonic() - begun
        print(json.dumps({"row": name, "error": error, "seconds": seconds}), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    os.environ["NOGIL_LOADER_FALLBACK"] = "process"
    if len(sys.argv) == 3:
        leave(Mode(sys.argv[1]), sys.argv[2])
    else:
        main(Mode(sys.argv[1]))

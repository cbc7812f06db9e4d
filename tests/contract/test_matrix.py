"""Every row of the table in ``docs/contract.md`` has its case, in a process with a deadline."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "contract.md"

ROWS = {
    "order": ["order:order_is_the_same_for_every_thread_count_and_block_size"],
    "an op raises": ["failures:results_before_a_failure_come_first_then_the_same_object"],
    "several ops raise": ["failures:results_before_a_failure_come_first_then_the_same_object"],
    '`on_error="skip"`': [
        "failures:skip_refills_batches_in_position_order",
        "failures:too_many_skips_by_count",
        "failures:too_many_skips_by_share",
    ],
    '`run(quarantine="bad.jsonl")`': ["quarantine:each_skipped_sample_is_one_line"],
    "`on_error=Retry(times, backoff, then)`": [
        "failures:retry_tries_again_after_the_backoff",
        "failures:retry_then_skip_and_then_substitute",
    ],
    "`on_error=fn`": ["failures:a_substitute_gets_the_sample_reference"],
    "`KeyboardInterrupt`, `SystemExit`, any `BaseException` in an op": [
        "failures:keyboard_interrupt_and_system_exit_of_an_op"
    ],
    "`StopIteration` in an op": ["failures:stop_iteration_of_an_op_is_a_runtime_error"],
    "`None` from an op": ["failures:none_is_a_value_like_any_other"],
    "a source or stream raises": [
        "failures:a_failing_stream_gives_what_it_read_before",
        "failures:a_failing_read_of_a_sequence",
    ],
    "`bind()` of an op, or a `length` raises": [
        "failures:an_op_that_fails_to_bind",
        "failures:a_length_of_a_bucket_or_tokens",
    ],
    "samples do not fit together": ["failures:samples_that_do_not_fit"],
    "op exceeds `timeout=`": [
        "timeouts:an_op_over_its_timeout_is_replaced",
        "timeouts:the_error_has_the_sample_and_the_stack",
        "timeouts:a_retry_has_a_clock_of_its_own",
    ],
    "a hung op wakes later": ["timeouts:when_a_hung_op_wakes"],
    "more hung threads than workers": ["timeouts:after_as_many_hung_threads_as_workers"],
    "`break`, an exception in the loop, a forgotten run": [
        "life:no_thread_and_no_reader_outlives",
        "life:a_forgotten_run_closes_itself",
        "life:no_sample_outlives_its_run",
        "life:an_iterator_is_closed_at_the_end_and_after_a_break",
    ],
    "the end of the data": ["life:an_exhausted_run_ends_its_threads"],
    "a second `for`": [
        "order:a_second_loop_is_the_same_pass",
        "order:a_generator_read_once_is_an_error",
        "order:a_second_epoch_begins_with_a_fresh_batch",
    ],
    "`close()`": [
        "life:close_is_idempotent_bounded",
        "life:close_from_another_thread",
        "life:close_from_inside_an_op",
        "life:close_during_a_source_that_blocks_for_ever",
    ],
    "`next(timeout=)`": ["life:next_that_times_out_loses_nothing"],
    "Ctrl-C in the consumer": ["life:ctrl_c_in_the_consumer"],
    "fork while running": ["life:a_forked_child_gets_a_clear_error"],
    "interpreter exit with a run alive, or a hung op or source": [
        "life:the_interpreter_exits_promptly"
    ],
    "live data": ["life:an_item_of_live_data", "life:max_wait_closes_a_short_batch"],
    "inside a larger program": [
        "life:off_the_main_thread_beside_a_running_event_loop",
        "life:inside_an_event_loop",
        "life:two_runs_at_once_and_a_pipeline_inside_an_op",
        "life:a_hosts_executor_does_the_work",
        "life:ops_see_the_contextvars",
        "life:a_generator_is_entered_by_one_thread_only",
    ],
    "two threads share a run": ["order:two_threads_that_share_a_run"],
    "`limit=`, `serial=`, `in_flight=`": [
        "order:serial_runs_one_at_a_time",
        "order:limit_holds_that_many_workers",
        "order:futures_in_flight_stay_within_their_bound",
        "order:a_future_in_a_field_is_settled",
    ],
    "memory": [
        "memory:what_is_accounted_stays_within_the_bound_at_every_step",
        "memory:what_the_process_holds",
        "memory:a_sample_larger_than_the_whole_budget",
    ],
    "misuse": ["misuse:a_pipeline_that_only_the_run_can_refuse"],
    "resume": [
        "resume:a_resumed_run_goes_on_bit_by_bit",
        "resume:another_world_size_gets_each_remaining_sample_once",
    ],
    "ranks": ["resume:every_rank_has_the_same_number_of_batches"],
}
"""Situation -> file and beginning of the name of each test that holds it."""


def in_children(name: str) -> list[str]:
    """The tests of a file that run in a process of their own, with a deadline."""
    tree = ast.parse((HERE / f"test_{name}.py").read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(each).startswith("in_child(") for each in node.decorator_list)
    ]


def stated() -> dict[str, str]:
    """Situation -> the files that the page names for it."""
    table = PAGE.read_text().split("## How it is proved")[0]
    rows = re.findall(r"^\| (.+?) \| .* \| (.+?) \|$", table, re.M)
    return {situation: where for situation, where in rows if situation != "situation"}


def test_the_page_and_the_matrix_have_the_same_rows() -> None:
    assert list(stated()) == list(ROWS)


@pytest.mark.parametrize("situation", ROWS)
def test_each_row_has_a_case_that_cannot_hang_the_suite(situation: str) -> None:
    for case in ROWS[situation]:
        name, beginning = case.split(":")
        found = [test for test in in_children(name) if test.startswith(f"test_{beginning}")]
        assert len(found) == 1, case
        assert f"`test_{name}.py`" in stated()[situation]

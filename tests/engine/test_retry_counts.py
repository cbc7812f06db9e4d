"""How often an op is called under ``Retry``: exactly as often as was asked for."""

from __future__ import annotations

from collections import Counter

import nogil_loader as nl

BAD = (17, 18, 40)


def test_each_failing_sample_of_a_block_gets_all_its_retries_and_no_more() -> None:
    calls: Counter[int] = Counter()

    def fragile(n: int) -> int:
        calls[n] += 1
        if n in BAD:
            raise ValueError(n)
        return n

    skipping = nl.Retry(2, then="skip")
    data = nl.from_sequence(range(64)).map(fragile, on_error=skipping).workers(1, block=64)
    assert len(list(data)) == 61
    assert {n: calls[n] for n in BAD} == dict.fromkeys(BAD, 3)


def test_a_retry_in_one_op_uses_up_none_of_the_next() -> None:
    calls: Counter[str] = Counter()

    def flaky(name: str, good: int) -> int:
        calls[name] += 1
        if calls[name] < good:
            raise ValueError(name)
        return good

    once = nl.Retry(1)
    data = (
        nl.from_sequence(range(1))
        .map(lambda _: flaky("first", 2), on_error=once)
        .map(lambda _: flaky("second", 2), on_error=once)
    )
    assert list(data) == [2]
    assert calls == {"first": 2, "second": 2}

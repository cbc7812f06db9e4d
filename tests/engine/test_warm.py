"""Objects that threads have for themselves: made once, kept warm, closed once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import nogil_loader as nl
from nogil_loader.engine.warm import Warm


class Counted:
    """Says what was made and closed, and where."""

    made: list[Counted]
    closed: list[Counted]

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.calls = 0
        type(self).made.append(self)

    def __call__(self, value: int) -> int:
        assert threading.get_ident() == self.thread, "somebody else's object"
        self.calls += 1
        return value

    def close(self) -> None:
        type(self).closed.append(self)


def counted() -> type[Counted]:
    return type("Fresh", (Counted,), {"made": [], "closed": []})


def test_each_thread_has_one_object_over_all_epochs_and_each_is_closed_once_at_the_end() -> None:
    kind = counted()
    chain = nl.from_sequence(range(60)).map(nl.per_worker(kind)).workers(2, block=3)
    for run in chain.epochs(3):
        assert list(run) == list(range(60))
        assert not kind.closed
    assert 1 <= len(kind.made) <= 4  # the threads of two epochs may overlap
    assert sum(each.calls for each in kind.made) == 180
    assert sorted(map(id, kind.closed)) == sorted(map(id, kind.made))


def test_objects_are_made_once_a_thread_and_key_and_closed_once() -> None:
    kind, warm = counted(), Warm()
    mine = warm.of("a", kind)
    assert warm.of("a", kind) is mine
    assert warm.of("b", kind) is not mine
    with ThreadPoolExecutor(1) as other:
        assert other.submit(warm.of, "a", kind).result() is not mine
    warm.of("plain", object)  # has no close()
    warm.close()
    warm.close()
    assert len(kind.made) == 3
    assert sorted(map(id, kind.closed)) == sorted(map(id, kind.made))


def test_what_is_lent_is_nobody_elses_until_it_is_given_back() -> None:
    kind, warm = counted(), Warm()
    one, two = warm.lend("a", kind), warm.lend("a", kind)
    assert one is not two
    warm.give_back("a", one)
    assert warm.lend("a", kind) is one
    warm.give_back("a", two)
    other = warm.lend("b", kind)
    assert other not in (one, two)
    warm.close()
    assert len(kind.closed) == 3

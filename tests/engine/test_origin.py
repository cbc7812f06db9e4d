"""What was returned in completion order: all up to a point, and some beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nogil_loader.engine.core import Delivery
from nogil_loader.engine.origin import Origin, Returned, levels_of
from tests.position.laws import law


def batch(number: int, values: int = 1) -> Delivery:
    delivery = Delivery(1, number, [number] * values)
    delivery.end = 4 * (number + 1)
    return delivery


@law
@given(st.permutations(range(8)), st.integers(0, 8), st.sets(st.integers(1, 7)))
def test_the_point_is_behind_the_batches_without_a_gap_and_the_others_are_listed(
    order: list[int], count: int, earlier: set[int]
) -> None:
    returned = Returned(Origin(levels=2, beyond=tuple(sorted(earlier))))
    for number in order[:count]:
        if number in earlier:
            returned.pass_over(batch(number))
        else:
            returned.add(batch(number), 0)
    done = {*order[:count]}
    first = next(number for number in range(9) if number not in done)
    point, beyond = returned.state()
    below = levels_of(point, 2)[0].unit
    assert below == 4 * first
    assert beyond == tuple(sorted(number for number in done | earlier if number >= first))


@pytest.mark.parametrize("values", [2, 3, 9])
def test_samples_that_came_as_they_were_done_have_no_state(values: int) -> None:
    returned = Returned(Origin(levels=2))
    returned.add(batch(0, values), 0)
    with pytest.raises(ValueError, match=r"batch\(\) first"):
        returned.state()

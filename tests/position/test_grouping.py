"""What every grouper keeps: nothing lost, no dependence on pushes, and the cut law."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nogil_loader.position.bucketing import Buckets
from nogil_loader.position.grouping import Batches, Group, Grouper
from nogil_loader.position.packing import Segment, packs
from nogil_loader.position.stretch import Stretch
from tests.position.laws import law

LENGTH = 12
sizes_of_outputs = st.one_of(  # many outputs as often as few, or open groups stay nearly empty
    st.lists(st.integers(0, LENGTH), max_size=10),
    st.lists(st.integers(0, LENGTH), min_size=30, max_size=120),
)
drops = st.booleans()

Make = Callable[[], Grouper]


@st.composite
def makers(draw: st.DrawFn) -> Make:
    """Ways to make one and the same grouper again."""
    drop = draw(drops)
    size = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(["batch", "bucket", "first_fit", "best_fit", "concat", "stretch"]))
    if kind == "stretch":
        length = draw(st.none() | st.integers(0, 60))
        return lambda: Stretch(size, length)
    if kind == "batch":
        return lambda: Batches(size, drop_last=drop)
    if kind == "bucket":
        per_bucket = draw(st.lists(st.integers(1, 4), min_size=4, max_size=4))
        return lambda: Buckets([0, 3, 7], per_bucket, drop_last=drop)
    bound = draw(st.integers(1, 6))
    return lambda: packs(LENGTH, size, kind, open_packs=bound, drop_last=drop)  # type: ignore[arg-type]


def run(grouper: Grouper, sizes: list[int], pushes: list[int] | None = None) -> list[Group]:
    """All groups of some outputs, pushed in the given portions (else one by one)."""
    groups: list[Group] = []
    at = 0
    for count in pushes or []:
        part = sizes[at : at + count]
        groups += grouper.push(len(part), part)
        at += len(part)
    for size in sizes[at:]:
        groups += grouper.push(1, [size])
    return groups + grouper.flush()


def shown(groups: list[Group], names: list[int]) -> list[tuple[list[int], object]]:
    """Groups by the names of their outputs instead of their ordinals."""
    return [([names[item] for item in group.items], group.layout) for group in groups]


@law
@given(makers(), sizes_of_outputs, st.lists(st.integers(0, 20)))
def test_groups_do_not_depend_on_how_pushes_are_cut(
    make: Make, sizes: list[int], pushes: list[int]
) -> None:
    assert run(make(), sizes) == run(make(), sizes, pushes)


@law
@given(makers(), sizes_of_outputs, st.lists(st.integers(0, 200), max_size=3))
def test_cut_at_any_groups_the_same_groups_follow(
    make: Make, sizes: list[int], cuts: list[int]
) -> None:
    whole = shown(run(make(), sizes), list(range(len(sizes))))
    followed: list[tuple[list[int], object]] = []
    grouper, names = make(), list(range(len(sizes)))
    for cut in cuts:
        groups = run(grouper, [sizes[name] for name in names])
        if not groups:
            names = []
            break
        at = cut % len(groups)
        followed += shown(groups[: at + 1], names)
        last = groups[at]
        # The resumed run sees the pending outputs first, then what was never pushed.
        names = [names[item] for item in last.pending] + names[last.upto :]
        grouper = make()
        grouper.restore(last.memo, len(last.pending))
    if names:
        followed += shown(run(grouper, [sizes[name] for name in names]), names)
    assert followed == whole


@law
@given(makers(), sizes_of_outputs)
def test_every_output_is_grouped_pending_or_dropped_at_the_end(
    make: Make, sizes: list[int]
) -> None:
    grouper = make()
    assume(not isinstance(grouper, Stretch))  # what it leaves out is in no group
    groups = run(grouper, sizes)
    closed: set[int] = set()
    for group in groups:
        closed |= set(group.items)
        assert set(group.pending) | closed == set(range(group.upto))
        assert list(group.pending) == sorted(set(group.pending))
        cut = set(group.pending) & set(group.items)
        assert len(cut) <= 1  # only concat cuts an output, and only the last one
        assert (closed - cut).isdisjoint(group.pending)


@law
@given(makers(), sizes_of_outputs, sizes_of_outputs)
def test_after_a_boundary_a_grouper_is_as_new(
    make: Make, before: list[int], after: list[int]
) -> None:
    grouper = make()
    assume(not isinstance(grouper, Stretch))
    grouper.push(len(before), before)
    grouper.boundary()
    names = list(range(-len(before), len(after)))
    assert shown(run(grouper, after), names) == shown(run(make(), after), list(range(len(after))))


@law
@given(st.integers(1, 9), st.lists(st.integers(0, 30)), drops)
def test_batches_are_consecutive(size: int, pushes: list[int], drop_last: bool) -> None:
    batches = Batches(size, drop_last=drop_last)
    groups = [group for count in pushes for group in batches.push(count)]
    assert all(len(group.items) == size and group.upto == group.items[-1] + 1 for group in groups)
    groups += batches.flush()
    total = sum(pushes)
    expected = total - total % size if drop_last else total
    assert [item for group in groups for item in group.items] == list(range(expected))
    assert all(group.pending == () for group in groups)


def test_a_boundary_ends_a_batch_and_pushing_goes_on() -> None:
    batches = Batches(4)
    assert [list(group.items) for group in batches.push(5)] == [[0, 1, 2, 3]]
    assert [list(group.items) for group in batches.boundary()] == [[4]]
    assert [list(group.items) for group in batches.push(4)] == [[5, 6, 7, 8]]
    assert batches.flush() == []


def test_sizes_that_no_group_holds_are_refused_with_the_cure() -> None:
    for grouper in (packs(10, 1), packs(10, 1, "first_fit")):
        assert grouper.largest == 10
        with pytest.raises(ValueError, match=r"output 1 has size 11.*concat"):
            grouper.push(2, [3, 11])
    bounded = Buckets([5, 10], [2, 2])
    assert bounded.largest == 10
    with pytest.raises(ValueError, match="one more batch size"):
        bounded.push(1, [11])
    assert Buckets([5, 10], 2).largest is None
    for grouper in (packs(10, 1), packs(10, 1, "concat"), bounded):
        with pytest.raises(ValueError, match="negative"):
            grouper.push(1, [-1])
        with pytest.raises(ValueError, match="one size for each output"):
            grouper.push(2)


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Batches(0)
    with pytest.raises(ValueError, match="strictly ascending"):
        Buckets([5, 5], 1)
    with pytest.raises(ValueError, match="for each of the 2 boundaries"):
        Buckets([5, 6], [1])
    with pytest.raises(ValueError, match="at least 1"):
        packs(0, 1)
    with pytest.raises(ValueError, match="'first_fit', 'best_fit', 'concat'"):
        packs(10, 1, "next_fit")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="open_packs=0"):
        packs(10, 1, open_packs=0)
    with pytest.raises(ValueError, match="no pack for each of 2"):
        packs(10, 1).restore([0], 2)
    with pytest.raises(ValueError, match="no token"):
        packs(10, 1, "concat").restore(None, 1)


def test_a_stretch_is_done_at_its_end_over_resumes_too() -> None:
    stretch = Stretch(1, 3)
    groups = stretch.push(3)
    assert ([list(group.items) for group in groups], stretch.done) == ([[1], [2]], False)
    resumed = Stretch(1, 3)
    resumed.restore(groups[0].memo, 0)
    assert [list(group.items) for group in resumed.push(9)] == [[0], [1]]
    assert resumed.done
    assert not Stretch(1, None).done


def test_a_segment_says_where_its_tokens_go() -> None:
    groups = run(packs(4, 2, "concat"), [3, 9, 2])
    assert groups[0].items == (0, 1)
    assert groups[0].layout == (
        Segment(item=0, row=0, offset=0, start=0, length=3),
        Segment(item=1, row=0, offset=3, start=0, length=1),
        Segment(item=1, row=1, offset=0, start=1, length=4),
    )
    assert (groups[0].pending, groups[0].memo) == ((1,), 5)

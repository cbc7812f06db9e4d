"""Groups of any kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nogil_loader.cluster.group import ClusterError, Group, Ranks, Solo, by_rank
from nogil_loader.cluster.mpi import MpiGroup
from nogil_loader.cluster.torch import TorchGroup


def test_solo_is_a_group_of_one() -> None:
    group = Solo()
    assert isinstance(group, Group)
    assert group.ranks == Ranks(0, 1, 0, 1)
    group.barrier()
    group.close()


def test_torch_that_is_not_initialised_is_an_error() -> None:
    with pytest.raises(ClusterError, match="init_process_group"):
        TorchGroup()


def test_values_are_shown_by_rank() -> None:
    assert by_rank([1, 1, 2, 1]) == "1 on ranks 0-1, 3; 2 on rank 2"


def test_a_difference_is_raised_on_every_rank(ranks_say: Callable[..., list[object]]) -> None:
    said = ranks_say(
        3,
        """
        from nogil_loader.cluster import ClusterError, connect
        from nogil_loader.cluster.group import same_everywhere
        group = connect().group
        same_everywhere(group, "seed", 17)
        try:
            same_everywhere(group, "seed", group.ranks.rank // 2)
        except ClusterError as error:
            say(str(error))
        """,
    )
    assert said == ["seed differs between ranks: 0 on ranks 0-1; 1 on rank 2"] * 3


def test_the_group_over_mpi_satisfies_the_protocol() -> None:
    assert all(hasattr(MpiGroup, name) for name in ("ranks", "allgather", "barrier", "close"))

"""What is picked, what is said about it, and what is refused."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from nogil_loader.cluster import detect
from nogil_loader.cluster.group import ClusterError, Ranks

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}


class Distributed(ModuleType):
    """``torch.distributed`` as far as it is asked, initialised with a rank and size."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__("torch.distributed")
        self._rank, self._size = rank, size

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_rank(self, group: object) -> int:
        return self._rank

    def get_world_size(self, group: object) -> int:
        return self._size


def test_one_process_alone_is_rank_0_of_1() -> None:
    found = detect.find(environ={})
    assert found.ranks == Ranks(0, 1, 0, 1)
    assert found.why == "rank 0 of 1: no launcher, torch.distributed or MPI"


def test_what_is_given_goes_before_what_is_there() -> None:
    assert detect.find(0, 2, environ=HYDRA).ranks == Ranks(0, 2)


@pytest.mark.parametrize("given", [(0, None), (None, 2)])
def test_half_a_place_is_refused(given: tuple[int | None, int | None]) -> None:
    with pytest.raises(ClusterError, match="both rank and world_size"):
        detect.find(*given, environ={})


def test_what_was_picked_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nogil_loader"):
        detect.find(environ=HYDRA)
    assert caplog.messages == ["rank 1 of 3: mpiexec (Hydra)"]


def test_a_launcher_around_the_real_one_is_mentioned() -> None:
    step = {
        **{"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        **{"SLURM_STEP_NUM_NODES": "1"},
    }
    found = detect.find(environ={**step, **HYDRA})
    assert found.why == "rank 1 of 3: mpiexec (Hydra) (inside srun, one process a node)"


def test_torch_distributed_counts_once_the_user_has_initialised_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(2, 4))
    assert detect.find(environ={}).why == "rank 2 of 4: torch.distributed"


def test_torch_distributed_and_the_launcher_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(2, 4))
    with pytest.raises(ClusterError, match=r"torch.distributed says rank 2 of 4, .*rank 1 of 3"):
        detect.find(environ=HYDRA)


def test_several_ranks_with_nothing_to_talk_over_are_told_what_to_do() -> None:
    with pytest.raises(ClusterError, match="init_process_group before, import mpi4py"):
        detect.connect(environ={"RANK": "0", "WORLD_SIZE": "2"})


def test_a_launcher_of_another_make_than_the_library_is_found_out(
    ranks_say: Callable[..., list[object]],
) -> None:
    """What a foreign mpirun leads to: every process is MPI rank 0 of 1."""
    (said,) = ranks_say(
        1,
        """
        import os
        from nogil_loader.cluster import ClusterError, connect
        foreign = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
        try:
            connect(environ=foreign)
        except ClusterError as error:
            say(str(error))
        """,
    )
    assert "mpirun (Open MPI) says rank 2 of 4" in str(said)
    assert "use the mpiexec that came with the library" in str(said)


def test_finding_ranks_starts_no_mpi(ranks_say: Callable[..., list[object]]) -> None:
    said = ranks_say(
        2,
        """
        import sys
        from nogil_loader.cluster import find
        found = find()
        say([found.ranks.rank, found.ranks.world_size, "mpi4py" in sys.modules])
        """,
    )
    assert said == [[0, 2, False], [1, 2, False]]

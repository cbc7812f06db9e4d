"""Groups over MPI, with real ranks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

Say = Callable[..., list[object]]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_hear_each_other(ranks_say: Say, ranks: int) -> None:
    said = ranks_say(
        ranks,
        """
        from nogil_loader.cluster import connect
        found = connect()
        group = found.group
        group.barrier()
        say([found.why, group.allgather({"from": group.ranks.rank})])
        group.close()
        group.close()
        """,
    )
    for rank, (why, heard) in enumerate(said):
        assert why == f"rank {rank} of {ranks}: mpiexec (Hydra); talks over MpiGroup"
        assert heard == [{"from": other} for other in range(ranks)]


def test_the_group_does_not_hear_the_user_s_messages(ranks_say: Say) -> None:
    said = ranks_say(
        2,
        """
        from mpi4py import MPI
        from nogil_loader.cluster.mpi import MpiGroup
        world = MPI.COMM_WORLD
        group = MpiGroup()
        if world.rank == 0:  # in flight while the group talks
            request = world.isend("mine", dest=1)
        heard = group.allgather(world.rank)
        if world.rank == 0:
            request.wait()
        say([heard, world.recv(source=0) if world.rank else None])
        """,
    )
    assert said == [[[0, 1], None], [[0, 1], "mine"]]


def test_a_group_over_some_of_the_ranks_has_their_numbers(ranks_say: Say) -> None:
    said = ranks_say(
        4,
        """
        from mpi4py import MPI
        from nogil_loader.cluster.mpi import MpiGroup
        group = MpiGroup(MPI.COMM_WORLD.Split(color=MPI.COMM_WORLD.rank % 2))
        ranks = group.ranks
        say([ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_size])
        """,
    )
    assert said == [[0, 2, 0, 2], [0, 2, 0, 2], [1, 2, 1, 2], [1, 2, 1, 2]]


def test_a_group_for_every_epoch_uses_up_no_communicators(ranks_say: Say) -> None:
    """MPICH has some 2,000 of them."""
    said = ranks_say(
        2,
        """
        from nogil_loader.cluster import connect
        for epoch in range(3000):
            group = connect().group
            if epoch % 1000 == 0:
                heard = group.allgather(epoch)
            group.close()
        say(heard)
        """,
    )
    assert said == [[2000, 2000], [2000, 2000]]


def test_a_second_thread_gets_an_error_and_no_deadlock(ranks_say: Say) -> None:
    said = ranks_say(
        2,
        """
        from concurrent.futures import ThreadPoolExecutor
        from nogil_loader.cluster import ClusterError
        from nogil_loader.cluster.mpi import MpiGroup
        group = MpiGroup()
        group.barrier()
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(group.barrier).exception()
        group.barrier()
        say([type(error) is ClusterError, str(error)])
        """,
    )
    assert all(typed and "come from one thread" in text for typed, text in said)


def test_a_group_made_by_one_thread_may_be_used_by_another(ranks_say: Say) -> None:
    said = ranks_say(
        2,
        """
        from concurrent.futures import ThreadPoolExecutor
        from nogil_loader.cluster.mpi import MpiGroup
        group = MpiGroup()
        with ThreadPoolExecutor(1) as pool:
            say(pool.submit(group.allgather, group.ranks.rank).result())
        """,
    )
    assert said == [[0, 1], [0, 1]]


def test_mpi_for_its_main_thread_alone_is_refused_elsewhere(ranks_say: Say) -> None:
    said = ranks_say(
        2,
        """
        from concurrent.futures import ThreadPoolExecutor
        import mpi4py
        mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI  # started here, by the main thread
        from nogil_loader.cluster.mpi import MpiGroup
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(MpiGroup).exception()
        say([str(error), MpiGroup().thread_level])
        """,
    )
    for text, level in said:
        assert "THREAD_FUNNELED" in text and "thread_level = 'multiple'" in text
        assert level == "funneled"


def test_a_closed_group_says_so(ranks_say: Say) -> None:
    (said,) = ranks_say(
        1,
        """
        from nogil_loader.cluster.mpi import MpiGroup
        group = MpiGroup()
        group.close()
        try:
            group.barrier()
        except RuntimeError as error:
            say(str(error))
        """,
    )
    assert said == "the group is closed"


def test_the_death_of_a_rank_ends_the_job(mpirun: Callable[..., object]) -> None:
    child = mpirun(
        3,
        """
        import os
        from nogil_loader.cluster import connect
        group = connect().group
        if group.ranks.rank == 1:
            os.kill(os.getpid(), 9)
        group.barrier()
        """,
        "-print-all-exitcodes",
        timeout=10,
    )
    assert child.returncode != 0
    assert re.search(r"Killed|signal 9", child.stdout + child.stderr)

"""The drop-in beside torch's own DataLoader, case by case."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as Theirs  # noqa: E402

from nogil_loader.torch import DataLoader as Ours  # noqa: E402

Made = Callable[[type], Any]


class Squares(Dataset):  # type: ignore[misc]
    def __init__(self, count: int = 23) -> None:
        self.data = np.arange(count, dtype=np.float32) ** 2

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": torch.tensor([self.data[index]]), "i": index, "name": f"s{index}"}


class Pairs(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 17

    def __getitem__(self, index: int) -> tuple[object, int]:
        return np.full((2, 3), index), index


class Count(IterableDataset):  # type: ignore[misc]
    def __init__(self, count: int = 11) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count


def generator(seed: int = 7) -> Any:
    return torch.Generator().manual_seed(seed)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def joined(samples: list[Any]) -> str:
    return "-".join(str(sample["i"]) for sample in samples)


CASES: dict[str, Made] = {
    "default": lambda L: L(Squares()),
    "batches": lambda L: L(Squares(), batch_size=4),
    "drop_last": lambda L: L(Squares(), batch_size=4, drop_last=True),
    "one batch": lambda L: L(Squares(), batch_size=100),
    "nothing left": lambda L: L(Squares(3), batch_size=4, drop_last=True),
    "tuples": lambda L: L(Pairs(), batch_size=5),
    "shuffle, generator": lambda L: L(Squares(), batch_size=4, shuffle=True, generator=generator()),
    "shuffle, global seed": lambda L: L(Squares(), batch_size=4, shuffle=True),
    "sequential sampler": lambda L: L(Squares(), 4, sampler=SequentialSampler(Squares())),
    "random sampler": lambda L: L(
        Squares(), 4, sampler=RandomSampler(Squares(), generator=generator())
    ),
    "replacement": lambda L: L(
        Squares(), 4, sampler=RandomSampler(Squares(), True, 31, generator=generator(3))
    ),
    "subset": lambda L: L(Squares(), 3, sampler=SubsetRandomSampler([1, 5, 9, 2], generator())),
    "weighted": lambda L: L(
        Squares(), 3, sampler=WeightedRandomSampler([1.0] * 23, 10, generator=generator(9))
    ),
    "list as sampler": lambda L: L(Squares(), 3, sampler=[4, 2, 0, 22]),
    "batch sampler": lambda L: L(Squares(), batch_sampler=[[3, 1], [0], [2, 2, 2]]),
    "batch sampler object": lambda L: L(
        Squares(), batch_sampler=BatchSampler(SequentialSampler(Squares()), 6, True)
    ),
    "no batches": lambda L: L(Squares(), batch_size=None),
    "no batches, sampler": lambda L: L(Squares(), batch_size=None, sampler=[3, 1]),
    "collate": lambda L: L(Squares(), batch_size=4, collate_fn=joined),
    "iterable": lambda L: L(Count(), batch_size=4),
    "iterable, drop_last": lambda L: L(Count(), batch_size=4, drop_last=True),
    "iterable, no batches": lambda L: L(Count(), batch_size=None),
}
WORKERS = (0, 1, 2, 4)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("case", CASES)
def test_the_same_batches_in_the_same_order(case: str, workers: int) -> None:
    def with_workers(kind: type) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            # Theirs reads an iterable dataset once a worker, ours once: see docs/torch.md.
            return kind(*args, num_workers=workers if kind is Ours else 0, **kwargs)

        return make

    def passes(kind: type) -> tuple[list[Any], int]:
        torch.manual_seed(11)
        loader = CASES[case](with_workers(kind))
        return [list(loader), list(loader)], len(loader)

    theirs, ours = passes(Theirs), passes(Ours)
    assert same(theirs[0], ours[0])
    assert theirs[1] == ours[1]


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"num_workers": -1},
        {"timeout": -1},
        {"shuffle": True, "sampler": [0]},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"batch_sampler": [[0]], "shuffle": True},
        {"batch_size": None, "drop_last": True},
        {"prefetch_factor": 2},
    ],
)
def test_what_torch_refuses_is_refused(arguments: dict[str, Any]) -> None:
    for kind in (Theirs, Ours):
        with pytest.raises(ValueError, match=r"."):
            kind(Squares(), **arguments)


def test_iterable_datasets_have_no_samplers() -> None:
    for kind in (Theirs, Ours):
        with pytest.raises(ValueError, match=r"."):
            kind(Count(), shuffle=True)


class Fails(Squares):
    def __getitem__(self, index: int) -> dict[str, object]:
        if index == 9:
            raise KeyError("nine")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_error_comes_after_the_batches_before_it(workers: int) -> None:
    got = []
    with pytest.raises(KeyError, match="nine"):
        for batch in Ours(Fails(), batch_size=4, num_workers=workers):
            got.append(batch["i"].tolist())
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_batch_that_does_not_come_in_time_is_a_runtime_error() -> None:
    import threading

    gate = threading.Event()

    class Waits(Squares):
        def __getitem__(self, index: int) -> dict[str, object]:
            gate.wait(20)
            return super().__getitem__(index)

    loader = Ours(Waits(), num_workers=1, timeout=0.2, share_dataset=True)
    try:
        with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
            next(iter(loader))
    finally:
        gate.set()
        loader.load_state_dict({})


def test_worker_init_fn_is_called_once_in_each_thread() -> None:
    numbers: list[int] = []
    list(Ours(Squares(), num_workers=3, worker_init_fn=numbers.append))
    assert sorted(numbers) == [0, 1, 2]


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("cut", (0, 1, 3, 6))
@pytest.mark.parametrize("case", ("shuffle, generator", "iterable", "batches"))
def test_a_state_continues_with_the_next_batch(case: str, cut: int, workers: int) -> None:
    def made() -> Any:
        return CASES[case](lambda *a, **k: Ours(*a, num_workers=workers, **k))

    whole = list(made())
    first = made()
    head = list(itertools.islice(first, cut))
    state = first.state_dict()
    first.load_state_dict({})
    second = made()
    second.load_state_dict(state)
    assert same(head + list(second), whole)


def test_resume_fetches_nothing_again() -> None:
    asked: list[int] = []

    class Asked(Squares):
        def __getitem__(self, index: int) -> dict[str, object]:
            asked.append(index)
            return super().__getitem__(index)

    first = Ours(Asked(), batch_size=4, num_workers=2, share_dataset=True)
    list(itertools.islice(first, 3))
    state = first.state_dict()
    first.load_state_dict({})
    asked.clear()
    second = Ours(Asked(), batch_size=4, num_workers=2, share_dataset=True)
    second.load_state_dict(state)
    list(second)
    assert sorted(asked) == list(range(12, 23))


def test_each_thread_has_its_own_dataset_and_shares_the_arrays() -> None:
    from nogil_loader.torch import copy_of

    original = Squares()
    copied = copy_of(original)
    assert isinstance(copied, Squares) and copied is not original
    assert copied.data is original.data


def test_a_dataset_that_cannot_be_copied_says_what_to_do(tmp_path: Any) -> None:
    class Opened(Squares):
        def __init__(self) -> None:
            super().__init__()
            (tmp_path / "file").write_bytes(b"x")
            self.file = (tmp_path / "file").open("rb")

    dataset = Opened()
    try:
        with pytest.raises(TypeError, match="share_dataset=True"):
            list(Ours(dataset, num_workers=1))
        assert len(list(Ours(dataset, num_workers=1, share_dataset=True))) == 23
    finally:
        dataset.file.close()

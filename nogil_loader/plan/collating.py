"""How groups become batches, where they are not simply stacked."""

from __future__ import annotations

from dataclasses import dataclass

from nogil_loader import stages
from nogil_loader.engine.batches import stack_plain
from nogil_loader.engine.padding import Packing, Padding


@dataclass(frozen=True)
class Collating:
    """How a group becomes a batch, where it is not simply stacked."""

    fn: stages.Fn | None
    """The user's own function of the list of samples."""
    padding: Padding | None = None

    def __call__(self, samples: list[object], layout: object) -> object:
        if self.padding is not None:
            bound = layout if isinstance(layout, int) else None
            samples = self.padding.pad_all(samples, bound)
        return stack_plain(samples) if self.fn is None else self.fn(samples)


@dataclass(frozen=True)
class Length:
    """How many tokens a sample has."""

    packing: Packing

    def __call__(self, sample: object) -> int:
        return len(self.packing.tokens(sample))


def only(samples: list[object], layout: object) -> object:
    """The one member of a group that is nothing but a sample that passed."""
    return samples[0]


def rows_of(batch: object) -> list[object]:
    """The samples of a batch: a batch of dicts becomes dicts again, and so on."""
    if isinstance(batch, dict):
        columns = {key: rows_of(value) for key, value in batch.items()}
        count = len(next(iter(columns.values()), ()))
        return [{key: column[row] for key, column in columns.items()} for row in range(count)]
    if isinstance(batch, tuple):
        make = getattr(type(batch), "_make", tuple)
        return [make(row) for row in zip(*map(rows_of, batch), strict=True)]
    return list(batch)  # type: ignore[call-overload, no-any-return]

"""Mixes: several pipelines' data as one source, in exact proportions.

Guarantees: which sample comes when is arithmetic over positions, as everything else; each
source has passes, and shuffles, of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from nogil_loader import plan, stages
from nogil_loader.position.mix import Mix
from nogil_loader.position.order import Order, Sequential
from nogil_loader.sources.base import Source
from nogil_loader.sources.combine import MixedReader, open_all


@dataclass(frozen=True)
class Mixture:
    """The description: sources, the order stages of each, and weights."""

    children: tuple[tuple[Source, tuple[stages.Stage, ...]], ...]
    weights: tuple[float, ...]
    seed: int = 0
    stop: str = "first"

    def __post_init__(self) -> None:
        for _, chain in self.children:
            for stage in chain:
                if not isinstance(stage, (stages.Shuffle, stages.Take, stages.Skip, stages.Repeat)):
                    raise ValueError(
                        f"mix takes data and its order: put {stage} after mix(...), for all sources"
                    )
        self.arranged([Sequential(1)] * len(self.children))

    def open(self) -> MixedReader:
        """Open every source."""
        return MixedReader(open_all([source for source, _ in self.children]))

    def order(self, reader: MixedReader) -> Order:
        """The order of the opened data."""
        return self.arranged([Sequential(length) for length in reader.lengths])

    def arranged(self, bases: list[Sequential]) -> Order:
        """The mix of the sources' orders."""
        orders = [
            plan.arrange(plan.lay_out(chain, stream=False), base)
            for (_, chain), base in zip(self.children, bases, strict=True)
        ]
        return Mix(orders, list(self.weights), self.seed, self.stop)  # type: ignore[arg-type]

"""From a chain of stages to what the engine runs; all validation is here.

Guarantees
- ``lay_out`` reads nothing and opens nothing: whatever a chain alone can know to be wrong is
  refused when the pipeline is built, with the call that fixes it.
- ``compose`` adds what only a run knows: the opened data, epoch, seed, rank.
"""

from nogil_loader.plan.chain import lay_out
from nogil_loader.plan.compose import arrange, compose, length_of
from nogil_loader.plan.layout import Layout

__all__ = ["Layout", "arrange", "compose", "lay_out", "length_of"]

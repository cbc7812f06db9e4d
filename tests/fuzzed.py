"""How many damaged inputs each parser is given: 20,000 in all, a million in ci/soak."""

from __future__ import annotations

import os

SOAK = os.environ.get("NOGIL_LOADER_SOAK") == "1"
FACTOR = 50 if SOAK else 1

DECODERS = {"array": 4500, "text": 1500, "image": 4500, "audio": 4000}
PARSERS = {"tar format": 1500, "tar": 1500, "zip": 1500, "npy": 1000}

assert sum(DECODERS.values()) + sum(PARSERS.values()) >= 20_000


def count(parser: str) -> int:
    """How many for this parser or kind of decoder."""
    return (DECODERS | PARSERS)[parser] * FACTOR

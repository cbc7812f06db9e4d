"""How hard a law is searched for a counterexample: NOGIL_LOADER_SOAK=1 tries 50 times as many."""

from __future__ import annotations

import os

from hypothesis import settings

SOAK = os.environ.get("NOGIL_LOADER_SOAK") == "1"
law = settings(deadline=None, max_examples=5000 if SOAK else 100)

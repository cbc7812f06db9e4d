"""Laws are searched with as many cases as fit a short run; NOGIL_LOADER_SOAK=1 scales them."""

from __future__ import annotations

import os

from hypothesis import settings

SOAK = os.environ.get("NOGIL_LOADER_SOAK") == "1"

settings.register_profile("position", deadline=None, max_examples=5000 if SOAK else 100)
settings.load_profile("position")

"""``python -m nogil_loader.cli`` is the nogil-loader command."""

import sys

from nogil_loader.cli import main

sys.exit(main())

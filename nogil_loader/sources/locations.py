"""What a user may give where a source takes one file or many.

Guarantees
- A path, an address, a glob pattern, or a sequence of these becomes a list of locations, in
  the given order; what a pattern matches is sorted by the bytes of its components.
- A pattern that matches nothing is an ``EmptySourceError``; a path is not looked at.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import TypeAlias

from nogil_loader.sources.errors import EmptySourceError

Location: TypeAlias = "str | os.PathLike[str]"


def frozen(given: Location | Sequence[Location]) -> Location | tuple[Location, ...]:
    """The same, with a sequence as a tuple, so that a frozen description stays hashable."""
    if isinstance(given, (str, os.PathLike)):
        return given
    return tuple(given)


def named(given: Sequence[str] | None, what: str) -> tuple[str, ...] | None:
    """Several names as a tuple; a single string, which is a sequence too, is a ``TypeError``."""
    if isinstance(given, str):
        raise TypeError(f"{what} needs a tuple of names: ({given!r},)")
    return None if given is None else tuple(given)


def listed(given: Location | Sequence[Location], what: str) -> list[str]:
    """Every location, patterns resolved. ``what`` names the kind of file in errors.

    >>> listed(("b.tar", "https://host/a.tar"), "tar file")
    ['b.tar', 'https://host/a.tar']
    """
    items = (given,) if isinstance(given, (str, os.PathLike)) else given
    found: list[str] = []
    for item in items:
        location = os.fspath(item)
        if not isinstance(location, str):
            raise TypeError(f"a path is a str or PathLike, not {location!r}: use os.fsdecode")
        if "://" in location or os.path.exists(location) or not glob.has_magic(location):
            found.append(location)
            continue
        matched = glob.glob(location, recursive=True)
        if not matched:
            raise EmptySourceError(f"no {what} matches {location!r}")
        found += sorted(matched, key=_components)
    if not found:
        raise EmptySourceError(f"no {what} was given")
    return found


def _components(path: str) -> list[bytes]:
    return os.fsencode(path).split(b"/")

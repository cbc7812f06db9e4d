"""Where the samples of a tar shard lie: found once, by reading every header.

Guarantees
- Every member is accounted for: it belongs to a sample, is a folder, or has a name that begins
  with a dot; a header that is none, a cut and a member that is there twice are errors.
- Samples are in the order of their first member, whatever lies between their members.
- While a shard is indexed that takes at most 60 bytes a sample; names are not kept.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from nogil_loader.sources.blobs import Blobs, ReadAt
from nogil_loader.sources.errors import BrokenFileError, TruncatedFileError
from nogil_loader.sources.saved import Arrays, Progress
from nogil_loader.sources.tar_format import Member, Read, is_hidden, key_and_field, scan

log = logging.getLogger("nogil_loader.sources")

Ints: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"


class Window:
    """Reads ahead while members are small, so that headers cost few system calls."""

    def __init__(self, blobs: Blobs, blob: int) -> None:
        self._read, self._blob, self._size = blobs.bind(), blob, blobs.sizes[blob]
        self._ahead = blobs.ahead
        self._start, self._held = 0, b""
        self._last = 0

    def __call__(self, offset: int, size: int) -> bytes:
        place = offset - self._start
        if place >= 0 and place + size <= len(self._held):
            return self._held[place : place + size]
        near = offset - self._last < self._ahead
        self._last = offset
        wanted = min(max(size, self._ahead if near else size), max(self._size - offset, 0))
        self._start, self._held = offset, self._read(self._blob, offset, wanted) if wanted else b""
        return self._held[:size]


def reading(read: ReadAt, blob: int, total: int) -> Read:
    """The bytes of one blob, fewer at its end."""

    def read_at(offset: int, size: int) -> bytes:
        wanted = min(size, max(total - offset, 0))
        return read(blob, offset, wanted) if wanted else b""

    return read_at


def sample_members(
    read: Read, archive: str, offset: int = 0, *, within: bool = False
) -> Iterator[Member]:
    """The members that belong to samples."""
    for member in scan(read, archive, offset, within=within):
        if member.kind != "folder" and not is_hidden(member.name):
            yield member


def index_shard(
    read: Read,
    archive: str,
    size: int,
    progress: Progress,
    *,
    keep_truncated: bool = False,
    keep_last: bool = False,
) -> Arrays:
    """Where the samples of a shard lie.

    ``starts``, ``spans``: offset and length of each sample's first run of members.
    ``further``: (sample, start, span) of the others, ordered by sample. Raises
    ``BrokenFileError`` for damage, a cut, and for a member that is there twice.
    """
    starts, spans, hashes = array("q"), array("q"), array("q")
    last_key: bytes | None = None
    cut_key: bytes | None = None
    seen: set[bytes] = set()
    counted = hidden = told = end = 0
    try:
        for member in scan(read, archive):
            key, field = key_and_field(member.name)
            end = member.end
            if member.data + member.size > size:
                cut_key = key
                raise TruncatedFileError(
                    f"{archive} is cut short: {readable(member.name)} at {member.start} needs "
                    f"{member.data + member.size - size} more bytes; "
                    f'truncated="keep" uses the samples before it'
                )
            if member.kind == "folder":
                continue
            if is_hidden(member.name):
                hidden += 1
                continue
            if key != last_key:
                starts.append(member.start)
                spans.append(0)
                hashes.append(hash(key))
                last_key = key
                seen.clear()
            elif field in seen and not keep_last:
                raise _twice(member.name, archive, member.start)
            seen.add(field)
            spans[-1] = min(member.end, size) - starts[-1]
            counted += 1
            if counted % 1024 == 0:
                progress.add(member.end - told, 1024)
                told = member.end
    except TruncatedFileError as error:
        if not keep_truncated:
            raise
        log.warning("%s: the sample there is left out", error)
        # What the cut belongs to is known unless it went through a header.
        if starts and cut_key in (last_key, None):
            for column in (starts, spans, hashes):
                column.pop()
    else:
        if end >= size:
            log.warning("%s has no end mark: it may have lost samples at its end", archive)
    if hidden:
        log.info("%s: %d members whose name begins with a dot are passed over", archive, hidden)
    progress.add(size - told, counted % 1024)
    return _grouped(
        np.asarray(starts),
        np.asarray(spans),
        np.asarray(hashes),
        lambda start, span: list(
            sample_members(
                lambda at, count: read(at, min(count, start + span - at)),
                archive,
                start,
                within=True,
            )
        ),
        archive,
        keep_last,
    )


def _grouped(
    starts: Ints,
    spans: Ints,
    hashes: Ints,
    members: Callable[[int, int], list[Member]],
    archive: str,
    keep_last: bool,
) -> Arrays:
    """Join the runs of members that have one key; usually each key has one run."""
    further: list[tuple[int, int, int]] = []
    kept = np.ones(len(starts), np.bool_)
    ordered = np.sort(hashes)
    if (ordered[1:] == ordered[:-1]).any():
        order = np.argsort(hashes, kind="stable")
        same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
        suspects = np.unique(np.concatenate([order[same], order[same + 1]]))
        # Equal hashes are only a hint: the names decide.
        first_run: dict[bytes, int] = {}
        names: dict[bytes, set[bytes]] = {}
        for run in suspects.tolist():
            start, span = int(starts[run]), int(spans[run])
            found = members(start, span)
            key = key_and_field(found[0].name)[0]
            fields = names.setdefault(key, set())
            for member in found:
                field = key_and_field(member.name)[1]
                if field in fields and not keep_last:
                    raise _twice(member.name, archive, member.start)
                fields.add(field)
            if key in first_run:
                further.append((first_run[key], start, span))
                kept[run] = False
            else:
                first_run[key] = run
    del ordered, hashes
    table = np.array(sorted(further), np.int64).reshape(-1, 3)
    if further:
        table[:, 0] = (np.cumsum(kept) - 1)[table[:, 0]]
        starts, spans = starts[kept], spans[kept]
    width = np.uint32 if not len(spans) or spans.max() < 1 << 32 else np.int64
    return {"starts": starts, "spans": spans.astype(width), "further": table}


def _twice(name: bytes, archive: str, start: int) -> BrokenFileError:
    return BrokenFileError(
        f"{archive} has {readable(name)} twice, again at {start} (upper and lower case count as "
        f'one): duplicates="last" takes the later one'
    )


def readable(name: bytes) -> str:
    """For messages: what is not UTF-8 is escaped."""
    return name.decode("utf-8", "backslashreplace")

"""Samples from tar shards, read in any order by any thread.

Guarantees
- A sample is every member with one key (WebDataset's naming), wherever in its shard they lie;
  members that lie together, as usual, are read by one ``pread``.
- The index is built once, in parallel over shards, kept as ``keep_index`` says, and built
  again when a shard's size or time changes. It takes 12 bytes a sample in memory (16 in
  shards with a sample of over 4 GiB); names stay in the archives.
- Nothing is passed over but folders and names that begin with a dot. A sparse file, a link, a
  device cannot be given as bytes: reading a sample with one is an ``UnsupportedMemberError``
  that names it.
- Damage is found when the shard is indexed: a header that is not one, a shard cut short, a
  member that is there twice.
"""

from __future__ import annotations

import hashlib
import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from nogil_loader.sources.base import Sample
from nogil_loader.sources.blobs import Blobs, ReadAt, open_blobs, read_parts
from nogil_loader.sources.compressed import LONGEST, compression
from nogil_loader.sources.errors import (
    BrokenFileError,
    EmptySourceError,
    TruncatedFileError,
    UnsupportedMemberError,
)
from nogil_loader.sources.locations import Location, frozen, listed, named
from nogil_loader.sources.saved import Arrays, Keep, Progress, indexes
from nogil_loader.sources.tar_format import Member, Read, is_hidden, key_and_field, plain, scan

log = logging.getLogger("nogil_loader.sources")

Ints: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"


@dataclass(frozen=True)
class Tar:
    """The samples of one shard or many, in the order of the shards and of their keys in each.

    Samples are dicts with

    - ``"__key__"``: str, the members' name up to the first dot of its last component;
    - for each member, under the rest of its name in lower case (``"jpg"``, ``"seg.png"``;
      ``""`` for a name without a dot): its content as bytes.

    ``shards``: a path, an address, a glob pattern (its matches sorted), or several of them.
    ``fields``: when given, only these are in the sample, and a sample that lacks one is a
    ``KeyError`` that names it. ``truncated="keep"``: of a shard that is cut short, the whole
    samples are used, with a warning. ``duplicates="last"``: of two members with one name the
    later counts, as for ``tar -r``. ``threads``: None where reading is a copy from the page
    cache; a number of threads where it waits, as on network file systems and for addresses.
    ``keep_index``: ``"cache"`` (a folder of the user's cache), ``"beside"`` each shard,
    ``"memory"``, or a folder.

    ``open`` raises ``FileNotFoundError``, ``EmptySourceError``, ``BrokenFileError``, and
    ``UnsupportedMemberError`` for compressed shards, which only ``TarStream`` reads.

    >>> import io, tarfile, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tarfile.open(f"{folder}/a.tar", "w") as file:
    ...         for name in ("1.jpg", "1.cls", "2.jpg", "2.cls"):
    ...             member = tarfile.TarInfo(name)
    ...             member.size = 3
    ...             file.addfile(member, io.BytesIO(name[:1].encode() * 3))
    ...     reader = Tar(f"{folder}/*.tar", keep_index="memory").open()
    ...     print(len(reader), reader.bind()(1))
    ...     reader.close()
    2 {'__key__': '2', 'jpg': b'222', 'cls': b'222'}
    """

    shards: Location | Sequence[Location]
    fields: Sequence[str] | None = None
    truncated: Literal["raise", "keep"] = "raise"
    duplicates: Literal["raise", "last"] = "raise"
    threads: int | None = None
    keep_index: Keep = "cache"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", frozen(self.shards))
        object.__setattr__(self, "fields", named(self.fields, "fields"))

    def open(self) -> TarReader:
        """Index the shards, or load their indexes."""
        return TarReader(self)


class TarReader:
    """An opened ``Tar``: where each sample lies."""

    def __init__(self, source: Tar) -> None:
        self._source = source
        self._blobs = open_blobs(listed(source.shards, "tar file"))
        self.threads = source.threads or self._blobs.threads
        try:
            self._refuse_compressed(self._blobs)
            kind = f"tar {source.truncated} {source.duplicates}"
            found = indexes(self._blobs, kind, source.keep_index, self._index)
            self._starts: Ints = np.concatenate([index["starts"] for index in found])
            self._spans = np.concatenate([index["spans"] for index in found])
            self._ends = np.cumsum([len(index["starts"]) for index in found])
            if not len(self._starts):
                raise EmptySourceError(f"there is no sample in {', '.join(self._blobs.names)}")
            self._further = self._all_further(found)
        except BaseException:
            self._blobs.close()
            raise

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def nbytes(self) -> int:
        """The memory that the index takes."""
        arrays = (self._starts, self._spans, self._ends, self._further)
        return sum(part.nbytes for part in arrays)

    def bind(self) -> Callable[[int], Sample]:
        """``index -> sample``, with buffers of this thread's own."""
        read, names, fields = self._blobs.bind(), self._blobs.names, self._source.fields
        starts, spans, ends = self._starts.data, self._spans.data, self._ends.data
        further = self._further[:, 0].copy().data if len(self._further) else None
        length, ahead = len(self), self._blobs.ahead

        def sample(index: int) -> dict[str, object]:
            if not 0 <= index < length:
                raise IndexError(f"sample {index} of {length}")
            shard = bisect_right(ends, index)
            if further is None:
                parts = [read(shard, starts[index], spans[index])]
            else:
                parts = read_parts(read, shard, self._all_parts(index, further), ahead)
            return _sample(parts, names[shard], fields)

        return sample

    def ref(self, index: int) -> object:
        """``shard.tar:key``; the key is read from the shard, or its offset given instead."""
        shard = bisect_right(self._ends.data, index)
        name, start = self._blobs.names[shard], int(self._starts[index])
        read = self._blobs.bind()
        try:
            member = next(_samples_members(_at(read, shard, self._blobs.sizes[shard]), name, start))
        except (OSError, ValueError, RuntimeError, StopIteration):
            return f"{name}@{start}"
        return f"{name}:{os.fsdecode(key_and_field(member.name)[0])}"

    def fingerprint(self) -> str:
        """Of the shards' names without their folder, sizes and times, and of the options."""
        source = self._source
        told = f"tar {len(self)} {source.fields} {source.truncated} {source.duplicates}"
        digest = hashlib.blake2b(told.encode(), digest_size=16)
        for name, version in zip(self._blobs.names, self._blobs.versions, strict=True):
            digest.update(f"{os.path.basename(name)}\0{version}\0".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def close(self) -> None:
        self._blobs.close()

    def _refuse_compressed(self, blobs: Blobs) -> None:
        read = blobs.bind()
        for number, size in enumerate(blobs.sizes):
            kind = compression(read(number, 0, min(LONGEST, size)))
            if kind is not None:
                raise UnsupportedMemberError(
                    f"{blobs.names[number]} is compressed with {kind}, which has no random "
                    f"access: read it in order with from_tar(…, stream=True), or unpack it"
                )

    def _index(self, shard: int, progress: Progress) -> Arrays:
        read = _Window(self._blobs, shard)
        return index_shard(
            read,
            self._blobs.names[shard],
            self._blobs.sizes[shard],
            progress,
            keep_truncated=self._source.truncated == "keep",
            keep_last=self._source.duplicates == "last",
        )

    def _all_further(self, found: list[Arrays]) -> Ints:
        """(sample, start, span) of members that lie apart from the first of their sample."""
        tables = []
        for index, end in zip(found, self._ends, strict=True):
            table = index["further"].copy()
            table[:, 0] += end - len(index["starts"])
            tables.append(table)
        return np.concatenate(tables)

    def _all_parts(self, index: int, further: memoryview) -> list[tuple[int, int]]:
        """(start, span) of every run of a sample's members."""
        parts = [(int(self._starts[index]), int(self._spans[index]))]
        row = bisect_right(further, index - 1)
        while row < len(further) and further[row] == index:
            parts.append((int(self._further[row, 1]), int(self._further[row, 2])))
            row += 1
        return parts


class _Window:
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


def _at(read: ReadAt, blob: int, total: int) -> Read:
    """The bytes of one blob, fewer at its end."""

    def read_at(offset: int, size: int) -> bytes:
        wanted = min(size, max(total - offset, 0))
        return read(blob, offset, wanted) if wanted else b""

    return read_at


def _samples_members(
    read: Read, archive: str, offset: int = 0, *, within: bool = False
) -> Iterator[Member]:
    """The members that belong to samples."""
    for member in scan(read, archive, offset, within=within):
        if member.kind != "folder" and not is_hidden(member.name):
            yield member


def _sample(parts: list[bytes], archive: str, fields: Sequence[str] | None) -> dict[str, object]:
    """The sample whose members lie in these parts of its archive."""
    made: dict[str, object] = {}
    for part in parts:
        for member in plain(part) or scan(partial(_slice, part), archive, within=True):
            name, kind, data, size = member[1:5]
            if kind == "folder" or is_hidden(name):
                continue
            key, field_bytes = key_and_field(name)
            field = os.fsdecode(field_bytes)
            if not made:
                made["__key__"] = os.fsdecode(key)
            if fields is not None and field not in fields:
                continue
            if kind != "file":
                raise refusal(name, kind, archive)
            made[field] = part[data : data + size]
    if fields is not None:
        return chosen(made, archive, fields)
    return made


def _slice(part: bytes, offset: int, size: int) -> bytes:
    return part[offset : offset + size]


def chosen(made: dict[str, object], archive: str, fields: Sequence[str]) -> dict[str, object]:
    """Only these fields of a sample; ``KeyError`` when it lacks one."""
    lacking = [field for field in fields if field not in made]
    if lacking:
        raise KeyError(f"{archive}:{made['__key__']} has no member .{lacking[0]}")
    return {"__key__": made["__key__"]} | {field: made[field] for field in fields}


def refusal(name: bytes, kind: str, archive: str) -> UnsupportedMemberError:
    """What to raise for a member that has no bytes of its own."""
    return UnsupportedMemberError(
        f"{archive}:{_text(name)} is {kind}: write the archive without it "
        f"(GNU tar: without --sparse, with --dereference --hard-dereference)"
    )


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
                    f"{archive} is cut short: {_text(member.name)} at {member.start} needs "
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
        np.array(starts, np.int64),
        np.array(spans, np.int64),
        np.array(hashes, np.int64),
        lambda start, span: list(
            _samples_members(
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
    if len(np.unique(hashes)) < len(hashes):
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
    number = np.cumsum(kept) - 1
    table = np.array(sorted(further), np.int64).reshape(-1, 3)
    table[:, 0] = number[table[:, 0]]
    spans = spans[kept]
    if not len(spans) or spans.max() < 1 << 32:
        return {"starts": starts[kept], "spans": spans.astype(np.uint32), "further": table}
    return {"starts": starts[kept], "spans": spans, "further": table}


def _twice(name: bytes, archive: str, start: int) -> BrokenFileError:
    return BrokenFileError(
        f"{archive} has {_text(name)} twice, again at {start} (upper and lower case count as "
        f'one): duplicates="last" takes the later one'
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")

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
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from nogil_loader.sources.base import Sample
from nogil_loader.sources.blobs import Blobs, open_blobs, read_parts
from nogil_loader.sources.compressed import LONGEST, compression
from nogil_loader.sources.errors import (
    EmptySourceError,
    UnsupportedMemberError,
)
from nogil_loader.sources.locations import Location, frozen, listed, named
from nogil_loader.sources.saved import Arrays, Keep, Progress, indexes
from nogil_loader.sources.tar_format import is_hidden, key_and_field, plain, scan
from nogil_loader.sources.tar_index import (
    Ints,
    Window,
    index_shard,
    readable,
    reading,
    sample_members,
)


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
            member = next(
                sample_members(reading(read, shard, self._blobs.sizes[shard]), name, start)
            )
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
        read = Window(self._blobs, shard)
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
        f"{archive}:{readable(name)} is {kind}: write the archive without it "
        f"(GNU tar: without --sparse, with --dereference --hard-dereference)"
    )

"""Samples from tar archives in the order they come: pipes, compressed shards.

Guarantees
- One pass, front to back, with no seek: a pipe, a socket's file, a gzip, bzip2 or xz shard
  (told by content) will do. Memory is that of one sample.
- The same samples as ``Tar`` gives, as long as the members of each lie together: members
  that do not are a ``BrokenFileError``, never two halves of a sample.
- A sample that cannot be given (a sparse file in it) raises and the stream goes on after it.
- It resumes exactly: by a seek in an uncompressed file, elsewhere by reading and discarding.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Literal, TypeAlias

from nogil_loader.sources.base import JSON, Sample
from nogil_loader.sources.compressed import decompressed, naming
from nogil_loader.sources.errors import BrokenFileError, EmptySourceError, TruncatedFileError
from nogil_loader.sources.locations import Location, listed, named
from nogil_loader.sources.tar import chosen, refusal
from nogil_loader.sources.tar_format import Member, is_hidden, key_and_field, scan

log = logging.getLogger("nogil_loader.sources")

Opened: TypeAlias = "Callable[[], BinaryIO]"
Shards: TypeAlias = "Location | Opened | Sequence[Location | Opened]"

REMEMBERED = 8192
"""For how many of the last samples ``ref`` knows the key."""


@dataclass(frozen=True)
class TarStream:
    """The samples of the shards, one shard after the other.

    Samples are those of ``Tar``: ``"__key__"`` and the content of each member.

    ``shards``: a path (of a pipe, too), a glob pattern, a function without arguments that
    returns a binary file (``lambda: subprocess.Popen(…).stdout``), or several of them.
    ``fields`` and ``duplicates`` as for ``Tar``.

    The iterator raises ``BrokenFileError`` and ``TruncatedFileError`` for damage, and
    ``UnsupportedMemberError`` for a sample that has no bytes of its own; ``open`` raises
    ``EmptySourceError`` where a pattern matches nothing.

    >>> import io, tarfile
    >>> def archive():
    ...     made = io.BytesIO()
    ...     with tarfile.open(fileobj=made, mode="w:gz") as file:
    ...         for name in ("1.txt", "1.cls", "2.txt"):
    ...             file.addfile(tarfile.TarInfo(name))
    ...     made.seek(0)
    ...     return made
    >>> list(TarStream(archive).open())
    [{'__key__': '1', 'txt': b'', 'cls': b''}, {'__key__': '2', 'txt': b''}]
    """

    shards: Shards
    fields: Sequence[str] | None = None
    duplicates: Literal["raise", "last"] = "raise"
    stream: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        shards = self.shards
        if not (isinstance(shards, (str, os.PathLike)) or callable(shards)):
            object.__setattr__(self, "shards", tuple(shards))
        object.__setattr__(self, "fields", named(self.fields, "fields"))

    def open(self, resume: JSON = None) -> TarStreamReader:
        """Begin at the first shard, or where a snapshot says."""
        return TarStreamReader(self, resume)


class TarStreamReader:
    """One pass over a ``TarStream``."""

    def __init__(self, source: TarStream, resume: JSON) -> None:
        self._source = source
        self._shards: list[str | Opened] = []
        shards = source.shards if isinstance(source.shards, tuple) else (source.shards,)
        for shard in shards:
            if isinstance(shard, (str, os.PathLike)):
                self._shards += listed(shard, "tar file")
            else:
                self._shards.append(shard)
        if not self._shards:
            raise EmptySourceError("no tar file was given")
        self._shard, self._offset = _place(resume)
        self._file: BinaryIO | None = None
        self._below: BinaryIO | None = None
        self._keys: deque[str] = deque(maxlen=REMEMBERED)
        self._given = 0
        self._samples = self._read_all()

    def __iter__(self) -> Iterator[Sample]:
        return self

    def __next__(self) -> Sample:
        made = next(self._samples)
        if isinstance(made, Exception):
            raise made
        return made

    def snapshot(self) -> JSON:
        return {"shard": self._shard, "offset": self._offset}

    def ref(self, number: int) -> object:
        place = number - (self._given - len(self._keys))
        return self._keys[place] if 0 <= place < len(self._keys) else f"tar[{number}]"

    def fingerprint(self) -> str:
        """Of the shards' names without their folder, and of the options."""
        source = self._source
        digest = hashlib.blake2b(
            f"tar stream {source.fields} {source.duplicates}".encode(), digest_size=16
        )
        for number in range(len(self._shards)):
            digest.update(os.path.basename(self._name(number)).encode(errors="surrogateescape"))
        return digest.hexdigest()

    def interrupt(self) -> None:
        """A read that waits on a pipe cannot be woken from outside."""

    def close(self) -> None:
        for file in (self._file, self._below):
            if file is not None:
                file.close()
        self._file = self._below = None

    def _name(self, number: int) -> str:
        shard = self._shards[number]
        return shard if isinstance(shard, str) else f"tar stream {number}"

    def _read_all(self) -> Iterator[Sample | Exception]:
        while self._shard < len(self._shards):
            name = self._name(self._shard)
            forward = self._open(self._shards[self._shard], name)
            with naming(name):
                yield from self._read_shard(forward, name)
            self.close()
            self._shard, self._offset = self._shard + 1, 0

    def _open(self, shard: str | Opened, name: str) -> _Forward:
        self._below = open(shard, "rb") if isinstance(shard, str) else shard()  # noqa: SIM115
        self._file = decompressed(self._below, name)
        plain = isinstance(shard, str) and self._file is self._below
        return _Forward(self._file, seekable=plain and self._below.seekable())

    def _read_shard(self, forward: _Forward, name: str) -> Iterator[Sample | Exception]:
        """Samples, or what to raise in place of one."""
        finished: set[int] = set()
        key = b""
        made: dict[str, object] = {}
        refused: Exception | None = None
        end = self._offset
        for member in scan(forward, name, self._offset):
            end = member.end
            if member.kind == "folder" or is_hidden(member.name):
                continue
            its_key, its_field = key_and_field(member.name)
            if its_key != key or not (made or refused):
                if made or refused:
                    self._offset = member.start
                    yield self._finished(made, refused, name)
                if hash(its_key) in finished:
                    raise BrokenFileError(
                        f"{name}: the members of {os.fsdecode(its_key)!r} do not lie together, "
                        f"again at {member.start}: read it as Tar, or write it sorted by name"
                    )
                finished.add(hash(its_key))
                key, made, refused = its_key, {"__key__": os.fsdecode(its_key)}, None
            field_ = os.fsdecode(its_field)
            if self._source.fields is not None and field_ not in self._source.fields:
                continue
            if field_ in made and self._source.duplicates == "raise":
                raise BrokenFileError(f"{name} has {os.fsdecode(member.name)!r} twice")
            if member.kind != "file":
                refused = refused or refusal(member.name, member.kind, name)
                continue
            made[field_] = _content(forward, member, name)
        if made or refused:
            self._offset = end
            if forward.offset <= end:
                log.warning("%s has no end mark: it may have lost samples at its end", name)
            yield self._finished(made, refused, name)

    def _finished(
        self, made: dict[str, object], refused: Exception | None, name: str
    ) -> Sample | Exception:
        self._keys.append(f"{name}:{made['__key__']}")
        self._given += 1
        if refused is not None or self._source.fields is None:
            return refused or made
        try:
            return chosen(made, name, self._source.fields)
        except KeyError as error:
            return error


class _Forward:
    """``read(offset, size)`` for offsets that never go back."""

    def __init__(self, file: BinaryIO, *, seekable: bool) -> None:
        self._file, self._seekable = file, seekable
        self._start, self._held = 0, b""

    @property
    def offset(self) -> int:
        """How far it has come."""
        return self._start + len(self._held)

    def __call__(self, offset: int, size: int) -> bytes:
        have = self._held[offset - self._start :] if offset < self.offset else b""
        if offset > self.offset:
            self._skip(offset - self.offset)
        if len(have) < size:
            have += self._read(size - len(have))
        self._start, self._held = offset, have
        return have[:size]

    def _skip(self, size: int) -> None:
        if self._seekable:
            self._file.seek(size, os.SEEK_CUR)
            return
        while size:
            skipped = len(self._file.read(min(size, 1 << 20)))
            if not skipped:
                return
            size -= skipped

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._file.read(min(size, 1 << 24))
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _content(forward: _Forward, member: Member, name: str) -> bytes:
    content = forward(member.data, member.size)
    if len(content) < member.size:
        raise TruncatedFileError(
            f"{name} is cut short: {member.name.decode('utf-8', 'backslashreplace')} at "
            f"{member.start} needs {member.size - len(content)} more bytes"
        )
    return content


def _place(resume: JSON) -> tuple[int, int]:
    if resume is None:
        return 0, 0
    if isinstance(resume, dict):
        shard, offset = resume.get("shard"), resume.get("offset")
        if isinstance(shard, int) and isinstance(offset, int):
            return shard, offset
    raise ValueError(f"not a place in a tar stream: {resume!r}")

"""The stages of a chain: one frozen dataclass for each kind, without behaviour.

Guarantees
- A stage is a value: it compares, prints as the call that makes it, and holds no thread,
  file or state.
- What a stage alone can know to be wrong is refused when it is made, naming the cure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

from nogil_loader.fallback.remote import shippable

Fn: TypeAlias = "Callable[..., object]"


@dataclass(frozen=True)
class Retry:
    """Try a failing op again before giving up on the sample.

    ``times``: further attempts (at least 1). ``backoff``: seconds before the first of them;
    each later wait is ``factor`` times as long, up to ``longest`` seconds. The worker does
    something else meanwhile. ``then``: ``"raise"``, ``"skip"`` or a function
    ``fn(sample_ref, exception)`` that returns a substitute. ``on``: the exceptions that are
    worth another attempt; others go to ``then`` at once.

    >>> Retry(3, backoff=0.1)
    Retry(times=3, backoff=0.1, then='raise', factor=2.0, longest=60.0)
    """

    times: int
    backoff: float = 0.0
    then: str | Fn = "raise"
    factor: float = 2.0
    longest: float = 60.0

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"Retry(times={self.times}): give at least 1, or no Retry at all")
        if self.backoff < 0 or self.factor < 1:
            raise ValueError("Retry: backoff is at least 0 seconds, factor at least 1")
        if isinstance(self.then, str) and self.then not in ("raise", "skip"):
            raise ValueError(f"Retry(then={self.then!r}): 'raise', 'skip' or a function")

    def wait(self, attempt: int) -> float:
        """Seconds before attempt number ``attempt`` (1 for the first retry)."""
        try:
            return min(self.backoff * self.factor ** (attempt - 1), self.longest)
        except OverflowError:  # of very many attempts
            return self.longest


OnError: TypeAlias = "str | Retry | Fn"


@dataclass(frozen=True)
class Stage:
    """What all stages share: printing as the method call that adds them."""

    def __str__(self) -> str:
        return describe(self)


@dataclass(frozen=True)
class Shuffle(Stage):
    """A permutation of the whole data set (or of consecutive windows)."""

    seed: int = 0
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            _at_least("shuffle", "window", self.window, 1)


@dataclass(frozen=True)
class Shard(Stage):
    """Every ``world_size``-th position, from ``rank`` on."""

    rank: int | None = None
    world_size: int | None = None
    remainder: str = "drop"
    batches: int | None = None
    uneven: str | None = None

    def __post_init__(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise ValueError("shard: give both rank and world_size, or neither to have them found")
        if self.world_size is not None and self.rank is not None:
            _at_least("shard", "world_size", self.world_size, 1)
            if not 0 <= self.rank < self.world_size:
                raise ValueError(
                    f"shard: rank {self.rank} is not below world_size {self.world_size}"
                )
        if self.remainder not in ("drop", "pad", "wrap"):
            raise ValueError(f"shard(remainder={self.remainder!r}): 'drop', 'pad' or 'wrap'")
        if self.uneven not in (None, "agree", "allow"):
            raise ValueError(f"shard(uneven={self.uneven!r}): 'agree' or 'allow'")


@dataclass(frozen=True)
class Repeat(Stage):
    """Pass after pass: ``times`` of them, or without end."""

    times: int | None = None

    def __post_init__(self) -> None:
        if self.times is not None:
            _at_least("repeat", "times", self.times, 1)


@dataclass(frozen=True)
class Take(Stage):
    """The first ``count`` and no more."""

    count: int

    def __post_init__(self) -> None:
        _at_least("take", "count", self.count, 0)


@dataclass(frozen=True)
class Skip(Stage):
    """All but the first ``count``."""

    count: int

    def __post_init__(self) -> None:
        _at_least("skip", "count", self.count, 0)


@dataclass(frozen=True)
class Op(Stage):
    """A function of each sample: what ``map``, ``flat_map`` and ``filter`` share."""

    fn: Fn
    key: object = None
    to: object = None
    threads: int | str | None = None
    limit: int | None = None
    serial: bool = False
    in_flight: int | None = None
    rng: bool = False
    on_error: OnError = "raise"
    max_skips: int | float | None = None
    timeout: float | None = None
    gil_fallback: str = "thread"
    name: str | None = None

    def __post_init__(self) -> None:
        word = type(self).__name__.lower()
        if not callable(self.fn):
            raise TypeError(f"{word}: {self.fn!r} is not a function; decoders are made by a call")
        if self.to is not None and self.key is None:
            raise ValueError(f"{word}(to={self.to!r}) needs key=: the field that is replaced")
        if isinstance(self.threads, str) and self.threads != "auto":
            raise ValueError(f"{word}(threads={self.threads!r}): a number or 'auto'")
        for field in ("threads", "limit", "in_flight"):
            value = getattr(self, field)
            if value is not None and value != "auto":
                _at_least(word, field, value, 1)
        if self.serial and (self.threads not in (None, 1) or self.limit not in (None, 1)):
            raise ValueError(f"{word}(serial=True) runs one at a time: leave out threads and limit")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError(f"{word}(timeout={self.timeout}): seconds, more than 0")
        if self.gil_fallback not in ("thread", "process"):
            raise ValueError(f"{word}(gil_fallback={self.gil_fallback!r}): 'thread' or 'process'")
        if self.gil_fallback == "process":
            if self.in_flight is not None:
                raise ValueError(f"{word}: in_flight= returns futures, which stay in one process")
            shippable(self.fn, self.title)
        if isinstance(self.on_error, str) and self.on_error not in ("raise", "skip"):
            raise ValueError(
                f"{word}(on_error={self.on_error!r}): 'raise', 'skip', Retry(...) or a function"
            )
        if self.max_skips is not None:
            then = self.on_error.then if isinstance(self.on_error, Retry) else self.on_error
            if then != "skip":
                raise ValueError(f"{word}(max_skips=...) needs on_error='skip'")
            if isinstance(self.max_skips, float) and not 0.0 < self.max_skips < 1.0:
                raise ValueError(
                    f"{word}(max_skips={self.max_skips}): a count, or a share in (0, 1)"
                )

    @property
    def title(self) -> str:
        """The name in errors and reports."""
        return self.name if self.name is not None else name_of(self.fn)


@dataclass(frozen=True)
class Map(Op):
    """One result for each sample."""


@dataclass(frozen=True)
class FlatMap(Op):
    """Any number of results for each sample."""


@dataclass(frozen=True)
class Filter(Op):
    """Keep the samples for which the function is true."""


@dataclass(frozen=True)
class Batch(Stage):
    """Groups of ``size`` consecutive samples."""

    size: int
    drop_last: bool = False
    collate: Fn | None = None
    max_wait: float | None = None

    def __post_init__(self) -> None:
        _at_least("batch", "n", self.size, 1)
        if self.max_wait is not None and self.max_wait <= 0:
            raise ValueError(f"batch(max_wait={self.max_wait}): seconds, more than 0")
        if self.max_wait is not None and self.drop_last:
            raise ValueError("batch(max_wait=..., drop_last=True) would lose samples: choose one")


@dataclass(frozen=True)
class Bucket(Stage):
    """Batches of samples of similar length."""

    length: Fn
    boundaries: tuple[int, ...]
    batch_sizes: int | tuple[int, ...]
    drop_last: bool = False
    collate: Fn | None = None

    def __post_init__(self) -> None:
        if not callable(self.length):
            raise TypeError("bucket(length=...) needs a function that gives the length of a sample")


@dataclass(frozen=True)
class Pad(Stage):
    """Arrays of one batch made equally long."""

    to: int | None = None
    key: object = None
    axis: int = 0
    value: object = 0
    multiple: int = 1
    lengths: str | None = None

    def __post_init__(self) -> None:
        if self.to is not None:
            _at_least("pad", "to", self.to, 1)
        _at_least("pad", "multiple", self.multiple, 1)
        _at_least("pad", "axis", self.axis, 0)


@dataclass(frozen=True)
class Pack(Stage):
    """Token sequences laid into rows of ``length`` tokens."""

    length: int
    algorithm: str = "best_fit"
    key: object = None
    rows: int = 1
    open_packs: int | None = None
    drop_last: bool = False


@dataclass(frozen=True)
class Unbatch(Stage):
    """The rows of a batch, one by one."""


@dataclass(frozen=True)
class Cache(Stage):
    """Keep the samples at this place: in memory, or in a folder."""

    where: str
    max_bytes: int | None = None
    version: str = ""
    freeze_rng: bool = False


@dataclass(frozen=True)
class Prefetch(Stage):
    """How many batches are made ahead of the consumer."""

    batches: int

    def __post_init__(self) -> None:
        _at_least("prefetch", "batches", self.batches, 1)


@dataclass(frozen=True)
class Workers(Stage):
    """The shared CPU workers: how many, or which share of the usable cores."""

    count: int | None = None
    share: float | None = None
    block: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            _at_least("workers", "count", self.count, 1)
        if self.block is not None:
            _at_least("workers", "block", self.block, 1)
        if self.share is not None and not 0.0 < self.share <= 1.0:
            raise ValueError(f"workers(share={self.share}): a share of the cores in (0, 1]")


@dataclass(frozen=True)
class Memory(Stage):
    """Bytes that may be in flight."""

    limit: int

    def __post_init__(self) -> None:
        _at_least("memory", "limit", self.limit, 1)


@dataclass(frozen=True)
class ToDevice(Stage):
    """Batches on an accelerator."""

    device: str = "auto"
    transform: Fn | None = None
    stream: object = None


def name_of(fn: object) -> str:
    """What a callable is called in errors and reports."""
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None)
    if isinstance(name, str):
        return name.rsplit(".", 1)[-1]
    inner = getattr(fn, "func", None)
    return name_of(inner) if inner is not None else type(fn).__name__.lower()


_METHODS: dict[type, str] = {
    FlatMap: "flat_map",
    ToDevice: "to_device",
}
_POSITIONAL = ("fn", "size", "count", "times", "batches", "limit", "device", "length", "where")


def describe(stage: Stage) -> str:
    """The method call that adds the stage, leaving out what is the default."""
    method = _METHODS.get(type(stage), type(stage).__name__.lower())
    arguments = []
    for number, field in enumerate(fields(stage)):
        value = getattr(stage, field.name)
        if value == field.default and type(value) is type(field.default):
            continue
        text = show(value)
        plain = number == 0 and field.name in _POSITIONAL
        arguments.append(text if plain else f"{field.name}={text}")
    return f"{method}({', '.join(arguments)})"


def show(value: object) -> str:
    """A value as code where it has a name that can be imported, and as a pointer elsewhere."""
    code = getattr(value, "__code__", None)
    name = getattr(value, "__qualname__", None)
    if code is not None and isinstance(name, str):
        if "<lambda>" in name:
            return f"<lambda {code.co_filename}:{code.co_firstlineno}>"
        if "<locals>" in name:
            return f"<function {name} {code.co_filename}:{code.co_firstlineno}>"
    if isinstance(name, str):
        module = getattr(value, "__module__", None)
        return name if module in (None, "builtins", "__main__") else f"{module}.{name}"
    return repr(value)


def _at_least(word: str, field: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{word}({field}={value!r}): a whole number is needed")
    if value < least:
        raise ValueError(f"{word}({field}={value}): at least {least}")

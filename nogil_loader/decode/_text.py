"""Text and JSON: bytes and files to ``str`` and to what JSON can say.

Guarantees
- A ``str`` given to these decoders is a *path*, as for every decoder; text that already is a
  ``str`` needs none (``json.loads`` reads it).
- Bytes that don't decode are a ``DecodeError`` that says where, never replaced unless asked.
- A decoder holds no state: any number of threads may use one.
"""

from __future__ import annotations

import codecs
import json as standard
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TypeAlias

from nogil_loader.decode import _describe, _input
from nogil_loader.decode._input import Encoded
from nogil_loader.decode.errors import DecodeError

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, Value] | None"


@dataclass(frozen=True, repr=False)
class text:
    """Decode text: bytes, a buffer or a path to a ``str``.

    Line ends are kept as they are. A byte order mark is kept too; ``"utf-8-sig"`` and
    ``"utf-16"`` remove theirs. ``errors`` is what ``bytes.decode`` takes: "strict" raises a
    ``DecodeError``, "replace", "ignore" and "surrogateescape" don't.

    >>> from nogil_loader import decode
    >>> decode.text()(b"na\\xc3\\xafve")
    'naïve'
    """

    encoding: str = "utf-8"
    _: KW_ONLY
    errors: str = "strict"

    __repr__ = _describe.call

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
            codecs.lookup_error(self.errors)
        except LookupError as unknown:
            raise ValueError(
                f"encoding={self.encoding!r}, errors={self.errors!r}: {unknown}"
            ) from None

    def bind(self) -> Callable[[object], str]:
        """This decoder for the calling thread alone."""
        return partial(_text, "decode.text", self.encoding, self.errors)

    def __call__(self, value: Encoded) -> str:
        """The text in ``value``: content in memory, or the path of a file."""
        return _text("decode.text", self.encoding, self.errors, value)


@dataclass(frozen=True, repr=False)
class json:
    """Decode JSON (RFC 8259, UTF-8): bytes, a buffer or a path to dicts, lists and scalars.

    A byte order mark is passed over. Of equal keys the last counts. ``NaN`` and ``Infinity``,
    which Python writes and the RFC doesn't know, are read unless ``strict=True``.

    Raises ``DecodeError`` with line and column.

    >>> from nogil_loader import decode
    >>> decode.json()(b'{"label": 3}')
    {'label': 3}
    """

    _: KW_ONLY
    strict: bool = False

    __repr__ = _describe.call

    def bind(self) -> Callable[[object], Value]:
        """This decoder for the calling thread alone."""
        refuse = _refuse_constant if self.strict else None
        return partial(_json, standard.JSONDecoder(parse_constant=refuse))

    def __call__(self, value: Encoded) -> Value:
        """The value in ``value``: content in memory, or the path of a file."""
        return self.bind()(value)


def _text(decoder: str, encoding: str, errors: str, value: object) -> str:
    data, name = _input.read(value, decoder)
    try:
        return str(data, encoding, errors)
    except (UnicodeError, ValueError) as error:
        raise DecodeError(f"{name}not {encoding}: {error}") from error


def _json(decoder: standard.JSONDecoder, value: object) -> Value:
    data, name = _input.read(value, "decode.json")
    try:
        result: Value = decoder.decode(str(data, "utf-8").removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        # UnicodeDecodeError and JSONDecodeError are ValueErrors, as are numbers too long.
        raise DecodeError(f"{name}not JSON: {error}") from error
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")

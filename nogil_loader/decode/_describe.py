"""How decoders print: as the shortest code that makes them again."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def call(instance: DataclassInstance) -> str:
    """``decode.image(size=224)``: the call with the arguments that aren't the defaults."""
    given = (
        f"{field.name}={getattr(instance, field.name)!r}"
        for field in fields(instance)
        if field.default is MISSING or getattr(instance, field.name) != field.default
    )
    return f"decode.{type(instance).__name__}({', '.join(given)})"

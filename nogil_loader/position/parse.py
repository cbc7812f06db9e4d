"""Reading plain JSON into checked values; a state that is none says what is wrong with it."""

from __future__ import annotations

from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


class StateMismatch(ValueError):
    """A state that belongs to something else, or is none."""


def whole(value: JSON, name: str) -> int:
    """A whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StateMismatch(f"not a state: {name} is {value!r} instead of a whole number")
    return value


def listed(value: JSON, name: str) -> list[JSON]:
    """A list."""
    if not isinstance(value, list):
        raise StateMismatch(f"not a state: {name} is {value!r} instead of a list")
    return value


def mapped(value: JSON, name: str) -> dict[str, JSON]:
    """An object with names."""
    if not isinstance(value, dict):
        raise StateMismatch(f"not a state: {name} is {value!r} instead of an object")
    return value


def wholes(value: JSON, name: str) -> tuple[int, ...]:
    """A list of whole numbers."""
    return tuple([whole(item, name) for item in listed(value, name)])

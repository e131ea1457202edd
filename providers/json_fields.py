"""Reading JSON that may have any shape: the value if it is of the kind, else an empty one.

For output of programs that change from version to version, where a field of another kind is
as good as none, and nothing may raise.
"""

from math import isfinite
from typing import Any, cast


def object_of(value: object) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """`value` if it is a list, else an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def text_of(value: object) -> str:
    """`value` if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def number_of(value: object) -> float | None:
    """`value` if it is a number that one can count with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def count_of(value: object) -> int | None:
    """`value` if it is a whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value

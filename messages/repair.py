"""Text that no encoding has: lone surrogates, replaced by U+FFFD. Pure.

Text of providers is repaired where it comes in; a function of the host can still return
some. What is only shown or logged is repaired on the way out, so that one bad character
stops nothing (spec/lessons.md 40).
"""

from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def repaired(value: T) -> T:
    """The struct with every lone surrogate in its texts replaced."""
    return msgspec.convert(_repaired(msgspec.to_builtins(value)), type(value))


def _repaired(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            fields = cast("dict[Any, Any]", value)
            return {_repaired(key): _repaired(field) for key, field in fields.items()}
        case list() | tuple():
            return [_repaired(one) for one in cast("list[Any]", value)]
        case _:
            return value

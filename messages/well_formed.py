"""Text and argument text that every store and every provider takes.

A lone UTF-16 surrogate is no text: SQLite, PostgreSQL and the providers refuse it, and one
that got into a conversation breaks every later request (spec/lessons.md E 40). Arguments that
are no JSON object do the same (E 8).
"""

import json
from typing import Any, NoReturn, cast

import msgspec


def well_formed(text: str) -> str:
    """`text` with halves of one character joined and lone halves replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_tree(value: Any) -> Any:
    """Plain data with every text in it made sound, keys too."""
    match value:
        case str():
            return well_formed(value)
        case dict():
            tree = cast(dict[str, Any], value)
            return {well_formed(key): well_formed_tree(inner) for key, inner in tree.items()}
        case list():
            return [well_formed_tree(inner) for inner in cast(list[Any], value)]
        case _:
            return value


def well_formed_arguments(text: str) -> str | None:
    """The argument text of a call as it may be sent: the text of one JSON object.

    None when it is none, which is what a stream that was cut leaves. No text at all means no
    arguments.
    """
    text = well_formed(text)
    if not text.strip():
        return "{}"
    try:
        return text if isinstance(msgspec.json.decode(text), dict) else None
    except (msgspec.DecodeError, RecursionError):
        return _without_lone_escapes(text)


def well_formed_object(text: str | bytes) -> dict[str, Any] | None:
    """A JSON object that only an escape of half a character (`\\ud83d`) makes unreadable,
    without it; None if that is not all."""
    try:
        value: object = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return well_formed_tree(value) if isinstance(value, dict) else None


def _without_lone_escapes(text: str) -> str | None:
    value = well_formed_object(text)
    return None if value is None else msgspec.json.encode(value).decode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

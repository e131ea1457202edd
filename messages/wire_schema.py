"""The JSON Schema of the websocket protocol, made from the types of its frames.

`docs/websocket.schema.json` is `schema_text()`; a test holds the file against it, and
`make schema` writes it anew. Pure.
"""

import json
from inspect import cleandoc
from typing import Any, cast

import msgspec

from midstream.messages.wire import AnyClientFrame, AnyServerFrame

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def wire_schema() -> dict[str, Any]:
    """The schema: `client` and `server` are the frames of either side."""
    (client, server), components = msgspec.json.schema_components(
        (AnyClientFrame, AnyServerFrame), ref_template="#/$defs/{name}"
    )
    return {
        "$schema": DIALECT,
        "title": "midstream.v1",
        "description": "The frames of the midstream websocket, version 1.",
        "anyOf": [{"$ref": "#/$defs/client"}, {"$ref": "#/$defs/server"}],
        "$defs": {"client": client, "server": server, **components},
    }


def schema_text() -> str:
    """The schema as the text of its file, the same in every version of Python: since 3.13
    docstrings come without their indentation."""
    return json.dumps(_dedented(wire_schema()), indent=2, ensure_ascii=False) + "\n"


def _dedented(value: Any) -> Any:
    if isinstance(value, dict):
        entries = cast(dict[str, Any], value)
        return {
            key: cleandoc(entry)
            if key == "description" and isinstance(entry, str)
            else _dedented(entry)
            for key, entry in entries.items()
        }
    if isinstance(value, list):
        return [_dedented(entry) for entry in cast(list[Any], value)]
    return value

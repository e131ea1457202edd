"""The JSON Schema of the websocket protocol, made from the types of its frames.

`docs/websocket.schema.json` is `schema_text()`; a test holds the file against it, and
`make schema` writes it anew. Pure.
"""

import json
from typing import Any

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
    """The schema as the text of its file."""
    return json.dumps(wire_schema(), indent=2, ensure_ascii=False) + "\n"


"""The kinds of tool calls that the Responses API knows, told as calls of the host. Pure.

- `function_call`: as it is.
- `custom_tool_call`: its free-form input becomes the argument object `{"input": "..."}`.
- The calls that OpenAI defines and the host runs, `local_shell_call`, `apply_patch_call` and a
  `shell_call` outside OpenAI's containers: named after their type, their `action` or
  `operation` the argument object. It comes whole, when the call is finished.

What else an item holds travels in the call's `extra`, and `openai_responses_request.py` makes
the item of both again.
"""

from typing import Any

import msgspec

from midstream.providers.openai_responses_wire import TREES, Item

HOST_CALLS = {
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
}
"""Item types that the host answers: the name of the tool, the field that is its argument."""
_CALL_FIELDS = frozenset(("id", "status", "call_id", "name", "arguments", "input"))


def called_tool(item: Item, raw: bytes) -> str | None:
    """The name of the tool that an item calls; None for an item that calls none of the host's."""
    if item.type in ("function_call", "custom_tool_call"):
        return item.name or ""
    if item.type not in HOST_CALLS:
        return None
    environment: Any = TREES.decode(raw).get("environment")
    if isinstance(environment, dict) and "container_id" in environment:
        return None  # OpenAI runs it, and its output is an item of the same answer
    return HOST_CALLS[item.type][0]


def input_piece(text: str, *, first: bool) -> str:
    """A piece of free-form input, as a piece of the JSON object that stands for it."""
    return ('{"input":"' if first else "") + _json(text)[1:-1]


def whole_call(item: Item, raw: bytes) -> tuple[str | None, str | None]:
    """The argument text of a finished call, and what else of it must come back."""
    tree = TREES.decode(raw)
    if item.type == "function_call":
        arguments = item.arguments if isinstance(item.arguments, str) else None
        extra = {k: v for k, v in tree.items() if k not in _CALL_FIELDS and k != "type"}
    elif item.type == "custom_tool_call":
        arguments = _json({"input": item.input or ""})
        extra = {k: v for k, v in tree.items() if k not in _CALL_FIELDS}
    else:
        field = HOST_CALLS.get(item.type, ("", "action"))[1]
        arguments = _json(tree.get(field) or {})
        extra = {k: v for k, v in tree.items() if k not in ("call_id", field)}
    return arguments, _json(extra) if extra else None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()

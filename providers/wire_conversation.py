"""What the three request formats have in common: items made ready, call ids, user's text.

Every request is rendered from a conversation that `settle_history` has healed, so that what a
provider gets is valid whatever the items were (architecture.md invariant 6).
"""

import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ModelRequest,
    ReminderItem,
    SystemItem,
    ToolResultItem,
    UserItem,
)
from midstream.messages.settle import settle_history
from midstream.messages.well_formed import well_formed

_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_FOREIGN_ID_LIMIT_CHARS = 40


def ready_items(request: ModelRequest, format: str) -> Sequence[AnyItem]:
    """The items of a request, valid for `format`, with each reminder that belongs into a
    tool's result in front of that result's content."""
    items: list[AnyItem] = list(settle_history(request.items, format))
    answers: dict[str, int] = {}
    kept: list[AnyItem] = []
    for item in items:
        if isinstance(item, AssistantItem):
            answers = {}
        elif isinstance(item, ToolResultItem):
            answers[item.call_id] = len(kept)
        elif isinstance(item, ReminderItem) and item.call_id in answers:
            place = answers[item.call_id]
            result = cast(ToolResultItem, kept[place])
            content = f"{item.text}\n\n{result.content}" if result.content else item.text
            kept[place] = msgspec.structs.replace(result, content=content)
            continue
        kept.append(item)
    return kept


def system_text(request: ModelRequest) -> str | None:
    """The system prompt, if there is one that says anything."""
    text = well_formed(request.system or "")
    return text if text.strip() else None


def said_text(item: AnyItem) -> str:
    """The text of an item that the user's side says."""
    return item.text if isinstance(item, UserItem | SystemItem | ReminderItem) else ""


class CallIds:
    """The ids of one request's calls, as the provider is given them.

    A provider gets its own ids back. Those of another are brought into the form that all
    accept: letters, digits, `_` and `-`, at most 40 (the narrowest limit, that of Chat
    Completions). An id whose call still waits for its result gets a suffix. `strict` is for
    Anthropic, which accepts that form alone, and no id twice in a conversation: gateways that
    speak like it invent other ones, or begin anew with `call_0` in each answer.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self._used: set[str] = set()
        self._waiting: dict[str, list[str]] = {}

    def of_call(self, call_id: str, *, own: bool) -> str:
        wire_id = call_id
        if not own or not call_id or (self._strict and _FOREIGN.search(call_id)):
            wire_id = _FOREIGN.sub("_", call_id)[:_FOREIGN_ID_LIMIT_CHARS] or "call"
        waiting = any(wire_id in ids for ids in self._waiting.values())
        if self._strict or waiting or not own:
            wire_id = self._unused(wire_id)
        self._used.add(wire_id)
        self._waiting.setdefault(call_id, []).append(wire_id)
        return wire_id

    def of_result(self, call_id: str) -> str:
        """The id that the earliest call with this id, and without a result, was given."""
        waiting = self._waiting.get(call_id)
        return waiting.pop(0) if waiting else call_id

    def _unused(self, wire_id: str) -> str:
        candidate, n = wire_id, 1
        while candidate in self._used:
            n += 1
            suffix = f"_{n}"
            candidate = wire_id[: _FOREIGN_ID_LIMIT_CHARS - len(suffix)] + suffix
        return candidate


def json_object(document: str | None) -> dict[str, Any]:
    """The object that `document` is the JSON of; empty where there is none."""
    value: object = msgspec.json.decode(document) if document else {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def raw_json(document: str) -> msgspec.Raw:
    """JSON text as a value that is written into a body as it is."""
    return msgspec.Raw(document.encode())

"""Reading decoded request bodies of the three wire formats without knowing which it is.

The pure walkers over bodies (`directive_wire.py`, `continuation.py`, `follow_up.py`) share
what is said here: where the messages are, whose they are, and which of their parts are
text that a person wrote. Nothing here changes a body.

Anthropic Messages and OpenAI Chat keep their messages under `messages`, OpenAI Responses
under `input`, where an entry is a message of the user unless it says otherwise
(spec/stop_message.md 2.1).
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from midstream.messages.directive_items import Speaker

JsonObject = dict[str, Any]

_ASIDE_ROLES = ("system", "developer")


def as_object(value: object) -> JsonObject | None:
    """`value` if it is a JSON object."""
    return cast(JsonObject, value) if isinstance(value, dict) else None


def as_array(value: object) -> list[Any] | None:
    """`value` if it is a JSON array."""
    return cast(list[Any], value) if isinstance(value, list) else None


def messages_key(body: Mapping[str, Any]) -> str | None:
    """Under which key the conversation is: `messages`, else `input`, else None."""
    if as_array(body.get("messages")):
        return "messages"
    if isinstance(body.get("input"), str | list):
        return "input"
    return "messages" if as_array(body.get("messages")) is not None else None


def speaker_of(entry: object, key: str) -> Speaker:
    """Whose message an entry under `key` is.

    An Anthropic message of role `user` that holds nothing but tool results is a tool's.
    """
    if key == "input" and isinstance(entry, str):
        return Speaker.USER
    message = as_object(entry)
    if message is None:
        return Speaker.MODEL_OR_TOOL
    if key == "input" and message.get("type", "message") != "message":
        return Speaker.MODEL_OR_TOOL
    role = message.get("role", "user" if key == "input" else None)
    if role in _ASIDE_ROLES:
        return Speaker.ASIDE
    if role != "user" or _only_tool_results(message.get("content")):
        return Speaker.MODEL_OR_TOOL
    return Speaker.USER


def text_key(part: object) -> str | None:
    """The key of a part that holds a person's text (`text` or `content`), if one does.

    What a tool returned is not a person's text, although Anthropic sends it as the user's.
    """
    fields = as_object(part)
    if fields is None or fields.get("type") == "tool_result":
        return None
    return next((key for key in ("text", "content") if isinstance(fields.get(key), str)), None)


def texts_of(content: object) -> list[str]:
    """The texts of a message's content, of a system prompt or of `instructions`."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in as_array(content) or ():
        if isinstance(part, str):
            texts.append(part)
        elif (key := text_key(part)) is not None:
            texts.append(cast(JsonObject, part)[key])
    return texts


def newest_user_texts(body: Mapping[str, Any]) -> list[str]:
    """The texts of the newest message of the user; none without such a message."""
    key = messages_key(body)
    if key is None:
        return []
    conversation: object = body[key]
    if isinstance(conversation, str):
        return [conversation]
    for entry in reversed(cast(Sequence[object], conversation)):
        if speaker_of(entry, key) is Speaker.USER:
            message = as_object(entry)
            return texts_of(entry if message is None else message.get("content"))
    return []


def instruction_texts(body: Mapping[str, Any]) -> list[str]:
    """The texts of `system` and `instructions`, and of system messages that open a body."""
    texts = [*texts_of(body.get("system")), *texts_of(body.get("instructions"))]
    key = messages_key(body)
    for entry in as_array(body[key]) or () if key else ():
        if speaker_of(entry, key or "") is not Speaker.ASIDE:
            break
        texts.extend(texts_of((as_object(entry) or {}).get("content")))
    return texts


def _only_tool_results(content: object) -> bool:
    parts = as_array(content)
    if not parts:
        return False
    return all((as_object(part) or {}).get("type") == "tool_result" for part in parts)

"""Directives in a raw request body, for the HTTP gateway.

`read_body` takes a decoded body of Anthropic Messages, OpenAI Chat or OpenAI Responses and
gives back a body without markers. Only what held a marker is rebuilt: every other object
of the result is the very object of the input, keys keep their order, and a body without
markers comes back as itself (`markers == 0`), so that its bytes can be passed on unchanged.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from midstream.messages.directive import TextReading, read_text
from midstream.messages.directive_items import (
    FoundDirectives,
    Speaker,
    Turn,
    TurnPlan,
    count_markers,
    plan_turns,
)
from midstream.messages.wire_body import (
    JsonObject,
    as_array,
    as_object,
    messages_key,
    speaker_of,
    text_key,
)


class BodyReading(msgspec.Struct, frozen=True):
    """A request body without its markers.

    `emptied_turn` says that nothing is left of the newest message of the user, which is
    the last: it stands in `body` with no content until `with_turn_text` gives it one.
    """

    body: JsonObject
    found: FoundDirectives | None = None
    markers: int = 0
    warnings: tuple[str, ...] = ()
    emptied_turn: bool = False

    @property
    def changed(self) -> bool:
        """Whether `body` differs from what was read."""
        return self.markers > 0

    def with_turn_text(self, text: str) -> JsonObject:
        """The body with `text` as what the user says in the turn that was emptied."""
        key = messages_key(self.body)
        if not self.emptied_turn or key is None:
            return self.body
        conversation: Any = self.body[key]
        if isinstance(conversation, str):
            return {**self.body, key: text}
        at = max(
            index
            for index, entry in enumerate(conversation)
            if speaker_of(entry, key) is Speaker.USER
        )
        entries = [*conversation]
        entries[at] = _with_text(entries[at], text, key)
        return {**self.body, key: entries}


def read_body(
    body: JsonObject,
    *,
    internal: bool = False,
    keep_in_code: bool = False,
    armed_text: str | None = None,
) -> BodyReading:
    """Clean a request body and read the directives of its newest user message.

    Both `messages` and `input` are cleaned when a body has both; directives are read from
    the one that holds the conversation. The arguments are those of `take_directives`.
    """
    reading = BodyReading(body)
    conversation_key = messages_key(body)
    for key in ("messages", "input"):
        entries = _entries(body.get(key))
        if entries is None:
            continue
        turns = [_turn_of(entry, key, keep_in_code) for entry in entries]
        markers = count_markers(turns)
        plan = plan_turns(turns, internal=internal, armed_text=armed_text)
        if key == conversation_key:
            reading = msgspec.structs.replace(
                reading,
                found=plan.found,
                warnings=plan.warnings,
                emptied_turn=plan.emptied_turn is not None,
            )
        if not markers:
            continue
        cleaned = _cleaned(entries, turns, plan, key)
        value = cleaned if isinstance(body[key], list) else "".join(cleaned)
        reading = msgspec.structs.replace(
            reading, body={**reading.body, key: value}, markers=reading.markers + markers
        )
    return reading


def _entries(conversation: object) -> list[Any] | None:
    """The entries of a conversation; a Responses `input` may be one text."""
    return [conversation] if isinstance(conversation, str) else as_array(conversation)


def _turn_of(entry: object, key: str, keep_in_code: bool) -> Turn:
    speaker = speaker_of(entry, key)
    message = as_object(entry)
    if speaker is not Speaker.USER:
        return Turn(speaker)
    content = entry if message is None else message.get("content")
    if isinstance(content, str):
        reading = read_text(content, keep_in_code=keep_in_code)
        return Turn(speaker, (reading,), (content,), reading.emptied)
    raw_texts = [_part_text(part) for part in as_array(content) or ()]
    readings = tuple(read_text(text or "", keep_in_code=keep_in_code) for text in raw_texts)
    emptied = any(reading.emptied for reading in readings) and not any(
        _survives(text, reading) for text, reading in zip(raw_texts, readings, strict=True)
    )
    return Turn(speaker, readings, tuple(text or "" for text in raw_texts), emptied)


def _part_text(part: object) -> str | None:
    """The text of a part; None for parts that hold none, such as images."""
    if isinstance(part, str):
        return part
    key = text_key(part)
    return None if key is None else (as_object(part) or {})[key]


def _survives(text: str | None, reading: TextReading) -> bool:
    return text is None or bool(reading.text.strip())


def _cleaned(entries: Sequence[Any], turns: Sequence[Turn], plan: TurnPlan, key: str) -> list[Any]:
    kept: list[Any] = []
    for index, (entry, turn) in enumerate(zip(entries, turns, strict=True)):
        if index in plan.stand_ins:
            kept.append(_with_text(entry, plan.stand_ins[index], key))
        elif index not in plan.dropped:
            kept.append(_without_markers(entry, turn))
    return kept


def _without_markers(entry: Any, turn: Turn) -> Any:
    if not any(reading.markers for reading in turn.readings):
        return entry
    message = as_object(entry)
    if message is None:
        return turn.readings[0].text
    parts = as_array(message["content"])
    if parts is None:
        return {**message, "content": turn.readings[0].text}
    content = [
        _part_without_markers(part, reading)
        for part, reading in zip(parts, turn.readings, strict=True)
        if not reading.emptied
    ]
    return {**message, "content": content}


def _part_without_markers(part: Any, reading: TextReading) -> Any:
    if not reading.markers:
        return part
    key = text_key(part)
    return reading.text if key is None else {**part, key: reading.text}


def _with_text(entry: Any, text: str, key: str) -> Any:
    """An entry that says `text`, in the shape that its content had."""
    message = as_object(entry)
    if message is None:
        return text
    if isinstance(message["content"], str):
        return {**message, "content": text}
    part_type = "input_text" if key == "input" else "text"
    return {**message, "content": [{"type": part_type, "text": text}]}

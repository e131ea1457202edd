"""Directives in a conversation: which message arms, what is sent on, what becomes of a
message of which nothing is left.

`take_directives` does it for our own items; `plan_turns` is the part that raw request
bodies (`directive_wire.py`) share. Every message of the user is cleaned, not only the
newest (spec/stop_message.md 4); other roles are left as they are. Pure, and lossless for
whatever holds no marker.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from midstream.messages.conversation import AnyItem, ReminderItem, SystemItem, UserItem
from midstream.messages.directive import (
    AnyDirective,
    SetFile,
    SetMode,
    SetText,
    TextReading,
    effective,
    read_text,
)

NO_TEXT = "(no text)"
"""Stands for a first message of which nothing is left and that cannot be left out: a
conversation must not begin with the model's words."""


class Speaker(StrEnum):
    """Whose message it is, as far as directives are concerned."""

    USER = "user"
    ASIDE = "aside"
    """System, developer, reminder: says nothing about who spoke last."""
    MODEL_OR_TOOL = "model_or_tool"


class Turn(msgspec.Struct, frozen=True):
    """One message: whose it is, its texts as read, and whether nothing is left of it."""

    speaker: Speaker
    readings: tuple[TextReading, ...] = ()
    raw_texts: tuple[str, ...] = ()
    emptied: bool = False


class FoundDirectives(msgspec.Struct, frozen=True):
    """The directives of the newest user message, and what decides whether they are new.

    `fingerprint` is the ordinal of that message among the user's messages and a hash of
    its raw texts that hold markers; `is_tail` says that neither the model nor a tool has
    spoken since (decision 1).
    """

    directives: tuple[AnyDirective, ...]
    fingerprint: str
    is_tail: bool


class TurnPlan(msgspec.Struct, frozen=True):
    """What becomes of the messages: `dropped` are left out, `stand_ins` get this text.

    `emptied_turn` is the index of the last message if nothing is left of it: the text that
    was set becomes this turn's text, or there is nothing to ask the model (decision 3).
    """

    found: FoundDirectives | None
    dropped: frozenset[int]
    stand_ins: dict[int, str]
    emptied_turn: int | None
    warnings: tuple[str, ...]


class ItemsReading(msgspec.Struct, frozen=True):
    """A conversation without its markers.

    `emptied_turn` is the position in `items` at which this turn's text is missing.
    `markers` counts what was taken out of the whole conversation.
    """

    items: tuple[AnyItem, ...]
    found: FoundDirectives | None = None
    emptied_turn: int | None = None
    markers: int = 0
    warnings: tuple[str, ...] = ()

    def with_turn_text(self, text: str) -> tuple[AnyItem, ...]:
        """The items with `text` as what the user says in the turn that was emptied."""
        if self.emptied_turn is None:
            return self.items
        at = self.emptied_turn
        return (*self.items[:at], UserItem(text), *self.items[at:])


def take_directives(
    items: Sequence[AnyItem],
    *,
    internal: bool = False,
    keep_in_code: bool = False,
    armed_text: str | None = None,
) -> ItemsReading:
    """Clean a conversation and read the directives of its newest user message.

    `internal` marks a request that midstream sends by itself: cleaned, never executed.
    `armed_text` is the text that the session continues with so far; see `plan_turns`.
    """
    turns = [_turn_of(item, keep_in_code) for item in items]
    plan = plan_turns(turns, internal=internal, armed_text=armed_text)
    kept: list[AnyItem] = []
    emptied_turn: int | None = None
    for index, (item, turn) in enumerate(zip(items, turns, strict=True)):
        if index == plan.emptied_turn:
            emptied_turn = len(kept)
        elif index in plan.stand_ins:
            kept.append(UserItem(plan.stand_ins[index]))
        elif index not in plan.dropped:
            kept.append(_cleaned(item, turn))
    return ItemsReading(tuple(kept), plan.found, emptied_turn, count_markers(turns), plan.warnings)


def plan_turns(
    turns: Sequence[Turn], *, internal: bool = False, armed_text: str | None = None
) -> TurnPlan:
    """Decide what becomes of the messages of a conversation that was read.

    A message of which nothing is left is dropped, unless it is this turn's. Then it says
    the text that was set: while it is the last, through `emptied_turn`; once the model has
    spoken or called tools after it, as a stand-in, or the model would lose its order in the
    middle of the work. A text that came from a file is `armed_text` by then.
    """
    newest = max(_of_speaker(turns, Speaker.USER), default=None)
    last_other = max(_of_speaker(turns, Speaker.MODEL_OR_TOOL), default=-1)
    is_tail = newest is not None and newest > last_other
    dropped = {index for index, turn in enumerate(turns) if turn.emptied}
    emptied_turn: int | None = None
    stand_ins: dict[int, str] = {}
    if newest in dropped:
        text = _text_set(turns[newest], armed_text)
        if is_tail:
            emptied_turn = newest
        elif text:
            stand_ins[newest] = text
        dropped -= {emptied_turn, *stand_ins}
    opening = _opening_lost(turns, dropped)
    if opening is not None:
        stand_ins[opening] = _text_set(turns[opening], None) or NO_TEXT
        dropped.remove(opening)
    executed = None if internal or newest is None else newest
    return TurnPlan(
        None if executed is None else _found(turns, executed, is_tail=is_tail),
        frozenset(dropped),
        stand_ins,
        emptied_turn,
        () if executed is None else _warnings(turns[executed]),
    )


def count_markers(turns: Sequence[Turn]) -> int:
    """How many markers the messages held."""
    return sum(reading.markers for turn in turns for reading in turn.readings)


def _turn_of(item: AnyItem, keep_in_code: bool) -> Turn:
    if isinstance(item, SystemItem | ReminderItem):
        return Turn(Speaker.ASIDE)
    if not isinstance(item, UserItem):
        return Turn(Speaker.MODEL_OR_TOOL)
    reading = read_text(item.text, keep_in_code=keep_in_code)
    return Turn(Speaker.USER, (reading,), (item.text,), reading.emptied)


def _cleaned(item: AnyItem, turn: Turn) -> AnyItem:
    if isinstance(item, UserItem) and turn.readings and turn.readings[0].markers:
        return UserItem(turn.readings[0].text)
    return item


def _of_speaker(turns: Sequence[Turn], speaker: Speaker) -> list[int]:
    return [index for index, turn in enumerate(turns) if turn.speaker is speaker]


def _found(turns: Sequence[Turn], newest: int, *, is_tail: bool) -> FoundDirectives | None:
    turn = turns[newest]
    directives = effective([one for reading in turn.readings for one in reading.directives])
    if not directives:
        return None
    ordinal = len(_of_speaker(turns[:newest], Speaker.USER))
    marked = [
        raw for raw, reading in zip(turn.raw_texts, turn.readings, strict=True) if reading.markers
    ]
    digest = hashlib.sha256("\n".join(marked).encode("utf-8", "surrogatepass")).hexdigest()
    return FoundDirectives(directives, f"{ordinal}:{digest[:16]}", is_tail)


def _warnings(turn: Turn) -> tuple[str, ...]:
    return tuple(warning for reading in turn.readings for warning in reading.warnings)


def _opening_lost(turns: Sequence[Turn], dropped: set[int]) -> int | None:
    """The first dropped message, if the model or a tool would open the conversation."""
    for index, turn in enumerate(turns):
        if index in dropped or turn.speaker is Speaker.ASIDE:
            continue
        lost = turn.speaker is Speaker.MODEL_OR_TOOL and min(dropped, default=index) < index
        return min(dropped) if lost else None
    return None


def _text_set(turn: Turn, armed_text: str | None) -> str | None:
    """The text that a message set; `armed_text` if it named a file or only changed the mode."""
    directives = effective([one for reading in turn.readings for one in reading.directives])
    texts = [one.text for one in directives if isinstance(one, SetText)]
    if texts:
        return texts[-1]
    return armed_text if any(isinstance(one, SetFile | SetMode) for one in directives) else None

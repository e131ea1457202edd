"""Making a transcript valid: what is left of a cut answer, and a conversation that is loaded.

One pure function for each, used by abort, crash recovery and resume alike (architecture.md
invariant 6): whatever was cut, wherever, what they return is accepted by the
provider. No call without its result, no result without its call, no half-written arguments,
no empty message, no unsigned thinking. Both are idempotent.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from midstream.messages.accumulate import PartialTranscript, StreamState
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ReminderItem,
    SystemItem,
    TextPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.messages.sendable_parts import sendable_parts
from midstream.messages.stream import StopReason
from midstream.messages.well_formed import well_formed

NOT_STARTED = "[interrupted] This call was not run."
OUTCOME_UNKNOWN = (
    "[interrupted] This call was started, but its result is not known. "
    "It may have had effects: look before you repeat it."
)
INTERRUPTED_KIND = "interrupted"
"""The `kind` of the system item that tells the model what became of its last answer."""


class Ending(StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"
    """With its terminal event. Calls without an outcome are left open, to be run now."""
    STEERED = "steered"
    """Cut for a rule. The reminder that follows tells the model, so no marker does."""
    INTERRUPTED = "interrupted"
    """Cut by the user."""
    FAILED = "failed"
    """Broken by the provider, the network, or the death of the host."""


class ToolState(StrEnum):
    """What is known of a call when its attempt ends (spec/lessons.md E 6)."""

    NOT_STARTED = "not_started"
    UNKNOWN = "unknown"
    """Started; it may have had effects."""
    RETURNED = "returned"


class ToolOutcome(msgspec.Struct, frozen=True):
    """What became of one call. A tool that returned counts as returned, whatever happened to
    its attempt afterwards (E 7)."""

    state: ToolState
    content: str = ""
    is_error: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What became of an attempt. `tools` has an entry, by call id, for every call that was
    started; the others were not."""

    ending: Ending
    tools: Mapping[str, ToolOutcome] = msgspec.field(default_factory=dict[str, ToolOutcome])


def settle(partial: PartialTranscript, outcome: Outcome, format: str) -> tuple[AnyItem, ...]:
    """The items that a conversation keeps of one stream: the message as far as it is valid for
    `format`, the results of its calls, and a marker where the model should know of the cut.

    A stream that has no terminal event is never taken for finished, whatever `outcome` says.
    """
    ending = outcome.ending
    if ending is Ending.FINISHED and partial.state is not StreamState.FINISHED:
        ending = Ending.FAILED
    # Prose may stop anywhere; half a call or half a thought must not be sent.
    whole = [b.part for b in partial.blocks if b.complete or isinstance(b.part, TextPart)]
    parts = sendable_parts(
        whole,
        partial.provider,
        format,
        paused=ending is Ending.FINISHED and partial.stop_reason is StopReason.PAUSE_TURN,
    )
    items: list[AnyItem] = []
    if parts:
        changed = list(parts) != [block.part for block in partial.blocks]
        settled = ending is not Ending.FINISHED or changed
        items.append(AssistantItem(parts, partial.provider, partial.model, settled))
    for call in parts:
        if isinstance(call, ToolCallPart):
            known = outcome.tools.get(call.call_id)
            if known is not None or ending is not Ending.FINISHED:
                items.append(_result(call, known or ToolOutcome(ToolState.NOT_STARTED)))
    kept = {part.call_id for part in parts if isinstance(part, ToolCallPart)}
    dropped = [call.name for call in partial.calls if call.call_id not in kept and call.name]
    if marker := _marker(ending, dropped):
        items.append(SystemItem(marker, INTERRUPTED_KIND))
    return tuple(items)


def settle_history(items: Iterable[AnyItem], format: str) -> tuple[AnyItem, ...]:
    """A conversation, healed so that the provider of `format` takes it.

    Results stand behind their calls; a call that was never answered gets a result that says
    so; results without a call, broken calls and empty messages go. Everything else stays as it
    is and where it is.
    """
    turns: list[_Turn] = [_Turn()]
    waiting: dict[str, _Turn] = {}
    for item in _sendable_messages(tuple(items), format):
        if isinstance(item, AssistantItem):
            turns.append(_Turn(item))
            waiting |= {call.call_id: turns[-1] for call in turns[-1].calls}
        elif not isinstance(item, ToolResultItem):
            turns[-1].others.append(item)
        elif item.call_id in waiting:
            waiting.pop(item.call_id).results[item.call_id] = item
    return tuple(item for turn in turns for item in turn.items())


def open_calls(items: Iterable[AnyItem]) -> tuple[ToolCallPart, ...]:
    """The calls of the last message that have no result yet: what is to be run now."""
    calls: dict[str, ToolCallPart] = {}
    for item in items:
        if isinstance(item, AssistantItem):
            calls = {part.call_id: part for part in item.parts if isinstance(part, ToolCallPart)}
        elif isinstance(item, ToolResultItem):
            calls.pop(item.call_id, None)
    return tuple(calls.values())


def _result(call: ToolCallPart, outcome: ToolOutcome) -> ToolResultItem:
    match outcome.state:
        case ToolState.RETURNED:
            content = well_formed(outcome.content)
            return ToolResultItem(call.call_id, call.name, content, outcome.is_error)
        case ToolState.UNKNOWN:
            return ToolResultItem(call.call_id, call.name, OUTCOME_UNKNOWN, is_error=True)
        case ToolState.NOT_STARTED:
            return ToolResultItem(call.call_id, call.name, NOT_STARTED, is_error=True)


def _marker(ending: Ending, dropped: list[str]) -> str | None:
    """What the model is told of the cut, or None (spec/lessons.md E 4, 5)."""
    said: list[str] = []
    if ending is Ending.INTERRUPTED:
        said.append("The user interrupted this answer.")
    elif ending is Ending.FAILED:
        said.append("This answer broke off.")
    elif ending is Ending.STEERED:
        return None
    said += [f"A call of {name} was not complete and was not run." for name in dropped]
    return f"[interrupted] {' '.join(said)}" if said else None


class _Turn:
    """One message, the results of its calls, and what was said after it."""

    def __init__(self, message: AssistantItem | None = None) -> None:
        self.message = message
        self.results: dict[str, ToolResultItem] = {}
        self.others: list[AnyItem] = []

    @property
    def calls(self) -> list[ToolCallPart]:
        parts = self.message.parts if self.message else ()
        return [part for part in parts if isinstance(part, ToolCallPart)]

    def items(self) -> list[AnyItem]:
        unknown = ToolOutcome(ToolState.UNKNOWN)
        results = [self.results.get(call.call_id) or _result(call, unknown) for call in self.calls]
        return [*([self.message] if self.message else []), *results, *self.others]


def _sendable_messages(items: Sequence[AnyItem], format: str) -> list[AnyItem]:
    """The items with sound texts and sendable parts, without those that say nothing."""
    kept: list[AnyItem] = []
    for position, item in enumerate(items):
        if isinstance(item, AssistantItem):
            sound = _sound_message(items, position, item, format)
        else:
            sound = _sound_item(item)
        if sound is not None:
            kept.append(sound)
    return kept


def _sound_message(
    items: Sequence[AnyItem], position: int, item: AssistantItem, format: str
) -> AssistantItem | None:
    before = _run(reversed(items[:position]), item.provider)
    after = _run(items[position + 1 :], item.provider)
    run = [part for message in (*before, *after) for part in message.parts]
    parts = sendable_parts(
        item.parts,
        item.provider,
        format,
        run=run,
        # A message that pauses is the last thing said, and waits for no call of the host;
        # one that was cut has been settled.
        paused=position + len(after) == len(items) - 1
        and not any(isinstance(part, ToolCallPart) for part in (*item.parts, *run)),
    )
    if not parts:
        return None
    same = parts == item.parts
    return item if same else msgspec.structs.replace(item, parts=parts, settled=True)


def _run(items: Iterable[AnyItem], provider: str) -> list[AssistantItem]:
    """The messages of one provider that stand together at the beginning of `items`."""
    run: list[AssistantItem] = []
    for item in items:
        if not isinstance(item, AssistantItem) or item.provider != provider:
            break
        run.append(item)
    return run


def _sound_item(
    item: UserItem | SystemItem | ReminderItem | ToolResultItem,
) -> AnyItem | None:
    if isinstance(item, ToolResultItem):
        content = well_formed(item.content)
        return item if content == item.content else msgspec.structs.replace(item, content=content)
    text = well_formed(item.text)
    if not text.strip():
        return None
    return item if text == item.text else msgspec.structs.replace(item, text=text)

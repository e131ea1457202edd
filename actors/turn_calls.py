"""What the calls of one message came to, as items and events. Pure; used by `Turn` alone.

The message itself is on record before its calls are run, so what follows it is written
here: a result for every call, in their order, each with the reminders that belong to it,
and the marker that `settle` has for the model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from midstream.messages.accumulate import PartialBlock, PartialTranscript
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ReminderItem,
    ToolCallPart,
    ToolResultItem,
)
from midstream.messages.events import ToolResult
from midstream.messages.settle import Ending, Outcome, ToolOutcome, ToolState, settle
from midstream.messages.verdict import Verdict

RemindOf = Callable[[Sequence[Verdict], str], ReminderItem]
"""Writes the reminder that goes into the result of the call with this id."""


def refusal(rules: Iterable[str]) -> ToolOutcome:
    """The result of a call that breaks these rules, so that it was not run."""
    names = ", ".join(dict.fromkeys(rules))
    content = f"[refused] This call was not run, because it breaks a rule of the user: {names}."
    return ToolOutcome(ToolState.RETURNED, content, is_error=True)


def message_alone(items: Iterable[AnyItem]) -> tuple[AnyItem, ...]:
    """The message without what has to stand behind the results of its calls."""
    return tuple(item for item in items if isinstance(item, AssistantItem))


def answers(
    partial: PartialTranscript, outcomes: Mapping[str, ToolOutcome], ending: Ending, format: str
) -> tuple[AnyItem, ...]:
    """What follows the message: the results of its calls, and a marker if there is one.

    With any `ending` but `FINISHED`, a call without an outcome counts as not started.
    """
    settled = settle(partial, Outcome(ending, outcomes), format)
    return tuple(item for item in settled if not isinstance(item, AssistantItem))


def with_reminders(
    items: Sequence[AnyItem], folded: Iterable[Verdict], remind_of: RemindOf
) -> tuple[AnyItem, ...]:
    """The items with the reminder of each call behind the results (spec/ttsr.md 4.6).

    A reminder whose call has no result among them is not delivered, and so not recorded.
    """
    results = [item for item in items if isinstance(item, ToolResultItem)]
    about: dict[str, list[Verdict]] = {result.call_id: [] for result in results}
    for verdict in folded:
        if verdict.call_id in about:
            about[verdict.call_id].append(verdict)
    reminders = [remind_of(verdicts, call_id) for call_id, verdicts in about.items() if verdicts]
    others = [item for item in items if not isinstance(item, ToolResultItem)]
    return (*results, *reminders, *others)


def unanswered(
    calls: Iterable[ToolCallPart], outcomes: Mapping[str, ToolOutcome]
) -> tuple[ToolCallPart, ...]:
    """The calls that have no outcome yet."""
    return tuple(call for call in calls if call.call_id not in outcomes)


def shown(
    calls: Iterable[ToolCallPart], outcomes: Mapping[str, ToolOutcome], format: str
) -> tuple[ToolResult, ...]:
    """What the outside sees of the results of these calls: what the model will."""
    blocks = tuple(PartialBlock(index, call, True) for index, call in enumerate(calls))
    results = answers(PartialTranscript(blocks=blocks), outcomes, Ending.STEERED, format)
    return tuple(
        ToolResult(item.call_id, item.name, item.content, item.is_error)
        for item in results
        if isinstance(item, ToolResultItem)
    )

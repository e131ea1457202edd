"""Which text continues a session that works off a task list kept with `bd`.

Pure parts of spec/stop_message.md 11: what to ask `bd`, what its answers say about the
work, which stage follows, and the text of that stage. Whoever runs the commands hands the
answers in. A list that cannot be read is `unknown` and never `idle`, because idle ends the
work (#93).
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    TextPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.messages.directive import StageMode
from midstream.messages.errors import MidstreamError
from midstream.messages.marker import scan
from midstream.messages.stop_message import BdWorkState, Stage, StopMessageState
from midstream.messages.wire_body import as_array, as_object

TIMEOUT_S = 1.0
CACHE_S = 5.0
"""How long `bd` may take, and how long its answer holds (decision 16)."""

_BD = ("bd", "--no-db", "--json")
QUERIES = (
    (*_BD, "list", "--status", "in_progress"),
    (*_BD, "ready"),
    (*_BD, "list", "--status", "open"),
    (*_BD, "list", "--status", "blocked"),
)
"""Asked in this order until one has tasks; so the first to answer also ranks highest."""

TEMPLATE_PATHS = {
    Stage.STATUS_PROBE: "stopMessage/stage-status-check.md",
    Stage.ACTIVE_CONTINUE: "stopMessage/stage-active-continue.md",
    Stage.LOOP_SELF_CHECK: "stopMessage/stage-loop-self-check.md",
}
"""Where the templates are looked for in the user directory unless configured."""
PLACEHOLDER = "{{BASE_STOP_MESSAGE}}"
SUMMARY_TEXT = (
    "No task of this project is left. Sum up what was done, how it was verified and what "
    "stays open. Do not begin anything new."
)
_HEURISTIC_ITEMS = 40


class StageTemplatesMissing(MidstreamError):
    """Mode `on` was set, but not every stage has a template."""


class BdMode(StrEnum):
    """Whom to believe: `bd` and else the conversation, only `bd`, only the conversation."""

    AUTO = "auto"
    RUNTIME = "runtime"
    HEURISTIC = "heuristic"


class BdTask(msgspec.Struct, frozen=True):
    """One task of the list; a smaller `priority` is more urgent."""

    id: str
    title: str = ""
    priority: int | None = None


Answer = tuple[BdTask, ...] | None
"""What one query returned; None when it failed or was not readable."""


def parse_tasks(output: str) -> Answer:
    """Read the JSON that `bd` prints; None if it is not a list of tasks."""
    try:
        listed = as_array(json.loads(output))
    except (ValueError, RecursionError):
        return None
    if listed is None:
        return None
    tasks = [as_object(one) for one in listed]
    return tuple(
        BdTask(task["id"], str(task.get("title", "")), _priority(task.get("priority")))
        for task in tasks
        if task and isinstance(task.get("id"), str)
    )


def next_query(answers: Sequence[Answer]) -> tuple[str, ...] | None:
    """The command to run after these answers; None when they settle the matter."""
    if len(answers) == len(QUERIES) or any(answer or answer is None for answer in answers):
        return None
    return QUERIES[len(answers)]


def choose_task(answers: Sequence[Answer]) -> BdTask | None:
    """The task to go on with: in progress before ready before open, then priority and id."""
    tasks = next((answer for answer in answers if answer), ())
    return min(tasks, key=_urgency, default=None)


def work_state(
    answers: Sequence[Answer], mode: BdMode, items: Sequence[AnyItem], *, has_project: bool = True
) -> BdWorkState:
    """What the answers say; without usable ones what the conversation says, if it may."""
    if mode is not BdMode.HEURISTIC and has_project:
        if any(answers):
            return BdWorkState.ACTIVE
        if len(answers) == len(QUERIES) and None not in answers:
            return BdWorkState.IDLE
    if mode is BdMode.RUNTIME or not has_project:
        return BdWorkState.UNKNOWN
    return _heuristic(items)


def observation_hash(items: Sequence[AnyItem]) -> str:
    """What the model has done since the last words of the user, as a hash.

    Texts without their spacing, tools with names and arguments, and what they returned.
    """
    since = max((at for at, item in enumerate(items) if isinstance(item, UserItem)), default=-1)
    seen = [piece for item in items[since + 1 :] for piece in _observed(item)]
    return hashlib.sha256("\0".join(seen).encode("utf-8", "surrogatepass")).hexdigest()


class StageChoice(msgspec.Struct, frozen=True):
    """What to send and the state that remembers it. No text: there is nothing more to do."""

    text: str | None
    state: StopMessageState


def require_templates(mode: StageMode | None, templates: Mapping[Stage, str]) -> None:
    """Raise `StageTemplatesMissing` when a mode is set that cannot work (#84).

    To be called when the mode is set, so that the failure comes at once.
    """
    missing = [path for stage, path in TEMPLATE_PATHS.items() if not templates.get(stage)]
    if mode is StageMode.ON and missing:
        raise StageTemplatesMissing(
            f"stopMessage mode `on` needs {', '.join(missing)} in the user directory; "
            "write them, or set the mode `auto`"
        )


def choose_stage(
    state: StopMessageState,
    templates: Mapping[Stage, str],
    work: BdWorkState,
    observation: str,
) -> StageChoice:
    """Choose the stage that follows, and its text.

    Without a mode, or in mode `auto` without templates, it is the plain text. Raises
    `StageTemplatesMissing` in mode `on` without templates.
    """
    require_templates(state.stage_mode, templates)
    has_all = all(templates.get(stage) for stage in TEMPLATE_PATHS)
    if state.stage_mode not in (StageMode.ON, StageMode.AUTO) or not has_all:
        return StageChoice(state.text, state)
    is_stable = observation == state.observation_hash
    stable_count = state.observation_stable_count + 1 if is_stable else 0
    stage = _next_stage(state.stage, work, stable_count)
    after = msgspec.structs.replace(
        state,
        stage=stage or state.stage,
        observation_hash=observation,
        observation_stable_count=stable_count,
        bd_work_state=work,
    )
    if stage is None:
        return StageChoice(None, after)
    template = SUMMARY_TEXT if stage is Stage.SUMMARY else templates[stage]
    return StageChoice(fill_template(template, state.text or ""), after)


def fill_template(template: str, base_text: str) -> str:
    """A stage's text: the template with the user's own text in its place, without markers."""
    return scan(template.replace(PLACEHOLDER, base_text)).text.strip()


def _next_stage(last: Stage | None, work: BdWorkState, stable_count: int) -> Stage | None:
    if work is BdWorkState.IDLE:
        return None if last is Stage.SUMMARY else Stage.SUMMARY
    if stable_count > 1:
        return None
    if stable_count == 1:
        return Stage.LOOP_SELF_CHECK
    return Stage.STATUS_PROBE if last is None else Stage.ACTIVE_CONTINUE


def _heuristic(items: Sequence[AnyItem]) -> BdWorkState:
    """A recent tool message that speaks of `bd` and of a task in progress means work."""
    for item in items[-_HEURISTIC_ITEMS:]:
        for message in _tool_messages(item):
            if "in_progress" in message and re.search(r"\bbd\b", message):
                return BdWorkState.ACTIVE
    return BdWorkState.UNKNOWN


def _observed(item: AnyItem) -> list[str]:
    parts = item.parts if isinstance(item, AssistantItem) else ()
    texts = [" ".join(part.text.split()) for part in parts if isinstance(part, TextPart)]
    return [*texts, *_tool_messages(item)]


def _tool_messages(item: AnyItem) -> list[str]:
    """Each call as its name and arguments, each result as its tool's name and content."""
    if isinstance(item, ToolResultItem):
        return [f"{item.name}\n{item.content}"]
    parts = item.parts if isinstance(item, AssistantItem) else ()
    return [f"{part.name}\n{part.arguments}" for part in parts if isinstance(part, ToolCallPart)]


def _urgency(task: BdTask) -> tuple[bool, int, str]:
    return (task.priority is None, task.priority or 0, task.id)


def _priority(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

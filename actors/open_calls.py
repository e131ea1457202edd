"""The tool calls of one session that are not over: a pure state machine of `ToolRunner`.

Messages in, effects out; no I/O and no clock. It knows which call waits, runs, is with the
host or was told to stop, and answers with a report exactly once for each.

    queued ──▶ running ──▶ reported          asked (the host answers) ──▶ reported
                  │
                  └──▶ overdue or stopped ──▶ reported
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from midstream.messages.conversation import ToolCallPart
from midstream.messages.reply import Reply
from midstream.messages.settle import ToolOutcome, ToolState
from midstream.messages.well_formed import well_formed
from midstream.messages.work import CancelTools, FindTools, RunTools, ToolAnswer

_MAY_HAVE_HAD_EFFECTS = "It may have had effects: look before you repeat it."


class ToolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What all tool calls of a session are bounded by."""

    parallel: int = 8
    """Functions of the host that run at the same time."""
    deadline_s: float = 120.0
    """For a tool that has no deadline of its own, from the start of its run."""
    host_deadline_s: float = 600.0
    """For a call that the host answers; somebody may have to be asked."""
    grace_s: float = 5.0
    """For a tool to stop once it was told to."""
    result_limit_chars: int = 50_000
    """Of a longer result the middle is left out. About 12,000 tokens of English."""


class CallEnded(msgspec.Struct, frozen=True, tag=True):
    """The task of a call is over. `outcome` is None if it was cut and came to nothing."""

    attempt: int
    call_id: str
    outcome: ToolOutcome | None


class Stage(Enum):
    """Where a call is."""

    QUEUED = "queued"
    RUNNING = "running"
    ASKED = "asked"
    """The host is to answer it."""
    OVERDUE = "overdue"
    """Its deadline has passed, and it was told to stop."""
    STOPPED = "stopped"
    """The session wants no more of it, and it was told to stop."""


class TimeUp(msgspec.Struct, frozen=True, tag=True):
    """The time is up that a call had for this stage."""

    attempt: int
    call_id: str
    stage: Stage


Key = tuple[int, str]
"""Attempt and call id."""


class Begin(msgspec.Struct, frozen=True):
    """Run the call."""

    key: Key
    part: ToolCallPart


class Cut(msgspec.Struct, frozen=True):
    """Cancel the task of the call."""

    key: Key


class SetTimer(msgspec.Struct, frozen=True):
    """Say `TimeUp` for this stage; the call's earlier timer is forgotten."""

    key: Key
    stage: Stage
    after_s: float


class Report(msgspec.Struct, frozen=True):
    """Tell the session. Nothing is left to do for the call."""

    key: Key
    outcome: ToolOutcome


class Acknowledge(msgspec.Struct, frozen=True):
    """Tell the host whether its answer was taken."""

    reply: Reply[bool]
    taken: bool


Effect = Begin | Cut | SetTimer | Report | Acknowledge
Message = RunTools | CancelTools | FindTools | ToolAnswer | CallEnded | TimeUp


class _Call(msgspec.Struct, frozen=True):
    part: ToolCallPart
    stage: Stage


class OpenCalls:
    """The calls that have not been reported on: messages in, effects out. Pure.

    `deadlines_s` has the tools that are run here, `host_tools` are those that are not.
    """

    def __init__(
        self, deadlines_s: Mapping[str, float], host_tools: frozenset[str], limits: ToolLimits
    ) -> None:
        self._deadlines_s = deadlines_s
        self._host_tools = host_tools
        self._limits = limits
        self._calls: dict[Key, _Call] = {}
        self._reported: set[Key] = set()
        """Those of the newest attempt."""

    def receive(self, messages: Sequence[Message]) -> list[Effect]:
        """What to do about the messages that have come. What comes late has no effect."""
        stopped = {message.attempt for message in messages if isinstance(message, CancelTools)}
        return [effect for message in messages for effect in self._receive(message, stopped)]

    def _receive(self, message: Message, stopped: set[int]) -> list[Effect]:
        match message:
            case RunTools(attempt, parts) if attempt in stopped:
                not_started = ToolOutcome(ToolState.NOT_STARTED)
                return [self._report((attempt, part.call_id), not_started) for part in parts]
            case RunTools(attempt, parts):
                self._reported = {key for key in self._reported if key[0] == attempt}
                taken = [e for part in parts for e in self._take((attempt, part.call_id), part)]
                return taken + self._fill()
            case CancelTools(attempt):
                keys = [key for key in self._calls if key[0] == attempt]
                return [effect for key in keys for effect in self._stop(key)]
            case FindTools(attempt, call_ids):
                lost = [key for call_id in call_ids if self._is_lost(key := (attempt, call_id))]
                return [self._report(key, ToolOutcome(ToolState.UNKNOWN)) for key in lost]
            case CallEnded(attempt, call_id, outcome):
                return self._on_ended((attempt, call_id), outcome)
            case TimeUp(attempt, call_id, stage):
                return self._on_time_up((attempt, call_id), stage)
            case ToolAnswer():
                return self._on_answer(message)

    def _take(self, key: Key, part: ToolCallPart) -> list[Effect]:
        if part.name in self._host_tools:
            self._calls[key] = _Call(part, Stage.ASKED)
            return [SetTimer(key, Stage.ASKED, self._limits.host_deadline_s)]
        self._calls[key] = _Call(part, Stage.QUEUED)
        if part.name in self._deadlines_s:
            return []
        return self._close(key, error_outcome(self._unknown_tool(part.name)))

    def _fill(self) -> list[Effect]:
        """Begin as many calls as may run, the longest waiting first."""
        idle = (Stage.QUEUED, Stage.ASKED)
        free = self._limits.parallel - sum(c.stage not in idle for c in self._calls.values())
        effects: list[Effect] = []
        for key, call in list(self._calls.items()):
            if free > 0 and call.stage is Stage.QUEUED:
                free -= 1
                self._calls[key] = replace(call, stage=Stage.RUNNING)
                effects.append(Begin(key, call.part))
                effects.append(SetTimer(key, Stage.RUNNING, self._deadlines_s[call.part.name]))
        return effects

    def _stop(self, key: Key) -> list[Effect]:
        match self._calls[key].stage:
            case Stage.QUEUED:
                return self._close(key, ToolOutcome(ToolState.NOT_STARTED))
            case Stage.ASKED:  # the host may be at it
                return self._close(key, ToolOutcome(ToolState.UNKNOWN))
            case Stage.RUNNING:
                return self._cut(key, Stage.STOPPED)
            case Stage.OVERDUE | Stage.STOPPED:
                return []

    def _cut(self, key: Key, stage: Stage) -> list[Effect]:
        self._calls[key] = replace(self._calls[key], stage=stage)
        return [Cut(key), SetTimer(key, stage, self._limits.grace_s)]

    def _on_ended(self, key: Key, outcome: ToolOutcome | None) -> list[Effect]:
        call = self._calls.get(key)
        if call is None:
            return []
        if outcome is None and call.stage is Stage.OVERDUE:
            outcome = error_outcome(
                f"[timeout] {call.part.name} was stopped because it took longer than "
                f"{self._deadlines_s[call.part.name]:g} seconds. {_MAY_HAVE_HAD_EFFECTS}"
            )
        return self._close(key, outcome or ToolOutcome(ToolState.UNKNOWN)) + self._fill()

    def _on_time_up(self, key: Key, stage: Stage) -> list[Effect]:
        call = self._calls.get(key)
        if call is None or call.stage is not stage:
            return []
        if stage is Stage.RUNNING:
            return self._cut(key, Stage.OVERDUE)
        outcome = ToolOutcome(ToolState.UNKNOWN)
        if stage is Stage.ASKED:
            outcome = error_outcome(
                f"[timeout] {call.part.name} was not answered within "
                f"{self._limits.host_deadline_s:g} seconds. {_MAY_HAVE_HAD_EFFECTS}"
            )
        return self._close(key, outcome) + self._fill()

    def _on_answer(self, answer: ToolAnswer) -> list[Effect]:
        for key, call in self._calls.items():
            meant = key[1] == answer.call_id and answer.attempt in (None, key[0])
            if meant and call.stage is Stage.ASKED:
                outcome = ToolOutcome(ToolState.RETURNED, answer.content, answer.is_error)
                return [*self._close(key, outcome), Acknowledge(answer.reply, True)]
        return [Acknowledge(answer.reply, False)]

    def _close(self, key: Key, outcome: ToolOutcome) -> list[Effect]:
        del self._calls[key]
        content = bounded(well_formed(outcome.content), self._limits.result_limit_chars)
        return [self._report(key, msgspec.structs.replace(outcome, content=content))]

    def _report(self, key: Key, outcome: ToolOutcome) -> Report:
        self._reported.add(key)
        return Report(key, outcome)

    def _is_lost(self, key: Key) -> bool:
        """Whether whoever was given the call has gone with it."""
        return key not in self._calls and key not in self._reported

    def _unknown_tool(self, name: str) -> str:
        known = sorted({*self._deadlines_s, *self._host_tools})
        listed = f"The tools are: {', '.join(known)}." if known else "There are no tools here."
        return f"[error] There is no tool of the name {name}. {listed}"


def bounded(content: str, limit_chars: int) -> str:
    """`content`, or its beginning and end with a note in between of what is left out."""
    if len(content) <= limit_chars:
        return content
    end = limit_chars // 2
    start = limit_chars - end
    left_out = len(content) - limit_chars
    note = f"\n[... {left_out} of {len(content)} characters left out ...]\n"
    return content[:start] + note + content[len(content) - end :]


def error_outcome(content: str) -> ToolOutcome:
    """A call was answered: that it failed, and why."""
    return ToolOutcome(ToolState.RETURNED, content, is_error=True)

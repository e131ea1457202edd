"""ToolRunner: sees the tool calls of one session through.

The Session hands it the calls of a message once that is on record, and hears of each call
exactly once how it ended. Functions of the host run here side by side, each in its own
cancel scope with a deadline; calls that the host answers itself wait here for the answer.
What a tool raises is a result and crashes nobody. What it has returned counts, whatever was
cancelled meanwhile; one that was cut without a result is reported as unknown, since it may
have had effects, and so is one that does not stop within `grace_s` of being told
(spec/lessons.md E 6, 7). The session goes on without such a task; but the actor, and so a
runtime that closes, can only end when it does.
"""

import logging
import traceback
from collections.abc import Mapping
from typing import Protocol

import trio

from midstream.actors.actor import Actor
from midstream.actors.address import Address
from midstream.actors.crash import sole_error
from midstream.actors.errors import MailboxFull
from midstream.actors.open_calls import (
    Acknowledge,
    Begin,
    CallEnded,
    Cut,
    Effect,
    Key,
    Message,
    OpenCalls,
    Report,
    SetTimer,
    TimeUp,
    ToolLimits,
    error_outcome,
)
from midstream.messages.conversation import ToolCallPart
from midstream.messages.errors import MidstreamError
from midstream.messages.settle import ToolOutcome, ToolState
from midstream.messages.work import CancelTools, FindTools, RunTools, ToolAnswer, ToolSettled

_log = logging.getLogger("midstream.tools")


class ArgumentsRefused(MidstreamError):
    """The model's arguments do not fit the tool. Told to the model as it is."""


class RunnableTool(Protocol):
    """A tool whose calls are run here. `deadline_s` is None for the runner's own."""

    @property
    def deadline_s(self) -> float | None: ...

    async def run(self, arguments: str) -> str:
        """Run one call; `arguments` is the text of a JSON object. Returns text for the model.

        Raises `ArgumentsRefused`; whatever else it raises is told to the model by its type
        and message. When cancelled it should end soon.
        """
        ...


ToolRunnerMessage = RunTools | CancelTools | FindTools | ToolAnswer
"""What others send it."""


class ToolRunner(Actor[Message]):
    """See the module. `tools` by name; a restarted runner has no open calls."""

    def __init__(
        self,
        tools: Mapping[str, RunnableTool],
        host_tools: frozenset[str],
        limits: ToolLimits,
        session: Address[ToolSettled],
    ) -> None:
        self._tools = tools
        deadlines_s = {
            name: limits.deadline_s if tool.deadline_s is None else tool.deadline_s
            for name, tool in tools.items()
        }
        self._open = OpenCalls(deadlines_s, host_tools, limits)
        self._session = session
        self._tasks: dict[Key, trio.CancelScope] = {}
        self._timers: dict[Key, trio.CancelScope] = {}

    async def handle_batch(self, messages: tuple[Message, ...]) -> None:
        for effect in self._open.receive(messages):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Begin(key, part):
                self._tasks[key] = trio.CancelScope()
                self.spawn(self._run_call, key, part, self._tasks[key])
            case Cut(key):
                if task := self._tasks.get(key):  # it may have ended just now
                    task.cancel()
            case SetTimer(key, stage, after_s):
                self._drop_timer(key)
                self._timers[key] = trio.CancelScope()
                self.spawn(self._count_down, TimeUp(*key, stage), after_s, self._timers[key])
            case Report(key, outcome):
                self._drop_timer(key)
                self._tell_session(ToolSettled(*key, outcome))
            case Acknowledge(reply, taken):
                reply.send(taken)

    def _drop_timer(self, key: Key) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def _tell_session(self, settled: ToolSettled) -> None:
        # Never waits: the Session may be waiting for room in this actor's own mailbox.
        try:
            self._session.tell_nowait(settled)
        except MailboxFull:
            self.spawn(self._session.tell, settled)

    async def _run_call(self, key: Key, part: ToolCallPart, scope: trio.CancelScope) -> None:
        outcome: ToolOutcome | None = ToolOutcome(ToolState.NOT_STARTED)
        try:
            with scope:
                await trio.lowlevel.checkpoint_if_cancelled()
                outcome = None
                content = await self._tools[part.name].run(part.arguments)
                outcome = ToolOutcome(ToolState.RETURNED, content)
        except ArgumentsRefused as error:
            outcome = error_outcome(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what a tool raises is a result
            _log.info("the tool %s failed", part.name, exc_info=error)
            outcome = error_outcome(_described(error))
        del self._tasks[key]
        await self.address.tell(CallEnded(*key, outcome))

    async def _count_down(self, up: TimeUp, after_s: float, timer: trio.CancelScope) -> None:
        with timer:
            await trio.sleep(after_s)
            await self.address.tell(up)


def _described(error: BaseException) -> str:
    """Type and message of what a tool raised, without a traceback."""
    return "".join(traceback.format_exception_only(sole_error(error))).strip()

"""Launcher: from what a caller wants to a session that runs on by itself.

`launch` returns a handle at once. What follows is one task for each session: may it begin
(BackoffMachine), start its tree, and let its conversation go when it is over. A session that
may not begin leaves no record and no event (architecture.md invariant 8).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from midstream.actors.announcer import Announce
from midstream.actors.backoff_machine import AskDispatch, Hear
from midstream.actors.clock import Clock, Ids
from midstream.actors.errors import AskFailed
from midstream.actors.live_sessions import ActorSession
from midstream.actors.open_calls import ToolLimits
from midstream.actors.outcome import Outcome
from midstream.actors.submit import Prompt
from midstream.actors.turn_settings import TurnSettings
from midstream.assembly import RuleBook, prompt_budget, repeat_policy
from midstream.books import Books
from midstream.config import Config
from midstream.handle import Admission, SessionHandle
from midstream.messages.conversation import ToolSpec
from midstream.messages.dispatch import NeutralEnd, Refused
from midstream.messages.enrolment import Enrolment, record_unless_kept, refused_record
from midstream.messages.errors import MidstreamError, RuntimeStopped
from midstream.messages.events import SessionEnded
from midstream.messages.record import Fence, SessionRecord, SessionStatus
from midstream.messages.timestamps import format_timestamp
from midstream.providers.provider import Provider
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.tool_shapes import ToolTable
from midstream.stores.conversations import ConversationBusy
from midstream.submitting import Submitting, continuation_settings
from midstream.supervisors.dynamic_supervisor import DynamicSupervisor
from midstream.supervisors.errors import ChildStartFailed, RestartIntensityExceeded
from midstream.supervisors.session_tree import Watching, session_tree
from midstream.supervisors.supervisor import Supervisor
from midstream.tools import Tool, offer

_log = logging.getLogger("midstream.sessions")

ADMISSION_DEADLINE_S = 30.0


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants; None is what the configuration says."""

    provider: Provider
    prompt: Prompt = msgspec.field(default_factory=Prompt)
    conversation_id: str | None = None
    model: str | None = None
    system: str | None = None
    tools: Sequence[Tool | ToolSpec] = ()
    runs_tools: bool = True
    cwd: Path
    environment: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    metadata: Mapping[str, Any] | None = None
    streaming: bool = True
    auto_continue: bool = True


class _Launch(msgspec.Struct, frozen=True):
    """A session on its way."""

    live: ActorSession
    handle: SessionHandle
    tree: Supervisor
    admission: Admission
    conversation_id: str | None
    """As the caller gave it."""


class Launcher:
    """See the module. `owner` names this host in the fences of its sessions."""

    def __init__(
        self,
        *,
        config: Config,
        rulebook: RuleBook,
        owner: str,
        clock: Clock,
        ids: Ids,
        books: Books,
        submitting: Submitting,
        supervisor: DynamicSupervisor,
        nursery: trio.Nursery,
    ) -> None:
        self.owner = owner
        self._config = config
        self._clock = clock
        self._ids = ids
        self._books = books
        self._submitting = submitting
        self._book = books.session_book()
        self._supervisor = supervisor
        self._nursery = nursery
        self._live: dict[str, SessionHandle] = {}
        self._rule_set = rulebook.rule_set
        self._tool_table = ToolTable(config.rules.tools)
        self._policy = repeat_policy(config.rules)
        self._tool_limits = ToolLimits(
            parallel=config.tools.parallel,
            deadline_s=config.tools.deadline_s,
            host_deadline_s=config.tools.host_deadline_s,
            result_limit_chars=config.tools.result_limit_chars,
        )

    def launch(self, request: SessionRequest) -> SessionHandle:
        """Begin a session. Raises `ConversationBusy`, `ToolError` and `RuntimeStopped`."""
        session_id = self._ids.session_id()
        enrolment = Enrolment(
            session_id=session_id,
            conversation_id=request.conversation_id or session_id.replace("ses-", "con-", 1),
            provider=request.provider.name,
            started_at=format_timestamp(self._clock.now_ms()),
            fence=Fence(owner=self.owner, token=1),
            metadata=dict(request.metadata) if request.metadata is not None else None,
        )
        self.require_idle(enrolment.conversation_id)
        launch = self._prepare(enrolment, request)
        if refused := self._book.refusal(session_id):
            self._refuse(launch, refused)
        else:
            self._begin(launch)
        return launch.handle

    def resume(self, record: SessionRecord, request: SessionRequest) -> SessionHandle:
        """Go on with a session that this host has taken over."""
        assert record.fence is not None
        assert record.conversation_id is not None
        enrolment = Enrolment(
            session_id=record.id,
            conversation_id=record.conversation_id,
            provider=record.provider,
            started_at=record.started_at,
            fence=record.fence,
            metadata=record.metadata,
            recoveries=record.recoveries,
        )
        launch = self._prepare(enrolment, request)
        self._begin(launch, admitted=True)
        return launch.handle

    def watch_by(self, rulebook: RuleBook) -> None:
        """Sessions that begin from now on are watched by these rules."""
        self._rule_set = rulebook.rule_set

    def handle(self, session_id: str) -> SessionHandle | None:
        """The session, if it runs here."""
        live = self._books.live.get(session_id)
        handle = self._live.get(live.enrolment.conversation_id) if live is not None else None
        return handle if handle is not None and handle.session_id == session_id else None

    def require_idle(self, conversation_id: str) -> None:
        """Raises `ConversationBusy` if a session here answers the conversation."""
        live = self._live.get(conversation_id)
        if live is not None and live.ended is None:
            raise ConversationBusy(
                f"conversation {conversation_id} is being answered by session "
                f"{live.session_id}; wait for it, or interrupt it"
            )

    def _prepare(self, enrolment: Enrolment, request: SessionRequest) -> _Launch:
        offered = offer(request.tools, self._tool_limits)
        outcome, admission = Outcome(), Admission()
        settings = self._settings(enrolment.conversation_id, request)
        tree = session_tree(
            enrolment,
            settings=msgspec.structs.replace(settings, host_tools=offered.host),
            prompt=request.prompt,
            submit=self._submitting.submit,
            provider=request.provider,
            watching=Watching(
                rule_set=self._rule_set,
                policy=self._policy,
                new_arguments=self._argument_maker(str(request.cwd)),
                passage_cap_chars=self._config.rules.passage_cap_chars,
            ),
            tools=offered,
            work=self._submitting.work.address,
            ledger=self._books.ledger.address,
            announcer=self._books.announcer.address,
            gate=self._books.gate(enrolment),
            outcome=outcome,
        )
        handle = SessionHandle(
            enrolment.session_id,
            enrolment.conversation_id,
            tree.session,
            tree.tools,
            tree.stop,
            partial(self._books.replay, enrolment.session_id),
            outcome,
            admission,
            streaming=request.streaming,
        )
        live = ActorSession(enrolment, tree.session, outcome, tree.stop)
        return _Launch(live, handle, tree.supervisor, admission, request.conversation_id)

    def _begin(self, launch: _Launch, *, admitted: bool = False) -> None:
        try:
            self._nursery.start_soon(self._see_through, launch, admitted)
        except RuntimeError as error:  # trio's word for a nursery that has ended
            raise RuntimeStopped("the runtime has stopped") from error
        self._live[launch.handle.conversation_id] = launch.handle
        self._books.live.enter(launch.live)

    async def _see_through(self, launch: _Launch, admitted: bool) -> None:
        handle = launch.handle
        try:
            refused = None if admitted else await self._ask_admission(handle.session_id)
            if refused is not None:
                self._refuse(launch, refused)
                return
            await self._books.announcer.address.tell(Announce(handle.session_id, ()))
            launch.admission.decide(admitted=True)
            await self._start(launch)
            await launch.live.outcome.wait()
            await self._release(handle.session_id)
        finally:
            self._books.live.remove(handle.session_id)
            if self._live.get(handle.conversation_id) is handle:
                del self._live[handle.conversation_id]

    async def _ask_admission(self, session_id: str) -> Refused | None:
        try:
            return await self._books.machine.address.ask_through_crashes(
                lambda reply: AskDispatch(session_id, reply), ADMISSION_DEADLINE_S
            )
        except AskFailed as error:
            # What this host knows said yes; a machine that is being restarted is no pause.
            _log.warning(
                "%s begins without the word of the back-off machine: %s", session_id, error
            )
            return None

    async def _start(self, launch: _Launch) -> None:
        try:
            await self._supervisor.start_child(launch.tree)
        except MidstreamError as error:
            ended = SessionEnded(SessionStatus.FAILED, "", reason=str(_root_of(error)))
            session_id = launch.handle.session_id
            await self._books.announcer.address.tell(Announce(session_id, (ended,)))
            launch.live.outcome.settle(ended, record_unless_kept(launch.live.enrolment, ended))

    async def _release(self, session_id: str) -> None:
        """Whoever was admitted reports an end; one that left no record has only this one."""
        if not self._config.rate_limit.backoff.probe_limit:
            return
        event = NeutralEnd(session_id=session_id)
        try:
            await self._books.machine.address.ask_through_crashes(
                lambda reply: Hear(event, reply), ADMISSION_DEADLINE_S
            )
        except AskFailed as error:
            _log.warning("%s may still count as a probe: %s", session_id, error)

    def _refuse(self, launch: _Launch, refused: Refused) -> None:
        """No record, no event; only the caller hears of it (spec/animator.md 5.1)."""
        record = refused_record(launch.live.enrolment, refused.reason, launch.conversation_id)
        ended = SessionEnded(SessionStatus.RATE_LIMITED, "", reason=refused.reason)
        launch.admission.decide(admitted=False)
        launch.live.outcome.settle(ended, record)

    def _settings(self, conversation_id: str, request: SessionRequest) -> TurnSettings:
        config, tools = self._config, request.tools
        return TurnSettings(
            conversation_id=conversation_id,
            provider=request.provider.name,
            format=request.provider.format,
            model=request.model or config.provider.model,
            system=request.system if request.system is not None else config.system,
            tools=tuple(tool.spec if isinstance(tool, Tool) else tool for tool in tools),
            runs_tools=request.runs_tools and bool(tools),
            max_tokens=config.provider.max_tokens,
            options=config.provider.options,
            cwd=str(request.cwd),
            home=str(Path.home()),
            environment=dict(request.environment),
            context_mode=config.rules.context_mode,
            on_exhausted=config.rules.on_exhausted,
            retry_delay_s=config.rules.retry_delay_ms / 1000,
            budget=prompt_budget(config.budget),
            continuation=continuation_settings(
                config.stop_message, is_allowed=request.auto_continue
            ),
        )

    def _argument_maker(self, cwd: str) -> Callable[[str, str], ToolArguments]:
        """What makes the readers of one session's calls; its rules stay those of its start."""
        raw, table = self._rule_set.wants_raw_arguments, self._tool_table
        return lambda call_id, tool: ToolArguments(call_id, tool, table, cwd, raw=raw)


def _root_of(error: BaseException) -> BaseException:
    """What a start failed with, below what supervisors say about it."""
    while isinstance(error, ChildStartFailed | RestartIntensityExceeded) and error.__cause__:
        error = error.__cause__
    return error

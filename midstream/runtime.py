"""The runtime: the tree of docs/architecture.md in life, and the way to start sessions.

`open_runtime` is the front door for trio programs. Everything that a runtime starts lives
inside its block: when the block ends, sessions are ended on record, in order, and nothing
is left behind.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random  # noqa: TID251 - the type, and the one instance of a runtime
from typing import Any

import trio

from midstream.actors.announcer import Announce, CountRules, FollowNotices
from midstream.actors.clock import Clock, Ids, SystemClock
from midstream.actors.file_ref_resolver import CompletePath
from midstream.actors.ledger_messages import Apply, NotRecoverable, TakeOver
from midstream.actors.live_sessions import LiveSession
from midstream.actors.notice_board import NoticeStream
from midstream.actors.prompt_hooks import Hook, Interceptor
from midstream.actors.replay import Replay
from midstream.actors.state_document import StateDocument
from midstream.actors.stop_message_book import StopMessageBook
from midstream.actors.submit import Prompt
from midstream.actors.subscription import DEFAULT_LIMIT_BYTES
from midstream.assembly import (
    RuleBook,
    build_dead_letters,
    build_provider,
    build_store,
    first_loss,
    load_rules,
)
from midstream.books import RUNTIME_INTENSITY, Books
from midstream.config import Config
from midstream.config_file import find_config, load_config
from midstream.handle import Chunk, EventStream, SessionHandle, chunks_of
from midstream.launcher import Launcher, SessionRequest
from midstream.messages.conversation import AnyItem, SystemItem, ToolSpec
from midstream.messages.dispatch import DispatchStatus
from midstream.messages.errors import RuleError
from midstream.messages.events import AnyEvent
from midstream.messages.lifecycle import LifecycleSink
from midstream.messages.record import SessionRecord
from midstream.messages.rule_counters import RuleCounters
from midstream.messages.segments import AnySegment
from midstream.messages.session_cost import SessionCost
from midstream.messages.transition import AnyTransition
from midstream.providers.cancel_handle import CancelsByHandle
from midstream.providers.provider import Provider
from midstream.roles import Identity, Roles, configured_roles
from midstream.rules.rule import Rule
from midstream.stores.store import Store
from midstream.submitting import Submitting
from midstream.supervisors.child_spec import Surroundings
from midstream.supervisors.dynamic_supervisor import DynamicSupervisor
from midstream.supervisors.supervisor import Supervisor, open_supervisor
from midstream.tools import Tool

TAKE_OVER_DEADLINE_S = 30.0
RECORD_DEADLINE_S = 10.0
FOLLOW_DEADLINE_S = 10.0
COMPLETE_DEADLINE_S = 10.0


class Runtime:
    """A running runtime. Made by `open_runtime`.

    `rules` says what is watched for, `always_apply` and `rulebook` what a host should put
    into its system prompt (spec/ttsr.md 1.7). `sessions` is the book of all sessions of the
    store, those of other processes too.
    """

    def __init__(
        self,
        *,
        config: Config,
        cwd: Path,
        clock: Clock,
        ids: Ids,
        provider: Provider,
        rulebook: RuleBook,
        given_rules: Sequence[Rule] | None,
        roles: Roles,
        books: Books,
        submitting: Submitting,
        launcher: Launcher,
        doors: DynamicSupervisor,
    ) -> None:
        self.config = config
        self.rules = rulebook
        self.sessions = books.session_book(
            (provider,) if isinstance(provider, CancelsByHandle) else ()
        )
        self.cwd = cwd
        self.clock = clock
        self.ids = ids
        """Names sessions that a door runs by itself."""
        self._given_rules = given_rules
        self._provider = provider
        self._roles = roles
        self._books = books
        self._submitting = submitting
        self._launcher = launcher
        self.doors = doors
        """Keeps doors alive that others open (`serving.py`); they are stopped before sessions."""

    @property
    def owner(self) -> str:
        """The name of this host in the fences of its sessions; another after each start."""
        return self._launcher.owner

    def animate(
        self,
        prompt: str | Sequence[AnySegment] | Sequence[AnyItem],
        *,
        identity: Identity | None = None,
        conversation_id: str | None = None,
        provider: Provider | None = None,
        model: str | None = None,
        system: str | None = None,
        tools: Sequence[Tool | ToolSpec] = (),
        runs_tools: bool = True,
        cwd: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        streaming: bool = True,
        auto_continue: bool = True,
    ) -> SessionHandle:
        """Hand in a prompt; the session that answers it runs on by itself.

        Returns at once. Without a `conversation_id` a new conversation begins; with one
        the prompt continues it. What is not given is taken from the `identity`, and then
        from the configuration; `environment` is laid over the identity's.

        `prompt` is a flat text, or what a client lets people type, in segments, or items of
        a conversation. Files that it refers to go along with it, directives in it are taken
        out and carried out, and hooks are asked, before anything of it is on record. Without
        `auto_continue` the session ends with the answer to this prompt, whatever the
        stopMessage of the conversation says; right for a prompt that wants a summary.

        Calls of a `Tool` are run by the runtime. For those of a `ToolSpec` the session says
        `ToolWanted` and waits for `SessionHandle.answer`. Without `runs_tools` the session
        ends with the message that holds the calls, and the next prompt brings the results.

        `cwd` is where the session works; a new conversation is told. `metadata` goes into
        the session's record. Without `streaming` the handle has no chunks.

        While the provider's quota is spent nothing begins: the handle that comes back has
        ended as `rate-limited`, and nothing of it is on record (`is_dispatchable`).

        Raises `ConversationBusy` if the conversation has a live session, `ToolError` if two
        tools have the same name, and `RuntimeStopped` if the runtime is over or ending.
        """
        identity = identity or Identity()
        preamble: tuple[AnyItem, ...] = ()
        if cwd is not None and conversation_id is None:
            preamble = (SystemItem(f"The working directory is {cwd}."),)
        return self._launcher.launch(
            SessionRequest(
                provider=provider or self._provider,
                prompt=Prompt.of(prompt, preamble),
                conversation_id=conversation_id,
                model=model or identity.model,
                system=system if system is not None else identity.system,
                tools=tools,
                runs_tools=runs_tools,
                cwd=self.cwd if cwd is None else self.cwd / cwd,
                environment={**identity.environment, **(environment or {})},
                metadata=metadata,
                streaming=streaming,
                auto_continue=auto_continue,
            )
        )

    def summon(
        self,
        prompt: str | Sequence[AnySegment] | Sequence[AnyItem],
        *,
        role: str | None = None,
        conversation_id: str | None = None,
        provider: Provider | None = None,
        tools: Sequence[Tool | ToolSpec] = (),
        runs_tools: bool = True,
        cwd: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        streaming: bool = True,
        auto_continue: bool = True,
    ) -> SessionHandle:
        """`animate` as a role, which is resolved now: its system prompt, model, environment.

        The record's metadata says `trigger` and `role`; the caller's `metadata` is laid over
        that. Raises `ConfigError` if the role cannot be resolved, and what `animate` raises.
        """
        summoned = {"trigger": "summon"} if role is None else {"trigger": "summon", "role": role}
        return self.animate(
            prompt,
            identity=self._roles(role),
            conversation_id=conversation_id,
            provider=provider,
            tools=tools,
            runs_tools=runs_tools,
            cwd=cwd,
            environment=environment,
            metadata={**summoned, **(metadata or {})},
            streaming=streaming,
            auto_continue=auto_continue,
        )

    async def recover(
        self,
        session_id: str,
        *,
        identity: Identity | None = None,
        provider: Provider | None = None,
        tools: Sequence[Tool | ToolSpec] = (),
        runs_tools: bool = True,
        cwd: Path | str | None = None,
    ) -> SessionHandle:
        """Go on with a session whose host was lost, where its record stops.

        It has to be presumed dead. From now on this host owns it, and the lost one, should
        it come back, can write nothing any more. The model is asked again with everything
        that is on record. What the caller gave to the lost session, its tools and its
        identity, has to be given again.

        A session that was recovered five times without new output is dead-lettered instead.
        Raises `NotRecoverable`, `ConversationBusy`, `UnknownSession` and `StoreError`.
        """
        identity = identity or Identity()
        provider = provider or self._provider
        record = await self.sessions.session(session_id)
        if record.provider != provider.name:
            problem = f"{session_id} ran on {record.provider}, not on {provider.name}"
            raise NotRecoverable(f"{problem}; give that provider")
        if record.fence is None or record.conversation_id is None:
            raise NotRecoverable(f"{session_id} ran outside; what it did is not on record here")
        self._launcher.require_idle(record.conversation_id)
        if refused := self.sessions.refusal(session_id):
            raise NotRecoverable(refused.reason)
        taken: SessionRecord = await self._books.ledger.address.ask(
            lambda reply: TakeOver(session_id, self._launcher.owner, reply), TAKE_OVER_DEADLINE_S
        )
        if taken.is_terminal:
            raise NotRecoverable(f"{session_id} is given up: {taken.error}")
        assert taken.fence is not None
        await self._books.continue_events(session_id, taken.fence.token)
        return self._launcher.resume(
            taken,
            SessionRequest(
                provider=provider,
                model=identity.model,
                system=identity.system,
                tools=tools,
                runs_tools=runs_tools,
                cwd=self.cwd if cwd is None else self.cwd / cwd,
                environment=identity.environment,
            ),
        )

    def handle(self, session_id: str) -> SessionHandle | None:
        """The session, if it runs in this runtime."""
        return self._launcher.handle(session_id)

    @property
    def live_sessions(self) -> int:
        """How many sessions run in this runtime."""
        return len(self._books.live)

    async def put_on_record(self, transition: AnyTransition) -> SessionRecord:
        """Record what becomes of a session that a door runs by itself; its record then.

        Raises what the Ledger answers: `StoreError`, `RecordError`, `FenceLost`.
        """
        return await self._books.ledger.address.ask_through_crashes(
            lambda reply: Apply(transition, reply), RECORD_DEADLINE_S
        )

    def enter(self, session: LiveSession) -> None:
        """A door runs this session by itself: beat for it, and tell it to end when somebody
        has cancelled it on record, until it leaves."""
        self._books.live.enter(session)

    def leave(self, session: LiveSession) -> None:
        """The session is over, and on record as that."""
        self._books.live.remove(session.enrolment.session_id)

    async def announce(self, session_id: str, events: tuple[AnyEvent, ...]) -> None:
        """Tell whoever listens what happens in a session that a door runs by itself."""
        if events:
            await self._books.announcer.address.tell(Announce(session_id, events))

    def stop_message_book(self, cwd: Path, *, is_allowed: bool = True) -> StopMessageBook:
        """What is kept of the stopMessages of sessions whose conversations live with their
        clients; `cwd` is where the task list is asked. Without `is_allowed` directives are
        read, and no reply is continued."""
        ledger = self._books.ledger.address
        return self._submitting.stop_message_book(ledger, cwd, is_allowed=is_allowed)

    def state_document(self, id: str) -> StateDocument:
        """A document in the store's state book that a door keeps."""
        return self._books.state_document(id)

    async def cancel(self, session_id: str, reason: str | None = None) -> SessionRecord:
        """End a session as cancelled, whichever process it lives in; its record then.

        See `SessionBook.cancel`. Raises `UnknownSession`.
        """
        return await self.sessions.cancel(session_id, reason)

    async def session_costs(self, session_ids: Iterable[str]) -> dict[str, SessionCost]:
        """What these sessions have cost, by id; ids without a session are left out."""
        return await self.sessions.session_costs(session_ids)

    async def status(self) -> DispatchStatus:
        """The shared pause: whether, since when, until when and why nothing may begin."""
        return await self.sessions.status()

    def is_dispatchable(self) -> bool:
        """Whether a session may begin now, as far as this host knows."""
        return self.sessions.is_dispatchable()

    async def follow(self, session_id: str) -> EventStream[Chunk] | None:
        """What the model has said and says in a session of this runtime, from its beginning;
        None if it is not known here, or ended more than half a minute ago, or before many others.

        Waits until it is decided whether a session that was just handed in is let in.
        """
        handle = self.handle(session_id)
        if handle is not None and not await handle.admitted():
            return None
        replay = self._books.replay(session_id)
        return await chunks_of(self._books.announcer.address, session_id, replay)

    def replay(
        self,
        session_id: str,
        after: int = 0,
        epoch: int | None = None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> Replay:
        """The events of any session of the store behind number `after`, to its end: those
        that this runtime remembers, and those that are on record. For doors."""
        return self._books.replay(session_id, after, epoch, limit_bytes)

    async def reload_rules(self, rules: Iterable[Rule] | None = None) -> RuleBook:
        """Read the rules again, or take these instead; the rules as they are then.

        Prompts that are handed in from now on are watched by them; sessions that run keep
        theirs. What a conversation was reminded of stays, by the names of the rules.

        Raises `RuleError` for a named path that does not exist, and for a file whose rule
        was watched for and cannot be read any more; then everything stays as it was. What
        else is wrong with the files stands in the `problems` of the answer.

        >>> rulebook = await runtime.reload_rules()
        """
        given = self._given_rules if rules is None else tuple(rules)
        rulebook = await load_rules(self.config, self.cwd, given)
        if (loss := first_loss(self.rules, rulebook)) is not None:
            raise RuleError(loss.path, loss.line, loss.what, loss.mend)
        self._given_rules = given
        self._launcher.watch_by(rulebook)
        self.rules = rulebook
        return rulebook

    async def rule_counters(self) -> RuleCounters:
        """What the rules have done in all sessions of this runtime so far, and what that
        has cost."""
        return await self._books.announcer.address.ask_through_crashes(
            CountRules, FOLLOW_DEADLINE_S
        )

    async def complete_path(self, typed: str) -> tuple[str, ...]:
        """What may be meant by `typed`, the beginning of a reference to a file without its
        `@`: at most a hundred paths, directories first and with a `/` at their end."""
        return await self._submitting.resolver.address.ask_through_crashes(
            lambda reply: CompletePath(typed, reply), COMPLETE_DEADLINE_S
        )

    async def stop_message(self, conversation_id: str) -> dict[str, Any] | None:
        """What the conversation is continued with, how often, and what of that is used, in
        the names of the reference; None if nothing is set."""
        return await self._submitting.stop_message(self._books.ledger.address, conversation_id)

    async def notices(self, after: int = 0) -> NoticeStream:
        """What becomes known of the sessions that this runtime writes: begun, ended, not
        recorded; each once, and also what a host that was killed could not tell any more.
        Follows behind number `after`. Raises `GapError`.

        >>> async for notice in await runtime.notices():
        ...     print(notice.sequence, notice.notice)
        """
        return await self._books.announcer.address.ask_through_crashes(
            lambda reply: FollowNotices(after, reply), FOLLOW_DEADLINE_S
        )


@asynccontextmanager
async def open_runtime(
    config: Config | Path | str | None = None,
    *,
    cwd: Path | str | None = None,
    provider: Provider | None = None,
    rules: Iterable[Rule] | None = None,
    store: Store | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
    on_lifecycle: LifecycleSink | None = None,
    roles: Roles | None = None,
    hooks: Sequence[Hook] = (),
    interceptors: Sequence[Interceptor] = (),
) -> AsyncGenerator[Runtime]:
    """Run a runtime for as long as the block lasts.

    `config` is a configuration, or the path of one; by default the `midstream.toml` of
    `cwd` (by default the working directory), or the defaults. `provider`, `rules`, `roles`
    and `store` replace what the configuration names; a store that is given stays open.
    `clock`, `random` and `on_lifecycle` are for hosts and tests that bring their own time,
    chance, and sink of what actors and supervisors do.

    `hooks` look at every prompt before it is accepted and may cancel it; `interceptors`
    may also add to it. They are asked in this order, until one does not simply continue.

    Raises `ConfigError`, `RuleError` or `StoreError` before anything is started.

    >>> async with open_runtime() as runtime:
    ...     ended = await runtime.animate("Say hello").result()
    """
    cwd = Path(cwd) if cwd is not None else Path.cwd()
    if config is None:
        config = find_config(cwd)
    elif not isinstance(config, Config):
        config = load_config(Path(config))
    given_rules = None if rules is None else tuple(rules)
    rulebook = await load_rules(config, cwd, given_rules)
    provider = provider or build_provider(config.provider, cwd)
    clock = clock or SystemClock()
    random = random or Random()
    async with AsyncExitStack() as stack:
        if store is None:
            store = await stack.enter_async_context(await build_store(config.store, cwd))
        ids = Ids(clock, random)
        queue = build_dead_letters(config.store, cwd, store)
        books = Books(store, queue, clock, config.rate_limit.backoff)
        submitting = Submitting(config, cwd, clock, hooks, interceptors)
        supervisor, doors = DynamicSupervisor("sessions"), DynamicSupervisor("doors")
        tree = Supervisor(
            "runtime",
            [*books.specs, books.heartbeat(), *submitting.specs, supervisor, doors],
            intensity=RUNTIME_INTENSITY,
        )
        await stack.enter_async_context(open_supervisor(tree, Surroundings(random, on_lifecycle)))
        nursery = await stack.enter_async_context(trio.open_nursery())
        launcher = Launcher(
            config=config,
            rulebook=rulebook,
            owner=ids.session_id().replace("ses-", "host-", 1),
            clock=clock,
            ids=ids,
            books=books,
            submitting=submitting,
            supervisor=supervisor,
            nursery=nursery,
        )
        try:
            yield Runtime(
                config=config,
                cwd=cwd,
                clock=clock,
                ids=ids,
                provider=provider,
                rulebook=rulebook,
                given_rules=given_rules,
                roles=roles or configured_roles(config, cwd),
                books=books,
                submitting=submitting,
                launcher=launcher,
                doors=doors,
            )
        finally:
            nursery.cancel_scope.cancel()

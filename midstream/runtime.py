"""The runtime: the tree of design.md section 3 in life, and the way to start sessions.

`open_runtime` is the front door for trio programs. Everything that a runtime starts lives
inside its block: when the block ends, sessions are ended on record, in order, and nothing
is left behind.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random  # noqa: TID251 - the type, and the one instance of a runtime

import trio

from midstream.actors.address import Address
from midstream.actors.announcer import Announce, Announcer, AnnouncerMessage
from midstream.actors.clock import Clock, Ids, SystemClock
from midstream.actors.ledger import Ledger, LedgerMessage
from midstream.actors.open_calls import ToolLimits
from midstream.actors.outcome import Outcome
from midstream.actors.turn_settings import PromptBudget, TurnSettings
from midstream.assembly import RuleBook, build_provider, build_store, load_rules
from midstream.config import Config, find_config, load_config
from midstream.handle import SessionHandle
from midstream.messages.conversation import AnyItem, ToolSpec, UserItem
from midstream.messages.errors import MidstreamError
from midstream.messages.events import SessionEnded
from midstream.messages.lifecycle import LifecycleSink
from midstream.messages.record import SessionStatus
from midstream.providers.provider import Provider
from midstream.rules.policy import PolicySettings
from midstream.rules.rule import Rule
from midstream.rules.tool_arguments import ToolArguments
from midstream.stores.conversations import ConversationBusy
from midstream.stores.store import Store
from midstream.supervisors.child_spec import ActorSpec, Surroundings
from midstream.supervisors.dynamic_supervisor import DynamicSupervisor
from midstream.supervisors.restart import Intensity
from midstream.supervisors.session_tree import Watching, session_tree
from midstream.supervisors.supervisor import Supervisor, open_supervisor
from midstream.tools import Tool, offer

RUNTIME_INTENSITY = Intensity(max_restarts=5, within_s=10.0)
"""Crashes of the Ledger and the Announcer that a runtime survives."""


class Runtime:
    """A running runtime. Made by `open_runtime`.

    `rules` says what is watched for, `always_apply` and `rulebook` what a host should put
    into its system prompt (spec/ttsr.md 1.7).
    """

    def __init__(
        self,
        *,
        config: Config,
        cwd: Path,
        provider: Provider,
        rulebook: RuleBook,
        ids: Ids,
        ledger: Address[LedgerMessage],
        announcer: Address[AnnouncerMessage],
        sessions: DynamicSupervisor,
        nursery: trio.Nursery,
    ) -> None:
        self.config = config
        self.rules = rulebook
        self._cwd = cwd
        self._provider = provider
        self._ids = ids
        self._ledger = ledger
        self._announcer = announcer
        self._sessions = sessions
        self._nursery = nursery
        self._live: dict[str, SessionHandle] = {}
        self._watching = Watching(
            rule_set=rulebook.rule_set,
            policy=_policy(config),
            new_arguments=self._new_arguments,
            passage_cap_chars=config.rules.passage_cap_chars,
        )
        self._tool_limits = ToolLimits(
            parallel=config.tools.parallel,
            deadline_s=config.tools.deadline_s,
            host_deadline_s=config.tools.host_deadline_s,
            result_limit_chars=config.tools.result_limit_chars,
        )

    def animate(
        self,
        prompt: str | Sequence[AnyItem],
        *,
        conversation_id: str | None = None,
        provider: Provider | None = None,
        model: str | None = None,
        system: str | None = None,
        tools: Sequence[Tool | ToolSpec] = (),
        runs_tools: bool = True,
    ) -> SessionHandle:
        """Hand in a prompt; the session that answers it runs on by itself.

        Returns at once. Without a `conversation_id` a new conversation begins; with one
        the prompt continues it. What is not given is taken from the configuration.

        Calls of a `Tool` are run by the runtime. For those of a `ToolSpec` the session says
        `ToolWanted` and waits for `SessionHandle.answer`. Without `runs_tools` the session
        ends with the message that holds the calls, and the next prompt brings the results.

        Raises `ConversationBusy` if the conversation has a live session, and `ToolError` if
        two tools have the same name.
        """
        offered = offer(tools, self._tool_limits)
        session_id = self._ids.session_id()
        conversation_id = conversation_id or session_id.replace("ses-", "con-", 1)
        live = self._live.get(conversation_id)
        if live is not None and live.ended is None:
            raise ConversationBusy(
                f"conversation {conversation_id} is being answered by session "
                f"{live.session_id}; wait for it, or interrupt it"
            )
        provider = provider or self._provider
        items = (UserItem(prompt),) if isinstance(prompt, str) else tuple(prompt)
        outcome = Outcome()
        tree = session_tree(
            session_id,
            settings=self._settings(
                conversation_id, provider, model, system, tools, offered.host, runs_tools
            ),
            prompt=items,
            provider=provider,
            watching=self._watching,
            tools=offered,
            ledger=self._ledger,
            announcer=self._announcer,
            outcome=outcome,
        )
        handle = SessionHandle(
            session_id, conversation_id, tree.session, tree.tools, self._announcer, outcome
        )
        self._live[conversation_id] = handle
        self._nursery.start_soon(self._see_through, handle, tree.supervisor, outcome)
        return handle

    async def _see_through(self, handle: SessionHandle, tree: Supervisor, outcome: Outcome) -> None:
        """Start a session, and let its conversation go when it is over."""
        try:
            await self._announcer.tell(Announce(handle.session_id, ()))
            handle.became_known()
            try:
                await self._sessions.start_child(tree)
            except MidstreamError as error:
                cause = error.__cause__ or error
                ended = SessionEnded(SessionStatus.FAILED, "", reason=str(cause))
                await self._announcer.tell(Announce(handle.session_id, (ended,)))
                outcome.settle(ended)
            await outcome.wait()
        finally:
            if self._live.get(handle.conversation_id) is handle:
                del self._live[handle.conversation_id]

    def _settings(
        self,
        conversation_id: str,
        provider: Provider,
        model: str | None,
        system: str | None,
        tools: Sequence[Tool | ToolSpec],
        host_tools: frozenset[str],
        runs_tools: bool,
    ) -> TurnSettings:
        config = self.config
        return TurnSettings(
            conversation_id=conversation_id,
            provider=provider.name,
            format=provider.format,
            model=model or config.provider.model,
            system=system if system is not None else config.system,
            tools=tuple(tool.spec if isinstance(tool, Tool) else tool for tool in tools),
            runs_tools=runs_tools and bool(tools),
            host_tools=host_tools,
            max_tokens=config.provider.max_tokens,
            options=config.provider.options,
            cwd=str(self._cwd),
            home=str(Path.home()),
            context_mode=config.rules.context_mode,
            on_exhausted=config.rules.on_exhausted,
            retry_delay_s=config.rules.retry_delay_ms / 1000,
            budget=PromptBudget(
                max_restarts=config.budget.max_restarts,
                max_output_tokens=config.budget.max_output_tokens,
                max_s=config.budget.max_s,
                max_tool_rounds=config.budget.max_tool_rounds,
            ),
        )

    def _new_arguments(self, call_id: str, tool: str) -> ToolArguments:
        return ToolArguments(
            call_id, tool, cwd=str(self._cwd), raw=self.rules.rule_set.wants_raw_arguments
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
) -> AsyncGenerator[Runtime]:
    """Run a runtime for as long as the block lasts.

    `config` is a configuration, or the path of one; by default the `midstream.toml` of
    `cwd` (by default the working directory), or the defaults. `provider`, `rules` and
    `store` replace what the configuration names; a store that is given stays open.
    `clock`, `random` and `on_lifecycle` are for hosts and tests that bring their own time,
    chance, and sink of what actors and supervisors do.

    Raises `ConfigError`, `RuleError` or `StoreError` before anything is started.

    >>> async with open_runtime() as runtime:
    ...     ended = await runtime.animate("Say hello").result()
    """
    cwd = Path(cwd) if cwd is not None else Path.cwd()
    if config is None:
        config = find_config(cwd)
    elif not isinstance(config, Config):
        config = load_config(Path(config))
    rulebook = await load_rules(config, cwd, rules)
    provider = provider or build_provider(config.provider, cwd)
    clock = clock or SystemClock()
    random = random or Random()
    async with AsyncExitStack() as stack:
        if store is None:
            store = await stack.enter_async_context(await build_store(config.store, cwd))
        opened = store
        ids = Ids(clock, random)
        owner = ids.session_id().replace("ses-", "host-", 1)
        ledger: ActorSpec[LedgerMessage] = ActorSpec("ledger", lambda: Ledger(opened, clock, owner))
        announcer: ActorSpec[AnnouncerMessage] = ActorSpec("announcer", Announcer)
        sessions = DynamicSupervisor("sessions")
        tree = Supervisor("runtime", [ledger, announcer, sessions], intensity=RUNTIME_INTENSITY)
        await stack.enter_async_context(open_supervisor(tree, Surroundings(random, on_lifecycle)))
        nursery = await stack.enter_async_context(trio.open_nursery())
        try:
            yield Runtime(
                config=config,
                cwd=cwd,
                provider=provider,
                rulebook=rulebook,
                ids=ids,
                ledger=ledger.address,
                announcer=announcer.address,
                sessions=sessions,
                nursery=nursery,
            )
        finally:
            nursery.cancel_scope.cancel()


def _policy(config: Config) -> PolicySettings:
    return PolicySettings(
        interrupt_mode=config.rules.interrupt_mode,
        repeat_mode=config.rules.repeat_mode,
        repeat_gap=config.rules.repeat_gap,
        max_retries_per_rule=config.rules.max_retries_per_rule,
        max_retries_per_prompt=config.rules.max_retries_per_prompt,
    )

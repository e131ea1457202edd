"""The stopMessage of sessions whose conversations live with their clients, as at the gateway.

The client sends its whole conversation with each request and knows nothing of what is kept
here: under the key of its session, in the conversation's book, the state and whether the
session that set it uses tools. Every change is decided on what is kept now and written only
over that, so that two requests of one session, in this process or in two, never spend the
same send twice (spec/stop_message.md 14, decision 8). A store that fails costs no request:
then what is remembered here counts, and is merged when the store is back (decision 19).
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import trio

from midstream.actors.address import Address
from midstream.actors.clock import Clock
from midstream.actors.errors import AskFailed
from midstream.actors.file_ref_resolver import ReadUserFile, ResolverMessage
from midstream.actors.ledger_messages import KeepStates, LedgerMessage, LoadConversation
from midstream.actors.ref_failure import RefError
from midstream.actors.turn_settings import ContinuationSettings
from midstream.actors.work_probe import AskWork, WorkAnswers, WorkProbeMessage
from midstream.messages.bd_stage import (
    TEMPLATE_PATHS,
    BdMode,
    require_templates,
    work_state,
)
from midstream.messages.directive import SetFile, StageMode
from midstream.messages.directive_items import FoundDirectives
from midstream.messages.errors import StoreError, VersionConflict
from midstream.messages.stop_message import BdWorkState, Stage, StopMessageState
from midstream.messages.stop_message_codec import STATE_NAME, decode_state, merge, stored_state
from midstream.stores.conversation_load import Conversation

_log = logging.getLogger("midstream.stop_message")

USES_TOOLS_NAME = "stopMessageUsesTools"
"""Under which name a conversation's book keeps whether the session that set a stopMessage
uses tools. Then requests without any, such as one for a title, are asides."""

ASK_DEADLINE_S = 15.0
CONFLICTS_LIMIT = 20
"""Writers that may be faster in a row."""
REMEMBERED_LIMIT = 2_000
"""Sessions that are remembered while the store is away; the oldest are forgotten."""

Result = TypeVar("Result")


class KeptStop(msgspec.Struct, frozen=True):
    """What is kept of a session; its conversation's document has this `version`."""

    state: StopMessageState | None = None
    uses_tools: bool = False
    version: int = 0


class StopMessageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How directives are read and replies continued. `stage_paths` are in the user
    directory."""

    continuation: ContinuationSettings = msgspec.field(default_factory=ContinuationSettings)
    keep_in_code: bool = False
    stage_paths: Mapping[Stage, str] = msgspec.field(default_factory=lambda: TEMPLATE_PATHS)


class Neighbours(msgspec.Struct, frozen=True):
    """Whom the book asks: the store's writer, the user directory, and the task list."""

    ledger: Address[LedgerMessage]
    resolver: Address[ResolverMessage]
    work: Address[WorkProbeMessage]


class StopMessageBook:
    """See the module. Without `neighbours` it remembers in this process alone, and neither
    files nor the task list are asked."""

    def __init__(
        self,
        clock: Clock,
        settings: StopMessageSettings,
        neighbours: Neighbours | None = None,
        cwd: str = "",
    ) -> None:
        self.clock = clock
        self.settings = settings
        self._neighbours = neighbours
        self._cwd = cwd
        self._remembered: OrderedDict[str, KeptStop] = OrderedDict()
        """What the store has not taken."""
        self._seen: OrderedDict[str, KeptStop] = OrderedDict()
        """What it has, as it was last seen there."""
        self._locks: dict[str, trio.Lock] = {}

    async def read(self, key: str) -> KeptStop:
        """What is kept of a session now."""
        remembered = self._remembered.get(key)
        if self._neighbours is None:
            return remembered or KeptStop()
        try:
            conversation: Conversation = await self._neighbours.ledger.ask_through_crashes(
                lambda reply: LoadConversation(key, reply), ASK_DEADLINE_S
            )
        except (StoreError, AskFailed) as error:
            _log.warning("the stopMessage of a session cannot be read: %s", error)
            return remembered or self._seen.get(key) or KeptStop()
        kept = _newest(_kept(conversation), remembered)
        if kept.state is not None:
            _put(self._seen, key, kept)
        return kept

    async def change(
        self,
        key: str,
        decide: Callable[[StopMessageState | None], tuple[StopMessageState | None, Result]],
        *,
        uses_tools: bool | None = None,
    ) -> Result:
        """Keep the state that `decide` makes of the one that is kept, and give its result.

        `decide` has no effects: it is asked again when somebody else was faster.
        `uses_tools` is kept with the state, if it is known.
        """
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                return await self._change(key, decide, uses_tools)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._locks.pop(key, None)

    async def _change(
        self,
        key: str,
        decide: Callable[[StopMessageState | None], tuple[StopMessageState | None, Result]],
        uses_tools: bool | None,
    ) -> Result:
        conflicts = 0
        while True:
            kept = await self.read(key)
            state, result = decide(kept.state)
            tools = kept.uses_tools if uses_tools is None else uses_tools
            if state == kept.state and tools == kept.uses_tools:
                return result
            after = KeptStop(state, tools, kept.version)
            try:
                await self._keep(key, after)
            except (StoreError, AskFailed) as error:
                conflicts += isinstance(error, VersionConflict)
                if isinstance(error, VersionConflict) and conflicts < CONFLICTS_LIMIT:
                    continue
                _log.warning("the stopMessage of a session is kept in memory only: %s", error)
                _put(self._remembered, key, after)
            return result

    async def _keep(self, key: str, kept: KeptStop) -> None:
        if self._neighbours is None:
            _put(self._remembered, key, kept)
            return
        states: dict[str, object] = {
            STATE_NAME: stored_state(kept.state or StopMessageState()),
            USES_TOOLS_NAME: kept.uses_tools,
        }
        # Once it is on its way it is kept, so it is also known to be.
        with trio.CancelScope(shield=True):
            await self._neighbours.ledger.ask(
                lambda reply: KeepStates(key, states, kept.version, reply), ASK_DEADLINE_S
            )
        self._remembered.pop(key, None)
        _put(self._seen, key, kept)

    # --- what a state refers to

    async def file_texts(self, found: FoundDirectives | None) -> dict[str, str]:
        """The texts of the files that directives name, without those that cannot be read."""
        paths = [one.path for one in found.directives if isinstance(one, SetFile)] if found else []
        texts = {path: await self._user_file(path) for path in paths}
        return {path: text for path, text in texts.items() if text is not None}

    async def templates(self, state: StopMessageState | None) -> dict[Stage, str]:
        """The texts of the stages, where they choose what is said."""
        if state is None or state.stage_mode not in (StageMode.ON, StageMode.AUTO):
            return {}
        paths = self.settings.stage_paths.items()
        texts = {stage: await self._user_file(path) for stage, path in paths}
        return {stage: text for stage, text in texts.items() if text is not None}

    async def require_templates(self, mode: StageMode | None) -> None:
        """Raises `StageTemplatesMissing` if a mode needs texts that are not there (#84)."""
        require_templates(mode, await self.templates(StopMessageState(stage_mode=mode)))

    async def work(self) -> BdWorkState:
        """Whether there is work left, as the task list says. The conversation says nothing
        of it here, because it is not kept."""
        mode = self.settings.continuation.bd_mode
        if self._neighbours is None or mode is BdMode.HEURISTIC:
            return BdWorkState.UNKNOWN
        try:
            known: WorkAnswers = await self._neighbours.work.ask(
                lambda reply: AskWork(self._cwd, reply), ASK_DEADLINE_S
            )
        except AskFailed:
            return BdWorkState.UNKNOWN
        return work_state(known.answers, mode, (), has_project=known.has_project)

    async def _user_file(self, path: str) -> str | None:
        if self._neighbours is None:
            return None
        try:
            return await self._neighbours.resolver.ask(
                lambda reply: ReadUserFile(path, reply), ASK_DEADLINE_S
            )
        except (RefError, AskFailed):
            return None


def _put(sessions: OrderedDict[str, KeptStop], key: str, kept: KeptStop) -> None:
    sessions[key] = kept
    sessions.move_to_end(key)
    while len(sessions) > REMEMBERED_LIMIT:
        sessions.popitem(last=False)


def _kept(conversation: Conversation) -> KeptStop:
    kept = conversation.kept
    stored = kept.meta.states.get(STATE_NAME)
    state = None if stored is None else decode_state(bytes(stored)).state
    uses_tools = kept.meta.states.get(USES_TOOLS_NAME)
    return KeptStop(state, uses_tools is not None and bytes(uses_tools) == b"true", kept.version)


def _newest(kept: KeptStop, remembered: KeptStop | None) -> KeptStop:
    """What is kept, with what could not be."""
    if remembered is None or remembered.state is None:
        return kept
    state = remembered.state if kept.state is None else merge(kept.state, remembered.state)
    return KeptStop(state, remembered.uses_tools, kept.version)

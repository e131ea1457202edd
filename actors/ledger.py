"""Ledger: the only writer to the store.

Sessions ask it to load a conversation, and to write each step of their course; it answers
when the store has acknowledged. What belongs together is one commit (`stores/
conversations.py`), each carries the session's fence and an idempotency key, so that a step
which is asked for twice is written once. Requests of different sessions run side by side,
since a store can join their commits; those of one session come one after the other
because a session waits for each answer.
"""

from collections.abc import Callable

import msgspec

from midstream.actors.actor import Actor
from midstream.actors.clock import Clock
from midstream.messages.errors import MidstreamError
from midstream.messages.events import SessionEnded
from midstream.messages.record import Fence, SessionStatus, TerminationTag, TokenUsage
from midstream.messages.reply import Reply
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import AttachRunning, Cancel, Outcome, Terminal
from midstream.messages.work import AcceptPrompt, AppendItems, FinishSession, Recording
from midstream.stores.conversation_draft import Claim, ConversationWrite
from midstream.stores.conversation_load import Conversation, load_conversation
from midstream.stores.conversations import accept_prompt, append_items, commit_write, finish
from midstream.stores.store import Store


class LoadConversation(msgspec.Struct, frozen=True, tag=True):
    """Read a conversation. Answered with a `Conversation`, empty if it is new."""

    conversation_id: str
    reply: Reply[Conversation]


class Write(msgspec.Struct, frozen=True, tag=True):
    """Write one step of a session; answered once it is kept. Steps count from 1."""

    session_id: str
    conversation_id: str
    provider: str
    step: int
    recording: Recording
    reply: Reply[None]


LedgerMessage = LoadConversation | Write


class Ledger(Actor[LedgerMessage]):
    """See the module. `owner` names this host in fences.

    What it remembers of live sessions only saves reading: every write is checked by the
    store against what is there.
    """

    def __init__(self, store: Store, clock: Clock, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._fence = Fence(owner=owner, token=1)
        self._known: dict[str, Conversation] = {}

    async def handle(self, message: LedgerMessage) -> None:
        match message:
            case LoadConversation():
                self.spawn(self._load, message)
            case Write():
                self.spawn(self._write, message)

    async def _load(self, request: LoadConversation) -> None:
        try:
            conversation = await load_conversation(self._store, request.conversation_id)
        except MidstreamError as error:
            request.reply.fail(error)
        else:
            request.reply.send(conversation)

    async def _write(self, request: Write) -> None:
        try:
            known = self._known.pop(request.session_id, None)
            if known is None:
                known = await load_conversation(self._store, request.conversation_id)
            key = f"{request.session_id}/{self._fence.token}/{request.step}"
            write = await commit_write(self._store, known, self._decide(request), key=key)
        except MidstreamError as error:
            request.reply.fail(error)
            return
        if not isinstance(request.recording, FinishSession):
            self._known[request.session_id] = write.conversation
        request.reply.send(None)

    def _decide(self, request: Write) -> Callable[[Conversation], ConversationWrite]:
        """What the step means for the conversation, as it will be read."""
        at = format_timestamp(self._clock.now_ms())
        claim = Claim(request.session_id, self._fence)
        match request.recording:
            case AcceptPrompt(items):
                opening = AttachRunning(
                    id=request.session_id,
                    started_at=at,
                    provider=request.provider,
                    conversation_id=request.conversation_id,
                    fence=self._fence,
                )
                return lambda conversation: accept_prompt(conversation, opening, items)
            case AppendItems(items, turn, attempt):
                return lambda conversation: append_items(
                    conversation, claim, items, turn=turn, attempt=attempt, at=at
                )
            case FinishSession(items, turn, ended):
                ending = self._ending(request.session_id, ended, at)
                return lambda conversation: finish(
                    conversation, claim, ending, items, turn=turn, attempt=ended.attempts
                )

    def _ending(self, session_id: str, ended: SessionEnded, at: str) -> Terminal | Cancel:
        if ended.status is SessionStatus.CANCELLED:
            return Cancel(
                id=session_id,
                ended_at=at,
                duration_ms=ended.duration_ms,
                reason=ended.reason,
                token_usage=TokenUsage.of(ended.usage),
                output=ended.output,
            )
        rate_limited = ended.status is SessionStatus.RATE_LIMITED
        return Terminal(
            id=session_id,
            fence=self._fence,
            status=Outcome(ended.status.value),
            ended_at=at,
            exit_code=0 if ended.status is SessionStatus.COMPLETED else 1,
            last_activity_at=at,
            duration_ms=ended.duration_ms,
            error=ended.reason,
            token_usage=TokenUsage.of(ended.usage),
            output=ended.output,
            termination_tag=TerminationTag(
                kind="rate-limit", source="stream", detail=(ended.reason or "")[:200]
            )
            if rate_limited
            else None,
        )

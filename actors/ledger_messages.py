"""What the Ledger can be asked for. Each is answered when the store has acknowledged it."""

from collections.abc import Mapping, Sequence

import msgspec

from midstream.messages.enrolment import Enrolment
from midstream.messages.errors import MidstreamError
from midstream.messages.event_log import Block
from midstream.messages.record import SessionRecord
from midstream.messages.reply import Reply
from midstream.messages.session_reports import AnyReport, ReportAnswer
from midstream.messages.transition import AnyTransition, OrphanFailed
from midstream.messages.work import Recording
from midstream.stores.conversation_load import Conversation
from midstream.stores.sessions import KeptSession


class NotRecoverable(MidstreamError):
    """The session is not presumed dead, or somebody else has gone on where it stopped."""


class LoadConversation(msgspec.Struct, frozen=True, tag=True):
    """Read a conversation. Answered with it, empty if it is new."""

    conversation_id: str
    reply: Reply[Conversation]


class Write(msgspec.Struct, frozen=True, tag=True):
    """Write one step of a session of this process. Steps count from 1.

    Answered with the session's record after it, when the step is kept: in the store, or,
    if the store cannot take it, in the dead-letter queue. Only a first step has to be in the
    store. Fails with `FenceLost` when somebody else has the session or its conversation.
    """

    enrolment: Enrolment
    step: int
    recording: Recording
    reply: Reply[SessionRecord]


class Apply(msgspec.Struct, frozen=True, tag=True):
    """Apply a transition to a session's record, with a transcript in the same commit.

    Answered with the record as it is then. Fails with what `apply_transition` raises.
    """

    transition: AnyTransition
    reply: Reply[SessionRecord]
    transcript: Sequence[object] = ()


class PresumeDead(msgspec.Struct, frozen=True, tag=True):
    """Mark a session as dead, if its record is still the one that was judged.

    Answered with whether it was marked.
    """

    judged: KeptSession
    mark: OrphanFailed
    reply: Reply[bool]


class TakeOver(msgspec.Struct, frozen=True, tag=True):
    """Make a session that is presumed dead this host's own, under the next fence token.

    Answered with its record: running, or dead-lettered after too many recoveries. Fails
    with `NotRecoverable` if it is not presumed dead, or its conversation has gone on.
    """

    session_id: str
    owner: str
    reply: Reply[SessionRecord]


class Report(msgspec.Struct, frozen=True, tag=True):
    """A session outside this process says something. Never fails: see `ReportAnswer.ok`."""

    report: AnyReport
    reply: Reply[ReportAnswer]


class KeepState(msgspec.Struct, frozen=True, tag=True):
    """Put a document into the state book. Answered with its new version; fails with
    `VersionConflict` if it has another than the expected one."""

    id: str
    document: msgspec.Raw
    expected_version: int
    durable: bool
    reply: Reply[int]


class KeepStates(msgspec.Struct, frozen=True, tag=True):
    """Keep `states` of a conversation under their names, and leave its others. Answered
    when they are kept; fails with `VersionConflict` if the conversation's document has
    another version than the expected one."""

    conversation_id: str
    states: Mapping[str, object]
    expected_version: int
    reply: Reply[None]


class DrainCount(msgspec.Struct, frozen=True):
    """What became of the envelopes in the dead-letter queue."""

    arrived: int = 0
    rejected: int = 0
    left: int = 0


class DrainQueue(msgspec.Struct, frozen=True, tag=True):
    """Try to write what waits in the dead-letter queue. Answered with a `DrainCount`."""

    reply: Reply[DrainCount]


class TellLeftBehind(msgspec.Struct, frozen=True, tag=True):
    """Tell what is on record and was never told, because its host was killed. Answered when
    that is done."""

    reply: Reply[None]


class KeptEvents(msgspec.Struct, frozen=True):
    """What became of blocks of events: of the sessions in `through` everything up to this
    number is kept; those in `refused` belong to somebody else. The rest may be tried again."""

    through: Mapping[str, int]
    refused: frozenset[str] = frozenset()


class KeepEvents(msgspec.Struct, frozen=True, tag=True):
    """Append one block to the event log of each of these sessions; what a log has already is
    not appended again. Answered with `KeptEvents`."""

    blocks: Mapping[str, Block]
    reply: Reply[KeptEvents]


LedgerMessage = (
    LoadConversation
    | Write
    | Apply
    | PresumeDead
    | TakeOver
    | Report
    | KeepState
    | KeepStates
    | DrainQueue
    | TellLeftBehind
    | KeepEvents
)

"""midstream listens while a language model talks, and changes its course midstream.

A supervised actor runtime on trio that a host embeds: it aborts a stream the moment it
breaks a rule, tells the model why, lets it try again, and keeps a record of every session.

    import midstream, trio

    async def main():
        async with midstream.open_runtime() as runtime:
            handle = runtime.animate("Write a haiku about actors")
            async for chunk in handle.chunks:
                print(chunk)
            print(await handle.result())

    trio.run(main)

The public API is what this module lists.
"""

from midstream.actors.announcer import UnknownSession
from midstream.actors.event_channel import GapError
from midstream.actors.ledger_messages import NotRecoverable
from midstream.actors.notice_board import NoticeStream
from midstream.actors.prompt_hooks import Hook, HookFailed, Interceptor
from midstream.actors.subscription import Lagged
from midstream.books import open_session_book
from midstream.client import (
    CannotConnect,
    Client,
    ConnectionLost,
    EventsLost,
    OutcomeUnknown,
    Paused,
    RemoteChunks,
    RemoteEvents,
    RemoteSession,
    RequestRefused,
    connect,
)
from midstream.config import Config
from midstream.config_file import find_config, load_config
from midstream.doors.websocket import CannotListen
from midstream.handle import Chunk, EventStream, SessionHandle
from midstream.messages.alert import Alert, AlertLevel
from midstream.messages.blocked_report import BlockedReport
from midstream.messages.conversation import (
    AssistantItem,
    ModelRequest,
    ReminderItem,
    SystemItem,
    ToolResultItem,
    ToolSpec,
    UserItem,
)
from midstream.messages.dispatch import DispatchStatus
from midstream.messages.errors import (
    ConfigError,
    MidstreamError,
    RuleError,
    RuntimeStopped,
    StoreError,
)
from midstream.messages.events import (
    AlertRaised,
    AttemptLost,
    AttemptPaused,
    AttemptStarted,
    ContinuationDecided,
    LocalAnswer,
    ReminderInjected,
    Retracted,
    RetryScheduled,
    RuleTriggered,
    SessionEnded,
    SessionEvent,
    SessionStarted,
    StopMessageChanged,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    ToolWanted,
    WorkBlocked,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.notices import Began, DeadLettered, Ended, Notice, RecordFailed, Revived
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.segments import (
    FileRefSegment,
    PasteSegment,
    SegmentFormatError,
    TextSegment,
    UnknownSegment,
    decode_segments,
    encode_segments,
)
from midstream.messages.session_cost import SessionCost
from midstream.messages.stream import StopReason
from midstream.messages.submission import (
    HookAction,
    HookCancel,
    HookContinue,
    InterceptorAction,
    SubmitCancel,
    SubmitContinue,
    SubmitContinueWith,
    SubmittedPrompt,
)
from midstream.messages.usage import Usage, UsageSource
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.providers.provider import Provider
from midstream.roles import Identity
from midstream.rules.rule import (
    Action,
    Dialect,
    Example,
    InterruptMode,
    MatchOn,
    RepeatMode,
    Rule,
    ScopeToken,
    Source,
)
from midstream.runtime import Runtime, open_runtime
from midstream.session_book import Overview, SessionBook
from midstream.stores.conversations import ConversationBusy
from midstream.stores.session_list import SessionFilter
from midstream.stores.store import Store
from midstream.tools import Tool, ToolError
from midstream.websocket import OpenDoor, open_websocket

__all__ = [
    "Action",
    "Alert",
    "AlertLevel",
    "AlertRaised",
    "AssistantItem",
    "AttemptLost",
    "AttemptPaused",
    "AttemptStarted",
    "Began",
    "BlockedReport",
    "CannotConnect",
    "CannotListen",
    "Chunk",
    "Client",
    "Config",
    "ConfigError",
    "ConnectionLost",
    "ContinuationDecided",
    "ConversationBusy",
    "DeadLettered",
    "Dialect",
    "DispatchStatus",
    "Ended",
    "EventStream",
    "EventsLost",
    "Example",
    "FailureKind",
    "FileRefSegment",
    "GapError",
    "Hook",
    "HookAction",
    "HookCancel",
    "HookContinue",
    "HookFailed",
    "Identity",
    "Interceptor",
    "InterceptorAction",
    "InterruptMode",
    "Lagged",
    "LocalAnswer",
    "MatchOn",
    "MidstreamError",
    "ModelRequest",
    "NotRecoverable",
    "Notice",
    "NoticeStream",
    "OpenDoor",
    "OutcomeUnknown",
    "Overview",
    "PasteSegment",
    "Paused",
    "Provider",
    "ProviderFailure",
    "RecordFailed",
    "ReminderInjected",
    "ReminderItem",
    "RemoteChunks",
    "RemoteEvents",
    "RemoteSession",
    "RepeatMode",
    "RequestRefused",
    "Retracted",
    "RetryScheduled",
    "Revived",
    "Rule",
    "RuleError",
    "RuleTriggered",
    "Runtime",
    "RuntimeStopped",
    "ScopeToken",
    "SegmentFormatError",
    "SessionBook",
    "SessionCost",
    "SessionEnded",
    "SessionEvent",
    "SessionFilter",
    "SessionHandle",
    "SessionRecord",
    "SessionStarted",
    "SessionStatus",
    "Source",
    "StopMessageChanged",
    "StopReason",
    "Store",
    "StoreError",
    "SubmitCancel",
    "SubmitContinue",
    "SubmitContinueWith",
    "SubmittedPrompt",
    "SystemItem",
    "Text",
    "TextSegment",
    "Thinking",
    "Tool",
    "ToolError",
    "ToolResult",
    "ToolResultItem",
    "ToolSpec",
    "ToolUse",
    "ToolWanted",
    "UnknownSegment",
    "UnknownSession",
    "Usage",
    "UsageSource",
    "UserItem",
    "Verdict",
    "VerdictAction",
    "WorkBlocked",
    "connect",
    "decode_segments",
    "encode_segments",
    "find_config",
    "load_config",
    "open_runtime",
    "open_session_book",
    "open_websocket",
]

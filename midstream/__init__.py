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

from midstream.actors.announcer import GapError, UnknownSession
from midstream.actors.subscription import Lagged
from midstream.config import Config, find_config, load_config
from midstream.handle import Chunk, EventStream, SessionHandle
from midstream.messages.conversation import ModelRequest, ToolSpec
from midstream.messages.errors import ConfigError, MidstreamError, RuleError, StoreError
from midstream.messages.events import (
    AttemptLost,
    AttemptStarted,
    ReminderInjected,
    Retracted,
    RetryScheduled,
    RuleTriggered,
    SessionEnded,
    SessionEvent,
    SessionStarted,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    ToolWanted,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.record import SessionStatus
from midstream.messages.stream import StopReason
from midstream.messages.usage import Usage, UsageSource
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.providers.provider import Provider
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
from midstream.stores.conversations import ConversationBusy
from midstream.stores.store import Store
from midstream.tools import Tool, ToolError

__all__ = [
    "Action",
    "AttemptLost",
    "AttemptStarted",
    "Chunk",
    "Config",
    "ConfigError",
    "ConversationBusy",
    "Dialect",
    "EventStream",
    "Example",
    "FailureKind",
    "GapError",
    "InterruptMode",
    "Lagged",
    "MatchOn",
    "MidstreamError",
    "ModelRequest",
    "Provider",
    "ProviderFailure",
    "ReminderInjected",
    "RepeatMode",
    "Retracted",
    "RetryScheduled",
    "Rule",
    "RuleError",
    "RuleTriggered",
    "Runtime",
    "ScopeToken",
    "SessionEnded",
    "SessionEvent",
    "SessionHandle",
    "SessionStarted",
    "SessionStatus",
    "Source",
    "StopReason",
    "Store",
    "StoreError",
    "Text",
    "Thinking",
    "Tool",
    "ToolError",
    "ToolResult",
    "ToolSpec",
    "ToolUse",
    "ToolWanted",
    "UnknownSession",
    "Usage",
    "UsageSource",
    "Verdict",
    "VerdictAction",
    "find_config",
    "load_config",
    "open_runtime",
]

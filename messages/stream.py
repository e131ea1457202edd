"""What a provider says while a model talks, whatever its wire format.

A stream is a sequence of these messages. It is well formed when it begins with
`StreamStarted` and ends with `StreamFinished`; a stream that ends in another way has
failed, and its provider says so with `StreamFailed` as the last message. Block indexes
count from 0 in the order in which blocks begin, and are ours: a provider whose own
indexes repeat or jump (two messages in one stream, item ids that change) renumbers.
"""

from enum import StrEnum

import msgspec

from midstream.messages.failure import ProviderFailure
from midstream.messages.usage import Usage


class StopReason(StrEnum):
    """Why the model stopped, in one vocabulary for all providers."""

    END_TURN = "end_turn"
    """Anthropic `end_turn`, Chat `stop`, Responses status `completed` without a call."""
    STOP_SEQUENCE = "stop_sequence"
    TOOL_USE = "tool_use"
    """Anthropic `tool_use`, Chat `tool_calls` and `function_call`, Responses with a call."""
    MAX_TOKENS = "max_tokens"
    """Anthropic `max_tokens`, Chat `length`, Responses incomplete for `max_output_tokens`."""
    REFUSAL = "refusal"
    """Anthropic `refusal`."""
    CONTENT_FILTER = "content_filter"
    PAUSE_TURN = "pause_turn"
    """Anthropic `pause_turn`: a server tool wants to go on in the next request."""
    OTHER = "other"
    """A reason that this version does not know; `StreamFinished.raw_reason` holds it."""


class StreamMessage(msgspec.Struct, frozen=True, tag_field="type", gc=False):
    """Base of all messages of a stream.

    They come by the thousand and can be in no reference cycle, so the garbage collector
    need not look at them: its pauses would delay aborts.
    """


class StreamStarted(StreamMessage, frozen=True, tag="stream_started"):
    """The provider has begun to answer."""

    message_id: str | None = None
    model: str | None = None
    session_id: str | None = None
    """The provider's own session, where it keeps conversations itself."""


class BlockStarted(StreamMessage, frozen=True, tag="block_started"):
    """A block of text or thinking begins. Tool calls begin with `ToolCallStarted`."""

    index: int
    kind: str
    """`text`, `thinking` or `opaque`."""


class TextDelta(StreamMessage, frozen=True, tag="text_delta"):
    index: int
    text: str


class ThinkingDelta(StreamMessage, frozen=True, tag="thinking_delta"):
    index: int
    text: str


class ThinkingSigned(StreamMessage, frozen=True, tag="thinking_signed"):
    """The signature of a thinking block, whole. Without it a block may not be sent back."""

    index: int
    signature: str


class ToolCallStarted(StreamMessage, frozen=True, tag="tool_call_started"):
    """A call of one of the host's own tools begins. `call_id` is unique in its stream."""

    index: int
    call_id: str
    name: str


class ToolArgumentsDelta(StreamMessage, frozen=True, tag="tool_arguments_delta"):
    """The next piece of a call's argument text (JSON, cut anywhere)."""

    index: int
    fragment: str


class ToolCallFinished(StreamMessage, frozen=True, tag="tool_call_finished"):
    """The call is complete; `arguments` is its whole argument text as the provider has it.

    A call without arguments has `{}`. A model that ran into its token limit may leave the
    text unfinished, so whoever runs a tool looks whether it is JSON first; `settle` drops
    a call whose text is not.
    """

    index: int
    call_id: str
    name: str
    arguments: str
    extra: str | None = None
    """What the provider wants back with the call, as the text of a JSON object."""


class ToolCallAnswered(StreamMessage, frozen=True, tag="tool_call_answered"):
    """The provider has run this call itself, and here is what it came to. An opaque block has
    taken the call's place by then: nobody else is to run it."""

    index: int
    call_id: str
    name: str
    content: str
    is_error: bool = False


class OpaqueBlock(StreamMessage, frozen=True, tag="opaque_block"):
    """A finished block that only its provider understands: redacted thinking, server tools
    and their results, compaction, reasoning items. Sent back as it came or not at all.

    `data` is the text of the provider's own JSON. One that has the index of an earlier block
    takes its place: of a call that the provider runs itself, of text that it has taken back.
    """

    index: int
    kind: str
    data: str


class BlockFinished(StreamMessage, frozen=True, tag="block_finished"):
    """A text or thinking block is complete."""

    index: int


class UsageReported(StreamMessage, frozen=True, tag="usage_reported"):
    """Figures so far; a later report replaces an earlier one, field by field."""

    usage: Usage


class Ping(StreamMessage, frozen=True, tag="ping"):
    """A sign of life without content."""


class StreamFinished(StreamMessage, frozen=True, tag="stream_finished"):
    """The provider's terminal event was seen."""

    stop_reason: StopReason
    raw_reason: str | None = None


class StreamFailed(StreamMessage, frozen=True, tag="stream_failed"):
    """The stream is over and is not to be trusted as finished."""

    failure: ProviderFailure


AnyStreamMessage = (
    StreamStarted
    | BlockStarted
    | TextDelta
    | ThinkingDelta
    | ThinkingSigned
    | ToolCallStarted
    | ToolArgumentsDelta
    | ToolCallFinished
    | ToolCallAnswered
    | OpaqueBlock
    | BlockFinished
    | UsageReported
    | Ping
    | StreamFinished
    | StreamFailed
)

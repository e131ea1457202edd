"""A conversation as it is kept and as it is sent: items, blocks, tools, requests.

Items are provider-neutral; each provider renders them to its own wire format. What a
provider alone understands travels in `OpaquePart` and is only ever sent back to the
provider that it came from.
"""

from collections.abc import Mapping
from typing import Any

import msgspec


class Part(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of the parts of an assistant message."""


class TextPart(Part, frozen=True, tag="text"):
    text: str


class ThinkingPart(Part, frozen=True, tag="thinking"):
    """Reasoning text. Only a signed one may be sent back to a provider that signs."""

    text: str
    signature: str | None = None


class ToolCallPart(Part, frozen=True, tag="tool_call"):
    """A complete call; `arguments` is a JSON object as text."""

    call_id: str
    name: str
    arguments: str
    extra: str | None = None
    """What its provider wants back with the call, as the text of a JSON object."""


class OpaquePart(Part, frozen=True, tag="opaque"):
    """A provider's own block. `provider` is the provider's format name.

    `data` is the text of the block's JSON, exactly as it came: text and not a tree, so
    that it stays the same in every encoding that a message travels in.
    """

    provider: str
    kind: str
    data: str


AnyPart = TextPart | ThinkingPart | ToolCallPart | OpaquePart


class Item(msgspec.Struct, frozen=True, tag_field="item"):
    """Base of the items of a conversation."""


class UserItem(Item, frozen=True, tag="user", omit_defaults=True):
    """What the user said. `text` is exactly what is sent."""

    text: str
    automatic: bool = False
    """Said by midstream in the user's name, to continue (spec/stop_message.md 7)."""
    segments: str | None = None
    """The JSON array of what was typed (`segments.py`), for clients that show it again;
    None where it was this text. Never sent to a model."""


class SystemItem(Item, frozen=True, tag="system"):
    """What the host adds beside the user's words, such as an attached file.

    `kind` says what it is (`file_attachment`, `notice`), `path` where it came from.
    """

    text: str
    kind: str = "notice"
    path: str | None = None


class ReminderItem(Item, frozen=True, tag="reminder"):
    """An injection: what the model is told about the rules that it broke.

    `text` is exactly what is sent. `rules` are the names that are recorded as injected
    for as long as this item is in the conversation.
    """

    text: str
    rules: tuple[str, ...]
    interrupted: bool = True
    """Whether an attempt was cut for it; otherwise it rides along."""
    call_id: str | None = None
    """The tool call in whose result it is sent, in front of the content; None for a
    message of its own."""


class AssistantItem(Item, frozen=True, tag="assistant"):
    """One finished, or settled, message of the model. Never empty."""

    parts: tuple[AnyPart, ...]
    provider: str = ""
    """Format name of the provider that wrote it: `anthropic`, `openai_chat`, ..."""
    model: str | None = None
    settled: bool = False
    """Whether the message was cut and made valid afterwards."""


class ToolResultItem(Item, frozen=True, tag="tool_result"):
    """The answer to one tool call."""

    call_id: str
    name: str
    content: str
    is_error: bool = False


AnyItem = UserItem | SystemItem | ReminderItem | AssistantItem | ToolResultItem


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool that the model may call. `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


class ModelRequest(msgspec.Struct, frozen=True):
    """Everything that a provider needs to start one stream.

    `options` are passed into the provider's request body as they are (temperature,
    `reasoning`, ...); a key there wins over what midstream would write.
    """

    model: str
    items: tuple[AnyItem, ...]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    options: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    cwd: str = ""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Working directory and variables for a provider that runs a program; never sent."""

"""The events of Anthropic's Messages stream as they come, as far as midstream reads them.

Lenient on purpose: every field but the type may be missing or null, because gateways leave
out what they like, and fields that nobody here reads are not decoded.
"""

from typing import Any

import msgspec


class WireUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    usage: WireUsage | None = None


class Delta(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class Event(msgspec.Struct):
    """Every event in one struct: decoding it once is cheaper than asking for its type first."""

    type: str
    index: int = -1
    delta: Delta | None = None
    content_block: msgspec.Raw = msgspec.Raw()
    message: Message | None = None
    usage: WireUsage | None = None


class BlockStart(msgspec.Struct):
    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")
    citations: list[Any] | None = None


class Named(msgspec.Struct):
    type: str = ""


EVENTS = msgspec.json.Decoder(Event)
STARTS = msgspec.json.Decoder(BlockStart)
NAMES = msgspec.json.Decoder(Named)

TREES = msgspec.json.Decoder(dict[str, Any])

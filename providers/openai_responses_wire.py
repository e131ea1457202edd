"""The events of the Responses API as they come, as far as midstream reads them.

Lenient on purpose: every field may be missing or null, because compatible servers leave out
whatever they like, and fields that nobody here reads are not decoded.
"""

from typing import Any

import msgspec


class TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class WireUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None


class Incomplete(msgspec.Struct):
    reason: str | None = None


class Response(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: list[msgspec.Raw] | None = None
    usage: WireUsage | None = None
    error: Any = None
    incomplete_details: Incomplete | None = None


class Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class Event(msgspec.Struct):
    """Every event in one struct, so that each is decoded once."""

    type: str
    output_index: int = -1
    content_index: int = -1
    summary_index: int = -1
    delta: Any = None
    text: str | None = None
    refusal: str | None = None
    arguments: Any = None
    part: Part | None = None
    item: msgspec.Raw = msgspec.Raw()
    response: Response | None = None


class Item(msgspec.Struct):
    type: str
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: str | None = None
    content: list[Part] | None = None
    summary: list[Part] | None = None


EVENTS = msgspec.json.Decoder(Event)
ITEMS = msgspec.json.Decoder(Item)
TREES = msgspec.json.Decoder(dict[str, Any])

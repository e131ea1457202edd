"""The chunks of a Chat Completions stream as they come, as far as midstream reads them.

Lenient on purpose: every field may be missing or null, because compatible servers leave out
whatever they like, and fields that nobody here reads are not decoded.
"""

from typing import Any

import msgspec


class TokenDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class WireUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPiece(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None
    extra_content: Any = None


class Delta(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: Function | None = None


class Choice(msgspec.Struct):
    index: int | None = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    text: str | None = None
    usage: WireUsage | None = None


class Chunk(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    object: str | None = None
    choices: list[Choice] | None = None
    usage: WireUsage | None = None
    error: Any = None


CHUNKS = msgspec.json.Decoder(Chunk)

"""What Claude Code's part of a conversation is made of: its opaque blocks, and their data.

The decoder writes them, the request reads them back. A call stays readable without the
program: when its session is lost, the next prompt tells in words what was done.
"""

from typing import TypeVar

import msgspec

from midstream.messages.accumulate import OWN_CALL
from midstream.messages.conversation import AnyItem, AssistantItem, OpaquePart

FORMAT = "claude_code"
CALL_KIND = OWN_CALL
SESSION_KIND = "session"
RETRACTED_KIND = "retracted"

RESULT_LIMIT_CHARS = 2_000
"""How much of a tool's result is kept; the program has the whole in its own session."""

T = TypeVar("T")


class SessionPart(msgspec.Struct, frozen=True):
    """A run that has ended, from which the next can go on."""

    session_id: str


class CallPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that the program ran itself. `result` is None while nobody knows it: the call
    may have had effects."""

    id: str
    name: str
    arguments: str
    result: str | None = None
    is_error: bool = False


class RetractedPart(msgspec.Struct, frozen=True):
    """What a message had said that broke off and was asked for again."""

    text: str


def encode_part(part: msgspec.Struct) -> str:
    """The data of an opaque block."""
    return msgspec.json.encode(part).decode()


def decode_part(part: OpaquePart, kind: type[T]) -> T | None:
    """The data of an opaque block, or None if it cannot be read."""
    try:
        return msgspec.json.decode(part.data, type=kind)
    except msgspec.MsgspecError:
        return None


def session_of(item: AnyItem) -> str | None:
    """The id of the session that an answer of Claude Code ended with."""
    if not isinstance(item, AssistantItem):
        return None
    for part in reversed(item.parts):
        if isinstance(part, OpaquePart) and (part.provider, part.kind) == (FORMAT, SESSION_KIND):
            session = decode_part(part, SessionPart)
            return session.session_id if session is not None else None
    return None

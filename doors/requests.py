"""Reading what a request holds: bodies of bounded size, and parameters with sane limits."""

from contextlib import aclosing
from typing import TypeVar

import msgspec
from starlette.requests import Request

from midstream.messages.errors import MidstreamError

T = TypeVar("T")

BODY_LIMIT_BYTES = 64 * 1024 * 1024
"""The largest body: the report of a session with a transcript at its limit, and air."""
LARGEST_LIMIT = 500


class BadRequest(MidstreamError):
    """What was asked cannot be understood; `status` is the answer's."""

    def __init__(self, problem: str, status: int = 400) -> None:
        self.status = status
        super().__init__(problem)


async def json_body(request: Request, kind: type[T]) -> T:
    """The body as a struct. Raises BadRequest, which names the place that is wrong."""
    data = await _body(request)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body cannot be read: {error}") from error


def limit_of(request: Request, default: int) -> int:
    """The parameter `limit`, between 1 and 500; what is no number is the default
    (spec/animator.md 14.20)."""
    try:
        asked = int(request.query_params.get("limit", default))
    except ValueError:
        return default
    return min(max(1, asked), LARGEST_LIMIT)


def required(request: Request, *names: str) -> str:
    """The first of these parameters that is there. Raises BadRequest."""
    for name in names:
        if value := request.query_params.get(name):
            return value
    raise BadRequest(f"the parameter {names[0]} is missing")


async def _body(request: Request) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async with aclosing(request.stream()) as stream:
        async for piece in stream:
            size += len(piece)
            if size > BODY_LIMIT_BYTES:
                raise BadRequest(f"the body is larger than {BODY_LIMIT_BYTES} bytes", 413)
            pieces.append(piece)
    return b"".join(pieces)

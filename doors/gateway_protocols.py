"""The protocols of the gateway by their paths, and what it says in their words itself."""

from collections.abc import Mapping
from posixpath import normpath
from urllib.parse import unquote

import msgspec

from midstream.doors.gateway_anthropic import AnthropicWire
from midstream.doors.gateway_chat import ChatWire
from midstream.doors.gateway_client import Client, Headers, capped_retry_after
from midstream.doors.gateway_responses import ResponsesWire
from midstream.doors.gateway_wire import Json, Wire
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.well_formed import well_formed_object

WIRES: Mapping[str, Wire] = {
    "/v1/messages": AnthropicWire(),
    "/v1/chat/completions": ChatWire(),
    "/v1/responses": ResponsesWire(),
}
_STATUSES = {
    FailureKind.RATE_LIMITED: 429,
    FailureKind.OVERLOADED: 503,
    FailureKind.AUTH: 401,
    FailureKind.INVALID_REQUEST: 400,
    FailureKind.TIMEOUT: 504,
}


def json_object(raw: bytes) -> Json | None:
    """The JSON object that a body is, halves of characters in it replaced; None if it is
    none."""
    try:
        return msgspec.json.decode(raw, type=Json)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return well_formed_object(raw)
    except RecursionError:
        return None


def wire_at(path: str) -> Wire | None:
    """The protocol of a path whose answers are watched, however the path is written: a server
    may well take `/v1//messages` and `/v1/%6Dessages` for the same."""
    return WIRES.get(_plain(path))


def wire_under(path: str) -> Wire | None:
    """The protocol that a path belongs to, as `/v1/messages/count_tokens` does to Anthropic's."""
    path = _plain(path)
    return next((wire for place, wire in WIRES.items() if f"{path}/".startswith(f"{place}/")), None)


def _plain(path: str) -> str:
    return normpath(unquote(path))


async def give_up(client: Client, wire: Wire | None, failure: ProviderFailure) -> None:
    """Say that there is no answer; one that has begun is broken off, its end never sent."""
    if client.started:
        return
    status = _STATUSES.get(failure.kind, 502)
    await say(client, wire, status, failure.kind, failure.message)


async def refuse_until(
    client: Client, wire: Wire, upstream: str, wait_s: int, cap_s: int | None
) -> None:
    """The quota is spent for `wait_s` more seconds, of which the client is told `cap_s` at most."""
    said = [(b"retry-after", str(wait_s).encode())]
    failure = ProviderFailure(FailureKind.RATE_LIMITED, out_of_quota(upstream))
    head = capped_retry_after(said, cap_s)
    await client.answer_json(429, wire.error_body(failure), head)


def out_of_quota(upstream: str) -> str:
    """Why a request was not sent on."""
    return f"{upstream} is out of quota; midstream asks again then"


async def say(
    client: Client,
    wire: Wire | None,
    status: int,
    kind: FailureKind,
    message: str,
    headers: Headers = (),
) -> None:
    """An error of ours in the words of the protocol."""
    wire = wire or WIRES["/v1/chat/completions"]
    await client.answer_json(status, wire.error_body(ProviderFailure(kind, message)), headers)

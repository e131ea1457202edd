"""`connect`: a client for trio programs that stays connected.

    async with midstream.connect("ws://127.0.0.1:7472") as client:
        session = await client.animate("Write a haiku about actors")
        async for chunk in session.chunks:
            print(chunk)
        print(await session.result())

Connections may break at any time: requests that wait are sent again and carried out once,
iterators go on behind the last event. A consumer sees one unbroken iterator.
"""

import math
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random  # noqa: TID251 - the one instance of a client
from typing import Any

import msgspec
import trio

from midstream.client.endpoint import Endpoint, OpenStream, endpoint_of
from midstream.client.errors import CannotConnect
from midstream.client.link import Link
from midstream.client.remote_session import RemoteSession
from midstream.messages import wire
from midstream.messages.conversation import ToolSpec
from midstream.messages.record import SessionStatus
from midstream.messages.segments import AnySegment, TextSegment, encode_segments
from midstream.messages.wire_codec import MSGPACK_PROTOCOL


class Client:
    """A connection to a server. Made by `connect`."""

    def __init__(self, first: Link, new_link: "NewLink") -> None:
        self._links = [first]
        self._new_link = new_link
        self._opening = trio.Lock()

    async def animate(
        self,
        prompt: str | Sequence[AnySegment],
        *,
        conversation_id: str | None = None,
        model: str | None = None,
        system: str | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> RemoteSession:
        """Hand in a prompt; the session that answers it runs on by itself, at the server.

        Returns when the prompt was taken. For calls of `tools` the session says `ToolWanted`
        and waits for `RemoteSession.answer`.

        Raises `Paused` while the provider's quota is spent, `ConversationBusy`,
        `OutcomeUnknown` if the server was restarted at the wrong moment, and
        `RequestRefused` for a prompt that makes no sense.
        """
        segments = (TextSegment(prompt),) if isinstance(prompt, str) else tuple(prompt)
        fields = msgspec.json.decode(encode_segments(segments), type=tuple[dict[str, Any], ...])
        result = await self._links[0].request(
            lambda id: wire.Submit(
                id=id,
                segments=fields,
                conversation=conversation_id,
                model=model,
                system=system,
                tools=tuple(tools),
                follow=False,
            )
        )
        assert isinstance(result, wire.Submitted)
        return self._session(result.session, result.conversation)

    def session(self, session_id: str) -> RemoteSession:
        """A session that somebody has begun, to be followed, stopped or answered."""
        return self._session(session_id, None)

    async def list_sessions(
        self,
        statuses: Sequence[SessionStatus] = (),
        *,
        conversation_id: str | None = None,
        limit: int = 50,
        after: tuple[str, str] | None = None,
    ) -> wire.Listed:
        """A page of the server's sessions, the newest first; `after` is the `next` of the
        page before."""
        result = await self._links[0].request(
            lambda id: wire.List(
                id=id,
                statuses=tuple(statuses),
                conversation=conversation_id,
                limit=limit,
                after=after,
            )
        )
        assert isinstance(result, wire.Listed)
        return result

    async def status(self) -> wire.ServerStatus:
        """How the server is."""
        result = await self._links[0].request(lambda id: wire.Status(id=id))
        assert isinstance(result, wire.ServerStatus)
        return result

    async def ping(self) -> None:
        """Returns when the server has answered."""
        await self._links[0].request(lambda id: wire.Ping(id=id))

    def _session(self, session_id: str, conversation_id: str | None) -> RemoteSession:
        return RemoteSession(session_id, conversation_id, self._links[0], self._link_for)

    async def _link_for(self, session_id: str) -> Link:
        """A link that does not follow this session. One connection follows a session once,
        so a second iterator over the same session has another."""
        async with self._opening:
            for link in self._links:
                if not link.follows(session_id):
                    return link
            link = await self._new_link()
            self._links.append(link)
            return link


class NewLink:
    """Opens links of one client."""

    def __init__(self, nursery: trio.Nursery, make: partial[Link]) -> None:
        self._nursery = nursery
        self._make = make

    async def __call__(self) -> Link:
        """Raises `CannotConnect`."""
        link = self._make()
        await self._nursery.start(link.run)
        return link


@asynccontextmanager
async def connect(
    url: str,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    protocol: str = MSGPACK_PROTOCOL,
    patience_s: float = math.inf,
    random: Random | None = None,
    open_stream: OpenStream | None = None,
) -> AsyncGenerator[Client]:
    """Connect to a server, such as `ws://127.0.0.1:7472`, and stay connected in the block.

    When the connection breaks, it is opened again, after 0.1 to 10 seconds, for at most
    `patience_s` seconds. `open_stream` replaces the network; `random` is for tests.

    Raises `CannotConnect` if the first connection cannot be had. Later, when the server does
    not let the client in any more or does not come back, whatever waits raises it.
    """
    endpoint = endpoint_of(url, tls)
    if open_stream is not None:
        endpoint = Endpoint(url, endpoint.host, endpoint.path, open_stream)
    make = partial(Link, endpoint, protocol, token, random or Random(), patience_s)
    cannot: CannotConnect | None = None
    async with trio.open_nursery() as nursery:
        new_link = NewLink(nursery, make)
        try:
            first = await new_link()
        except CannotConnect as error:
            cannot = error
        else:
            yield Client(first, new_link)
        nursery.cancel_scope.cancel()
    if cannot is not None:  # raised here, it comes without an exception group
        raise cannot

"""The client of the websocket. `docs/websocket.md` describes what goes over the wire."""

from midstream.client.client import Client, connect
from midstream.client.errors import (
    CannotConnect,
    ConnectionLost,
    EventsLost,
    OutcomeUnknown,
    Paused,
    RequestRefused,
)
from midstream.client.remote_session import RemoteChunks, RemoteEvents, RemoteSession

__all__ = [
    "CannotConnect",
    "Client",
    "ConnectionLost",
    "EventsLost",
    "OutcomeUnknown",
    "Paused",
    "RemoteChunks",
    "RemoteEvents",
    "RemoteSession",
    "RequestRefused",
    "connect",
]

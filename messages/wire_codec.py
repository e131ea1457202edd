"""The two subprotocols: frames as JSON text, or as MessagePack.

Whatever bytes come in, the answer is a frame or a `WireError`; nothing else is raised. Pure.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from midstream.messages.errors import MidstreamError
from midstream.messages.repair import repaired
from midstream.messages.wire import AnyClientFrame, AnyServerFrame, RequestId

JSON_PROTOCOL = "midstream.v1+json"
MSGPACK_PROTOCOL = "midstream.v1+msgpack"


class WireError(MidstreamError):
    """What came is no frame. `is_kind` says that it was text where bytes belong, or bytes
    where text does; `id` is the request's, where one can be read."""

    def __init__(self, message: str, *, is_kind: bool = False, id: int | None = None) -> None:
        self.is_kind = is_kind
        self.id = id
        super().__init__(message)


class _Numbered(msgspec.Struct):
    """What is left of a request of which nothing else can be read."""

    id: RequestId


F = TypeVar("F")


class Codec(Generic[F]):
    """Encodes frames of one side and decodes those of the other, `F`, in one subprotocol."""

    def __init__(self, protocol: str, decode: Callable[[Any], F]) -> None:
        self.protocol = protocol
        self._decode = decode
        self._is_text = protocol == JSON_PROTOCOL

    def encode(self, frame: AnyClientFrame | AnyServerFrame) -> str | bytes:
        """One message. Lone surrogates, which no encoding has, become U+FFFD."""
        try:
            return self._encode(frame)
        except UnicodeEncodeError:
            return self._encode(repaired(frame))

    def decode(self, message: str | bytes) -> F:
        """The frame of one message. Raises `WireError`."""
        if isinstance(message, str) is not self._is_text:
            kind = "text" if self._is_text else "binary"
            raise WireError(f"{self.protocol} has {kind} messages", is_kind=True)
        try:
            return self._decode(message)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            id = self._id_in(message)
            raise WireError(f"no frame of {self.protocol}: {error}", id=id) from None

    def _id_in(self, message: str | bytes) -> int | None:
        try:
            if self._is_text:
                return msgspec.json.decode(message, type=_Numbered).id
            return msgspec.msgpack.decode(cast("bytes", message), type=_Numbered).id
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None

    def _encode(self, frame: AnyClientFrame | AnyServerFrame) -> str | bytes:
        if self._is_text:
            return _json.encode(frame).decode()
        return _msgpack.encode(frame)


_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
_client_json: msgspec.json.Decoder[AnyClientFrame] = msgspec.json.Decoder(AnyClientFrame)
_client_msgpack: msgspec.msgpack.Decoder[AnyClientFrame] = msgspec.msgpack.Decoder(AnyClientFrame)
_server_json: msgspec.json.Decoder[AnyServerFrame] = msgspec.json.Decoder(AnyServerFrame)
_server_msgpack: msgspec.msgpack.Decoder[AnyServerFrame] = msgspec.msgpack.Decoder(AnyServerFrame)

SERVER_CODECS: dict[str, Codec[AnyClientFrame]] = {
    JSON_PROTOCOL: Codec(JSON_PROTOCOL, _client_json.decode),
    MSGPACK_PROTOCOL: Codec(MSGPACK_PROTOCOL, _client_msgpack.decode),
}
"""What the server's side understands, by subprotocol."""

CLIENT_CODECS: dict[str, Codec[AnyServerFrame]] = {
    JSON_PROTOCOL: Codec(JSON_PROTOCOL, _server_json.decode),
    MSGPACK_PROTOCOL: Codec(MSGPACK_PROTOCOL, _server_msgpack.decode),
}
"""What the client's side understands."""

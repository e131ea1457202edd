"""How a request to a model can fail, as data.

Providers classify; the session decides what a class means (fail, wait, try again). The
classes are those of `ProviderFailure.kind`; the rules by which a status code or an error
body becomes one of them live with the providers, because each has a format of its own.
"""

from enum import StrEnum

import msgspec


class FailureKind(StrEnum):
    """The class of a failure, by what one can do about it."""

    RATE_LIMITED = "rate_limited"
    """The quota is spent (HTTP 429 and its likes). Wait `retry_after_s`, or back off."""
    OVERLOADED = "overloaded"
    """The provider has no capacity for anybody (HTTP 529, 503). Back off."""
    AUTH = "auth"
    """The key is missing, wrong or not allowed to do this (HTTP 401, 403)."""
    INVALID_REQUEST = "invalid_request"
    """The provider refuses the request as it stands (other HTTP 4xx)."""
    NETWORK = "network"
    """No connection, or it broke."""
    PROTOCOL = "protocol"
    """The stream does not follow its format, or ended without its terminal event."""
    TIMEOUT = "timeout"
    """Nothing came for too long."""
    SERVER = "server"
    """The provider failed (HTTP 5xx other than overload, or an error event that says so)."""


class ProviderFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed request or broken stream.

    `message` is for people and never holds a key or an authorization header.
    `retry_after_s` (seconds, never negative) is what the provider asked for, if it did.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    code: str | None = None
    """The provider's own word for it, such as `overloaded_error`."""
    retry_after_s: float | None = None
    request_id: str | None = None

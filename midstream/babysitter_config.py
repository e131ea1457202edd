"""What a babysitter has to know, as it comes through its stdin: one JSON object.

Through stdin and not on the command line, which everybody on the machine can read; it may
hold a prompt and a token. Names are those of the reference where it has one
(spec/animator.md 8).
"""

from typing import Any

import msgspec

from midstream.messages.errors import ConfigError
from midstream.messages.record import Shape

HEARTBEAT_S = 30.0
TIMEOUT_S = 24 * 3600.0
"""The longest that a session outside may run (spec/animator.md 14.15)."""
STOP_GRACE_S = 5.0
"""Seconds from SIGTERM to SIGKILL for the command. Less than what a cancel waits for the
babysitter itself (14.16), so that it can still report."""
QUOTED_CHARS = 200

WHERE = "babysitter"


class BabysitterConfig(Shape, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of one session outside.

    `argv` is the command, run in the directory `cwd` with `environment` over the
    babysitter's own and `prompt` as its stdin. `guild_tool_url` is where the host listens,
    and `dead_letters` the absolute path of its queue (B5), for when nobody does.
    """

    session_id: str
    argv: list[str]
    cwd: str
    provider: str
    started_at: str
    guild_tool_url: str
    dead_letters: str
    prompt: str = ""
    environment: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    token: str | None = None
    conversation_id: str | None = None
    metadata: dict[str, Any] | None = None
    heartbeat_s: float = HEARTBEAT_S
    timeout_s: float = TIMEOUT_S
    stop_grace_s: float = STOP_GRACE_S
    stderr_limit_chars: int = 200

    def __repr__(self) -> str:
        return f"<BabysitterConfig {self.session_id}>"  # never the token


def parse_babysitter_config(data: bytes) -> BabysitterConfig:
    """The configuration in what was read from stdin. Raises ConfigError."""
    if not data.strip():
        mend = "it is started by `midstream detach`, not by hand"
        raise ConfigError(WHERE, "stdin", "is empty, where one JSON object should be", mend)
    try:
        config = msgspec.json.decode(data, type=BabysitterConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(WHERE, "stdin", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        quoted = data.decode("utf-8", "replace")[:QUOTED_CHARS]
        raise ConfigError(WHERE, "stdin", f"is no JSON ({error}): {quoted}") from None
    _check(config)
    return config


def _check(config: BabysitterConfig) -> None:
    if not config.argv:
        raise ConfigError(WHERE, "argv", "names no command")
    if not config.guild_tool_url.startswith(("http://", "https://")):
        raise ConfigError(WHERE, "guildToolUrl", f"is no http URL: {config.guild_tool_url!r}")
    for key in ("cwd", "dead_letters"):
        if not getattr(config, key).startswith("/"):
            raise ConfigError(WHERE, key, f"is no absolute path: {getattr(config, key)!r}")
    for key in ("heartbeat_s", "timeout_s", "stop_grace_s"):
        if not getattr(config, key) > 0:
            raise ConfigError(WHERE, key, "must be more than 0")

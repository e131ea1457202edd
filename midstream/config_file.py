"""How the configuration is read: from `midstream.toml`, from TOML text, from plain data.

Every key is checked when the file is read; a wrong key or type is one `ConfigError` that
names file, key and mend, and nothing is started.
"""

import difflib
import re
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any, cast

import msgspec

from midstream.config import Config, GatewayUpstreamConfig, RateLimitConfig, RoleConfig, Section
from midstream.messages.backoff import parse_backoff
from midstream.messages.errors import ConfigError
from midstream.rules.tool_shapes import ToolShape

CONFIG_FILE = "midstream.toml"


def load_config(path: Path) -> Config:
    """Read a configuration file. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(str(path), "", "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "", f"cannot be read: {error}") from error
    return parse_config(text, str(path))


def find_config(cwd: Path) -> Config:
    """The configuration of a working directory: its `midstream.toml`, or the defaults."""
    path = cwd / CONFIG_FILE
    return load_config(path) if path.exists() else Config()


def config_for(path: Path | None, cwd: Path) -> Config:
    """The configuration that a command was told to use, or that of its working directory.

    Raises `ConfigError`.
    """
    return find_config(cwd) if path is None else load_config(path)


def parse_config(text: str, where: str) -> Config:
    """A configuration from TOML text; `where` names it in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(where, "", f"is not TOML: {error}") from None
    return config_from(data, where)


def config_from(data: dict[str, Any], where: str = "configuration") -> Config:
    """A configuration from plain data, checked. Raises `ConfigError`."""
    others = {key: value for key, value in data.items() if key != "rateLimit"}
    try:
        config = msgspec.convert(others, Config)
    except msgspec.ValidationError as error:
        raise _config_error(where, str(error), data) from None
    _check_numbers(config, where)
    for name, role in config.roles.items():
        if role.system is not None and role.system_file is not None:
            problem = "stands beside system; a role has one system prompt"
            raise ConfigError(where, f"roles.{name}.system_file", problem, "drop one of them")
    rate_limit = _rate_limit(data.get("rateLimit", msgspec.UNSET), where)
    return msgspec.structs.replace(config, rate_limit=rate_limit)


def _rate_limit(block: object, where: str) -> RateLimitConfig:
    if block is msgspec.UNSET:
        return RateLimitConfig()
    if not isinstance(block, dict):
        mend = "write a table [rateLimit.backoff], or leave it out"
        raise ConfigError(where, "rateLimit", f"must be an object, not {block!r}", mend)
    given = cast("dict[str, object]", block)
    for name in given:
        if name != "backoff":
            raise ConfigError(where, f"rateLimit.{name}", "unknown key", "known here: backoff")
    backoff = parse_backoff(given.get("backoff", msgspec.UNSET), where=where)
    return RateLimitConfig(backoff=backoff)


_AT = r"(?: - at `\$\.?(?P<at>.*)`)?"
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`" + _AT)
_INDEX = re.compile(r"\[[^]]*\]")
_WRONG = re.compile(r"(?P<what>.*?)" + _AT + "$", re.DOTALL)


def _config_error(where: str, message: str, data: dict[str, Any]) -> ConfigError:
    if unknown := _UNKNOWN.match(message):
        at, field = unknown["at"] or "", unknown["field"]
        key = f"{_named(at, data)}.{field}".lstrip(".")
        return ConfigError(where, key, "unknown key", _nearest(at, field))
    wrong = _WRONG.match(message)
    assert wrong is not None
    return ConfigError(where, _named(wrong["at"] or "", data), wrong["what"])


def _named(at: str, data: dict[str, Any]) -> str:
    """`at` with the name of the entry for which msgspec says only `[...]`: that of the first
    which is refused alone."""
    head, is_anonymous, rest = at.partition("[...]")
    if not is_anonymous:
        return at
    place = head.split(".")
    entries = reduce(dict[str, Any].__getitem__, place, data)
    for name, entry in entries.items():
        try:
            msgspec.convert(_nested([*place, name], entry), Config)
        except msgspec.ValidationError:
            return f"{head}.{name}{rest}"
    return at


def _nested(place: list[str], value: Any) -> Any:
    """The data that holds only `value`, at its place."""
    return reduce(lambda inner, key: {key: inner}, reversed(place), value)


_TABLES: dict[str, type[msgspec.Struct]] = {
    "": Config,
    "roles[...]": RoleConfig,
    "gateway.upstreams[...]": GatewayUpstreamConfig,
    "rules.tools[...]": ToolShape,
    **{
        table.encode_name: table.type
        for table in msgspec.structs.fields(Config)
        if isinstance(table.type, type) and issubclass(table.type, Section)
    },
}
"""The tables of the file, by their places in msgspec's errors."""


def _nearest(at: str, field: str) -> str:
    table = _TABLES.get(_INDEX.sub("[...]", at), Config)
    known = [f.encode_name for f in msgspec.structs.fields(table)]
    near = difflib.get_close_matches(field, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"


def _check_numbers(config: Config, where: str) -> None:
    for key, value, least in (
        ("rules.repeat_gap", config.rules.repeat_gap, 0),
        ("rules.max_retries_per_rule", config.rules.max_retries_per_rule, 0),
        ("rules.max_retries_per_prompt", config.rules.max_retries_per_prompt, 0),
        ("rules.retry_delay_ms", config.rules.retry_delay_ms, 0),
        ("rules.passage_cap_chars", config.rules.passage_cap_chars, 1),
        ("budget.max_restarts", config.budget.max_restarts, 0),
        ("budget.max_s", config.budget.max_s, 0),
        ("budget.max_tool_rounds", config.budget.max_tool_rounds, 0),
        ("tools.parallel", config.tools.parallel, 1),
        ("tools.deadline_s", config.tools.deadline_s, 0),
        ("tools.host_deadline_s", config.tools.host_deadline_s, 0),
        ("tools.result_limit_chars", config.tools.result_limit_chars, 1),
        ("files.cap_bytes", config.files.cap_bytes, 0),
        ("files.max_files", config.files.max_files, 0),
        ("files.max_total_bytes", config.files.max_total_bytes, 0),
        ("files.max_entries", config.files.max_entries, 1),
        ("files.deadline_s", config.files.deadline_s, 0),
        ("stop_message.warn_after_identical", config.stop_message.warn_after_identical, 0),
        ("stop_message.stop_after_identical", config.stop_message.stop_after_identical, 0),
        ("stop_message.stop_after_s", config.stop_message.stop_after_s, 0),
        ("stop_message.follow_up_deadline_s", config.stop_message.follow_up_deadline_s, 0),
        ("stop_message.bd_timeout_s", config.stop_message.bd_timeout_s, 0),
        ("stop_message.bd_cache_s", config.stop_message.bd_cache_s, 0),
        ("hooks.deadline_s", config.hooks.deadline_s, 0),
        ("http.port", config.http.port, 0),
        ("gateway.port", config.gateway.port, 0),
        ("gateway.retry_after_cap_s", config.gateway.retry_after_cap_s, 1),
        ("websocket.port", config.websocket.port, 0),
        ("websocket.connections", config.websocket.connections, 1),
        ("websocket.half_open", config.websocket.half_open, 1),
        ("websocket.message_bytes", config.websocket.message_bytes, 1_024),
        ("websocket.frames_per_s", config.websocket.frames_per_s, 1),
        ("websocket.bytes_per_s", config.websocket.bytes_per_s, 1_024),
        ("websocket.subscriptions", config.websocket.subscriptions, 1),
        ("provider.max_tokens", config.provider.max_tokens, 1),
        ("provider.pace_s", config.provider.pace_s, 0),
    ):
        if value is not None and value < least:
            raise ConfigError(where, key, f"must be at least {least}, not {value}")

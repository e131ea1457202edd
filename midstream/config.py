"""The configuration: one file, `midstream.toml`, and the same as a value.

Every key is checked when the file is read; a wrong key or type is one `ConfigError` that
names file, key and mend, and nothing is started. Keys of secrets hold the *name* of an
environment variable, never the secret.
"""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec

from midstream.actors.file_attachment import CAP_BYTES
from midstream.actors.prompt_hooks import DEADLINE_S
from midstream.actors.turn_settings import ContextMode, OnExhausted
from midstream.messages.backoff import BackoffSettings, parse_backoff
from midstream.messages.bd_stage import CACHE_S, TEMPLATE_PATHS, TIMEOUT_S, BdMode
from midstream.messages.compaction import SENTINELS
from midstream.messages.errors import ConfigError
from midstream.messages.loop_guard import (
    FOLLOW_UP_TIMEOUT_S,
    STOP_AFTER_IDENTICAL,
    STOP_AFTER_S,
    WARN_AFTER_IDENTICAL,
)
from midstream.messages.segments import UnresolvedStyle
from midstream.messages.stop_message import Stage
from midstream.rules.rule import InterruptMode, RepeatMode
from midstream.rules.tool_shapes import ToolShape

CONFIG_FILE = "midstream.toml"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the tables of the file."""


class ProviderConfig(Section, frozen=True, kw_only=True):
    """`[provider]`: where streams come from."""

    name: str = "anthropic"
    """`anthropic`, `openai` (Chat Completions), `openai_responses`, `claude_code` (the program,
    installed on this machine) or `replay`."""
    model: str = ""
    """Empty for the provider's default."""
    base_url: str | None = None
    api_key_env: str | None = None
    """Name of the environment variable that holds the key; None for the usual one."""
    max_tokens: int | None = None
    file: str | None = None
    """For `replay`: the recorded stream."""
    pace_s: float | None = None
    """For `replay`: seconds between events; None for the file's own pace."""
    command: tuple[str | tuple[str, ...], ...] = ()
    """For `claude_code`: its command line, if not the usual one; `{model}`, `{resume}` and
    `{system_file}` are replaced, and what names one that is missing is left out."""
    options: dict[str, Any] = {}
    """Passed into every request body as they are; for `claude_code`, as flags."""


class StoreConfig(Section, frozen=True, kw_only=True):
    """`[store]`: where records rest."""

    path: str = ".midstream/midstream.sqlite3"
    """SQLite file, relative to the working directory; `:memory:` keeps nothing."""
    dead_letters: str = ".midstream/dlq"
    """Directory for what the store could not take; it arrives when the store is back."""


class RulesConfig(Section, frozen=True, kw_only=True):
    """`[rules]`: what is watched for (spec/ttsr.md 2)."""

    enabled: bool = True
    paths: tuple[str, ...] = ()
    """Further rule files, or directories of them."""
    discover: bool = True
    """Whether rules are looked for in the usual places."""
    trusted: bool = True
    """False: only `.midstream`, `.omp` and the bundled set load from the working
    directory."""
    foreign_user_rules: bool = False
    """Whether rule directories of other tools in the home directory load."""
    builtin_rules: bool = True
    disabled_rules: tuple[str, ...] = ()
    interrupt_mode: InterruptMode = InterruptMode.ALWAYS
    context_mode: ContextMode = ContextMode.DISCARD
    repeat_mode: RepeatMode = RepeatMode.ONCE
    repeat_gap: int = 10
    max_retries_per_rule: int = 3
    max_retries_per_prompt: int = 5
    on_exhausted: OnExhausted = OnExhausted.DELIVER
    tools: tuple[ToolShape, ...] = ()
    """`[[rules.tools]]`: what the arguments of further tools mean; an entry takes the
    place of what is built in for the same tool (spec/ttsr.md 0.4)."""
    retry_delay_ms: int = 50
    passage_cap_chars: int = 1_048_576


class BudgetConfig(Section, frozen=True, kw_only=True):
    """`[budget]`: what midstream may start by itself for one prompt."""

    max_restarts: int = 16
    max_output_tokens: int | None = None
    max_s: float = 900.0
    max_tool_rounds: int = 200
    """Messages of the model, for one prompt, whose calls are run."""


class ToolsConfig(Section, frozen=True, kw_only=True):
    """`[tools]`: what tool calls are bounded by."""

    parallel: int = 8
    """Functions of the host that run at the same time in one session."""
    deadline_s: float = 120.0
    """For a tool that has no deadline of its own."""
    host_deadline_s: float = 600.0
    """For a call that the host answers itself."""
    result_limit_chars: int = 50_000
    """Of a longer result the middle is left out."""


class FilesConfig(Section, frozen=True, kw_only=True):
    """`[files]`: which files prompts may refer to, and how much of them goes along
    (spec/file_ref.md 11)."""

    allow: tuple[str, ...] = (".",)
    """Directories and files below which everything may be read, relative to the working
    directory. Empty: no file at all."""
    deny: tuple[str, ...] = ()
    """What may not be read, although it is below an allowed one."""
    strict: bool = False
    """Whether absolute references, `..` and backslashes are refused even within."""
    in_text: bool = True
    """Whether `@path` in a prompt that is plain text is a reference."""
    unresolved_style: UnresolvedStyle = UnresolvedStyle.PLACEHOLDER
    """What the model reads of a reference that failed: `placeholder` or `sigil`."""
    cap_bytes: int = CAP_BYTES
    """Of each file; what is beyond is cut, and said so."""
    max_files: int = 20
    max_total_bytes: int = 16 * CAP_BYTES
    """Of all files of one prompt together."""
    list_directories: bool = True
    max_entries: int = 100
    """Of a directory."""
    attach_duplicates: bool = False
    """Whether a file that is referred to twice goes along twice."""
    deadline_s: float = 5.0
    """For the file system to answer, for each reference."""


class StopMessageConfig(Section, frozen=True, kw_only=True):
    """`[stop_message]`: how replies are continued by themselves (spec/stop_message.md)."""

    single_hop: bool = False
    """Whether each prompt is continued only once, as the reference does."""
    keep_in_code: bool = False
    """Whether directives in code blocks are left where they are, unread."""
    warn_after_identical: int = WARN_AFTER_IDENTICAL
    """Equal rounds in a row after which the model is told. Here and below, 0 is never."""
    stop_after_identical: int = STOP_AFTER_IDENTICAL
    stop_after_s: float = STOP_AFTER_S
    """Seconds since the first continuation of a prompt."""
    follow_up_deadline_s: float = FOLLOW_UP_TIMEOUT_S
    """For one attempt at a continuation."""
    compaction_sentinels: tuple[str, ...] = SENTINELS
    """What a prompt begins with that asks for a summary of the context."""
    user_dir: str = "~/.midstream"
    """Where `file://` texts and the texts of the stages are."""
    stage_status: str = TEMPLATE_PATHS[Stage.STATUS_PROBE]
    """The texts of the stages, relative to `user_dir`."""
    stage_active: str = TEMPLATE_PATHS[Stage.ACTIVE_CONTINUE]
    stage_loop: str = TEMPLATE_PATHS[Stage.LOOP_SELF_CHECK]
    bd_mode: BdMode = BdMode.AUTO
    """Whom to ask what work is left: `auto`, `runtime` (only `bd`), `heuristic`."""
    bd_timeout_s: float = TIMEOUT_S
    bd_cache_s: float = CACHE_S
    bd_workdir: str | None = None
    """Directory for `bd`; None for that of the session."""


class HooksConfig(Section, frozen=True, kw_only=True):
    """`[hooks]`: the host's hooks and interceptors."""

    deadline_s: float = DEADLINE_S
    """For each of them to answer."""


class RoleConfig(Section, frozen=True, kw_only=True):
    """`[roles.NAME]`: who a session is that is summoned under this name."""

    system: str | None = None
    """The system prompt."""
    system_file: str | None = None
    """Or a file that holds it, relative to the working directory; read at each summon."""
    model: str | None = None
    environment: dict[str, str] = {}
    """For programs that are run for the session."""


class RateLimitConfig(Section, frozen=True, kw_only=True):
    """`[rateLimit]`, spelled as in the reference (spec/animator.md 3.3)."""

    backoff: BackoffSettings = BackoffSettings()
    """`[rateLimit.backoff]`: initialMs, maxMs, factor, probeLimit, keepLevelOnBoot."""


class HttpConfig(Section, frozen=True, kw_only=True):
    """`[http]`: where `midstream serve` listens, and sessions outside report."""

    host: str = "127.0.0.1"
    """Whatever is not this machine alone needs a token."""
    port: int = 7471
    token_env: str = "MIDSTREAM_TOKEN"
    """Name of the environment variable that holds the token; without one, none is asked."""


class WebsocketConfig(Section, frozen=True, kw_only=True):
    """`[websocket]`: the websocket door (docs/websocket.md)."""

    host: str = "127.0.0.1"
    """Whatever is not this machine alone needs a token."""
    port: int = 7472
    token_env: str = "MIDSTREAM_TOKEN"
    """Name of the environment variable that holds the token; without one, none is asked."""
    hosts: tuple[str, ...] = ()
    """Names under which clients reach this host; its addresses and `localhost` are known."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may connect, as `https://app.example`; the host's own may."""
    tls_certificate: str | None = None
    """PEM file with the certificate and its chain; with it the door speaks TLS."""
    tls_key: str | None = None
    """PEM file with the key; None if it is in the same file."""
    connections: int = 4_096
    half_open: int = 256
    """Connections that have not said hello yet."""
    message_bytes: int = 1_048_576
    """The largest message of a client."""
    frames_per_s: float = 100.0
    """What comes faster is read later."""
    bytes_per_s: float = 1_048_576.0
    subscriptions: int = 32
    """Sessions that one connection may follow at a time."""


class GatewayUpstreamConfig(Section, frozen=True, kw_only=True):
    """`[gateway.upstreams.NAME]`: a server behind the gateway, reached at `/NAME/v1/...` too."""

    base_url: str | None = None
    """None for the usual one of an upstream that is called `anthropic` or `openai`."""
    serves: tuple[str, ...] = ()
    """`anthropic`, `openai`, or both; empty for whatever is asked."""
    models: tuple[str, ...] = ()
    """Globs of the models that are sent to it."""
    api_key_env: str | None = None
    """Name of the environment variable whose key takes the place of the client's; without
    one the client's own goes through."""


class GatewayConfig(Section, frozen=True, kw_only=True):
    """`[gateway]`: where `midstream gateway` listens, and what is behind it (docs/gateway.md)."""

    host: str = "127.0.0.1"
    port: int = 7473
    upstreams: dict[str, GatewayUpstreamConfig] = {}
    """The first one that serves a protocol gets what names no other."""


class Config(Section, frozen=True, kw_only=True):
    """The whole file."""

    system: str | None = None
    """The system prompt of sessions that bring none of their own."""
    agent: str = "main"
    """The name that rules with `agents` are compared with."""
    provider: ProviderConfig = ProviderConfig()
    store: StoreConfig = StoreConfig()
    rules: RulesConfig = RulesConfig()
    budget: BudgetConfig = BudgetConfig()
    tools: ToolsConfig = ToolsConfig()
    files: FilesConfig = FilesConfig()
    stop_message: StopMessageConfig = StopMessageConfig()
    hooks: HooksConfig = HooksConfig()
    http: HttpConfig = HttpConfig()
    websocket: WebsocketConfig = WebsocketConfig()
    gateway: GatewayConfig = GatewayConfig()
    roles: dict[str, RoleConfig] = {}
    rate_limit: RateLimitConfig = msgspec.field(default=RateLimitConfig(), name="rateLimit")


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
_WRONG = re.compile(r"(?P<what>.*?)" + _AT + "$", re.DOTALL)


def _config_error(where: str, message: str, data: dict[str, Any]) -> ConfigError:
    if unknown := _UNKNOWN.match(message):
        at, field = unknown["at"] or "", unknown["field"]
        return ConfigError(where, f"{at}.{field}".lstrip("."), "unknown key", _nearest(at, field))
    wrong = _WRONG.match(message)
    assert wrong is not None
    return ConfigError(where, wrong["at"] or "", wrong["what"])


def _nearest(at: str, field: str) -> str:
    tables: dict[str, type[msgspec.Struct]] = {
        "": Config,
        "provider": ProviderConfig,
        "store": StoreConfig,
        "rules": RulesConfig,
        "budget": BudgetConfig,
        "tools": ToolsConfig,
        "files": FilesConfig,
        "stop_message": StopMessageConfig,
        "hooks": HooksConfig,
        "http": HttpConfig,
        "websocket": WebsocketConfig,
        "gateway": GatewayConfig,
    }
    table = RoleConfig if at.startswith("roles[") else tables.get(at, Config)
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

"""The configuration as a value: the tables of `midstream.toml`, their keys and defaults.

It is read from the file, and checked, by `config_file.py`. Keys of secrets hold the *name*
of an environment variable, never the secret.
"""

from typing import Any

import msgspec

from midstream.actors.file_attachment import CAP_BYTES
from midstream.actors.prompt_hooks import DEADLINE_S
from midstream.actors.turn_settings import ContextMode, OnExhausted
from midstream.messages.backoff import BackoffSettings
from midstream.messages.bd_stage import CACHE_S, TEMPLATE_PATHS, TIMEOUT_S, BdMode
from midstream.messages.compaction import SENTINELS
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


class GatewayFilesConfig(Section, frozen=True, kw_only=True):
    """`[gateway.files]`: `@path` in the messages of clients is read on this machine. The
    limits are those of `[files]`."""

    allow: tuple[str, ...]
    """Directories and files below which everything may be read, relative to the working
    directory of the gateway."""
    deny: tuple[str, ...] = ()
    """What may not be read, although it is below an allowed one."""


class GatewayConfig(Section, frozen=True, kw_only=True):
    """`[gateway]`: where `midstream gateway` listens, and what is behind it (docs/gateway.md)."""

    host: str = "127.0.0.1"
    port: int = 7473
    hosts: tuple[str, ...] = ()
    """Names under which clients reach this host; its addresses and `localhost` are known.
    Looked at while it listens on this machine only."""
    auto_continue: bool = True
    """Whether replies are continued as a stopMessage says (`[stop_message]`). Its directives
    never go out in either case."""
    retry_after_cap_s: int | None = None
    """The longest `retry-after` that a client is told, for clients that sleep for as long as
    they are told; None for what the upstream says."""
    files: GatewayFilesConfig | None = None
    """Which files the messages of clients may refer to; None for none at all."""
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

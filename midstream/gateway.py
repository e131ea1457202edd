"""From a configuration to a gateway: its upstreams and its rules.

The gateway runs beside a runtime, whose rules and store it uses (`gateway_records.py`).
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from midstream.actors.clock import SystemClock
from midstream.actors.file_ref_resolver import FileRefResolver, ResolverMessage
from midstream.assembly import prompt_budget, repeat_policy
from midstream.config import GatewayUpstreamConfig
from midstream.doors.access import is_loopback
from midstream.doors.gateway_files import GatewayFiles
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.messages.errors import ConfigError
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.tool_shapes import ToolTable
from midstream.runtime import Runtime
from midstream.submitting import attachment_limits, scoped_fs, user_directory
from midstream.supervisors.child_spec import ActorSpec

_log = logging.getLogger("midstream.gateway")

KNOWN_UPSTREAMS = {
    "anthropic": ("https://api.anthropic.com", ("anthropic",)),
    "openai": ("https://api.openai.com", ("openai",)),
}


def named_upstream(text: str) -> tuple[str, GatewayUpstreamConfig]:
    """What `--upstream` means: `anthropic`, `openai`, or the address of any server."""
    if text in KNOWN_UPSTREAMS:
        return text, GatewayUpstreamConfig()
    if not text.startswith(("http://", "https://")):
        mend = f"give {', '.join(KNOWN_UPSTREAMS)}, or an address that begins with https://"
        raise ConfigError("midstream gateway", "--upstream", f"unknown: {text}", mend)
    return "upstream", GatewayUpstreamConfig(base_url=text)


def build_upstreams(
    upstreams: Mapping[str, GatewayUpstreamConfig], host: str
) -> tuple[Upstream, ...]:
    """The upstreams of the configuration; keys come from the environment.

    Raises `ConfigError`, also where anybody in the network could use a key of this host.
    """
    if not upstreams:
        mend = "pass --upstream anthropic, or write a table [gateway.upstreams.anthropic]"
        raise ConfigError("configuration", "gateway.upstreams", "there is none", mend)
    return tuple(_upstream(name, config, host) for name, config in upstreams.items())


def _upstream(name: str, config: GatewayUpstreamConfig, host: str) -> Upstream:
    where = f"gateway.upstreams.{name}"
    url, serves = KNOWN_UPSTREAMS.get(name, (None, ()))
    url = config.base_url or url
    if url is None or not url.startswith(("http://", "https://")):
        problem = "is missing" if url is None else f"is no address: {url}"
        raise ConfigError("configuration", f"{where}.base_url", problem)
    if unknown := set(config.serves) - {"anthropic", "openai"}:
        problem = f"unknown: {', '.join(sorted(unknown))}"
        raise ConfigError("configuration", f"{where}.serves", problem, "anthropic, openai")
    key = None
    if config.api_key_env is not None:
        key = os.environ.get(config.api_key_env)
        if not key:
            problem = f"the environment variable {config.api_key_env} is not set"
            raise ConfigError("configuration", f"{where}.api_key_env", problem)
        if not is_loopback(host):
            problem = f"{host} can be reached from the network, where anybody could use the key"
            mend = "let clients bring their own keys, or listen on 127.0.0.1"
            raise ConfigError("configuration", f"{where}.api_key_env", problem, mend)
    return Upstream(
        name,
        url,
        serves=frozenset(config.serves or serves),
        models=config.models,
        key=key,
    )


def build_rules(runtime: Runtime, cwd: Path) -> GatewayRules:
    """The rules of the runtime, as the gateway watches with them."""
    config = runtime.config
    rule_set = runtime.rules.rule_set
    table, raw = ToolTable(config.rules.tools), rule_set.wants_raw_arguments
    return GatewayRules(
        rule_set=rule_set,
        new_arguments=lambda call_id, tool: ToolArguments(call_id, tool, table, str(cwd), raw=raw),
        policy=repeat_policy(config.rules),
        budget=prompt_budget(config.budget),
        passage_cap_chars=config.rules.passage_cap_chars,
        on_exhausted=config.rules.on_exhausted,
        retry_delay_s=config.rules.retry_delay_ms / 1000,
        retry_after_cap_s=config.gateway.retry_after_cap_s,
        cwd=str(cwd),
        home=str(Path.home()),
    )


async def open_files(runtime: Runtime, cwd: Path, host: str) -> GatewayFiles | None:
    """The files that clients may refer to; None if that is not configured. They are read by
    an actor of the runtime's tree.

    Raises `ConfigError`, also where anybody in the network could read them.
    """
    config = runtime.config.gateway.files
    if config is None:
        return None
    if not is_loopback(host):
        problem = f"{host} can be reached from the network, where anybody could read the files"
        raise ConfigError("configuration", "gateway.files", problem, "listen on 127.0.0.1")
    files = msgspec.structs.replace(
        runtime.config.files, allow=config.allow, deny=config.deny, strict=True
    )
    fs, limits = scoped_fs(files, cwd), attachment_limits(files)
    directory = user_directory(runtime.config.stop_message)
    resolver: ActorSpec[ResolverMessage] = ActorSpec(
        "gateway_files", lambda: FileRefResolver(fs, limits, directory, files.deadline_s)
    )
    await runtime.doors.start_child(resolver)
    return GatewayFiles(resolver.address, SystemClock())

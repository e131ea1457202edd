"""The upstreams of a gateway, from its configuration or from the command line."""

import os
from collections.abc import Mapping

from midstream.config import GatewayUpstreamConfig
from midstream.doors.access import is_loopback
from midstream.doors.gateway_upstream import Upstream
from midstream.messages.errors import ConfigError

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

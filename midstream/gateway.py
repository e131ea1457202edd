"""From a configuration to a gateway: its upstreams, its rules, its records.

The gateway runs beside a runtime, whose rules and store it uses. Each watched request is a
session on record once it is over: how it ended, what it cost, which rules fired.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import trio

from midstream.actors.clock import Clock, Ids
from midstream.actors.errors import AskFailed
from midstream.actors.turn_settings import PromptBudget
from midstream.config import Config, GatewayUpstreamConfig
from midstream.doors.access import is_loopback
from midstream.doors.gateway_metrics import GatewayMetrics
from midstream.doors.gateway_request import Finished
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.messages.dispatch import GATEWAY_TRIGGER
from midstream.messages.enrolment import Enrolment, ending, opening
from midstream.messages.errors import ConfigError, MidstreamError
from midstream.messages.events import SessionEnded
from midstream.messages.record import Fence
from midstream.messages.session_identity import identify_session
from midstream.messages.timestamps import format_timestamp
from midstream.rules.policy import PolicySettings
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.tool_shapes import ToolTable
from midstream.runtime import Runtime

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
        policy=PolicySettings(
            interrupt_mode=config.rules.interrupt_mode,
            repeat_mode=config.rules.repeat_mode,
            repeat_gap=config.rules.repeat_gap,
            max_retries_per_rule=config.rules.max_retries_per_rule,
            max_retries_per_prompt=config.rules.max_retries_per_prompt,
        ),
        budget=budget_of(config),
        passage_cap_chars=config.rules.passage_cap_chars,
        on_exhausted=config.rules.on_exhausted,
        retry_delay_s=config.rules.retry_delay_ms / 1000,
        cwd=str(cwd),
        home=str(Path.home()),
    )


def budget_of(config: Config) -> PromptBudget:
    """What midstream may start by itself for one request."""
    return PromptBudget(
        max_restarts=config.budget.max_restarts,
        max_output_tokens=config.budget.max_output_tokens,
        max_s=config.budget.max_s,
    )


class GatewayRecords:
    """Puts each request on record when it is over, and counts it."""

    def __init__(self, runtime: Runtime, metrics: GatewayMetrics, clock: Clock, ids: Ids) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._clock = clock
        self._ids = ids

    async def keep(self, finished: Finished) -> None:
        """A store that cannot take it costs the record, never the client's answer."""
        self._metrics.count(finished)
        now_ms = self._clock.now_ms()
        took_ms = max(0, round((trio.current_time() - finished.began_at_s) * 1000))
        enrolment = self._enrolment(finished, format_timestamp(now_ms - took_ms))
        exchange = finished.exchange
        ended = SessionEnded(
            status=finished.status,
            output=exchange.output,
            stop_reason=exchange.outcome.stop_reason,
            reason=exchange.capped or (finished.failure.message if finished.failure else None),
            failure=finished.failure,
            usage=exchange.usage,
            attempts=exchange.attempts,
            duration_ms=took_ms,
        )
        try:
            await self._runtime.put_on_record(opening(enrolment))
            await self._runtime.put_on_record(ending(enrolment, ended, format_timestamp(now_ms)))
        except (MidstreamError, AskFailed) as error:
            _log.warning("a request is not on record: %s", error)

    def _enrolment(self, finished: Finished, started_at: str) -> Enrolment:
        identity = identify_session(finished.headers, finished.body)
        session_id = self._ids.session_id()
        rules = dict.fromkeys(verdict.rule for verdict in finished.exchange.verdicts)
        metadata = {
            "trigger": GATEWAY_TRIGGER,
            "upstream": finished.upstream,
            "protocol": finished.wire.format,
            "model": finished.exchange.outcome.model or finished.body.get("model"),
            "attempts": finished.exchange.attempts,
            "rules": list(rules),
        }
        if identity is not None:
            metadata["client_session"] = identity.session_id
        return Enrolment(
            session_id=session_id,
            conversation_id=identity.conversation_id if identity else session_id,
            provider=finished.wire.format,
            started_at=started_at,
            fence=Fence(owner=self._runtime.owner, token=1),
            metadata=metadata,
        )

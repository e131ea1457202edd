"""Opens the HTTP gateway of a runtime, as its configuration says (`[gateway]`).

    async with open_runtime() as runtime, open_gateway(runtime) as gateway:
        print("clients take this for their base URL:", gateway.url)
        await trio.sleep_forever()

It watches by the rules of the runtime, keeps its records in the runtime's store, and ends
with its block: connections to providers are closed, and clients see theirs break.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import trio
from starlette.types import ASGIApp

from midstream.actors.file_ref_resolver import FileRefResolver, ResolverMessage
from midstream.assembly import RuleBook, prompt_budget, repeat_policy
from midstream.config import Config, GatewayConfig
from midstream.doors.access import is_loopback
from midstream.doors.gateway import Gateway, gateway_app
from midstream.doors.gateway_access import LocalOnly
from midstream.doors.gateway_backoff import DOCUMENT_ID as WINDOWS_DOCUMENT_ID
from midstream.doors.gateway_backoff import Windows
from midstream.doors.gateway_files import GatewayFiles
from midstream.doors.gateway_metrics import GatewayMetrics
from midstream.doors.gateway_response_ids import DOCUMENT_ID as RESPONSES_DOCUMENT_ID
from midstream.doors.gateway_response_ids import ResponseIds
from midstream.doors.gateway_rules import GatewayRules
from midstream.doors.gateway_upstream import Upstream
from midstream.doors.http import serve_http
from midstream.doors.websocket import CannotListen
from midstream.gateway_records import GatewayRecords
from midstream.gateway_upstreams import build_upstreams
from midstream.messages.errors import ConfigError
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.tool_shapes import ToolTable
from midstream.runtime import Runtime
from midstream.submitting import attachment_limits, scoped_fs, user_directory
from midstream.supervisors.child_spec import ActorSpec

__all__ = ["OpenGateway", "open_gateway"]

STOP_DEADLINE_S = 10.0
"""Seconds for the reader of files to stop."""


class OpenGateway:
    """A gateway that is open. `url` is where it listens, the base URL of its clients."""

    def __init__(self, url: str) -> None:
        self.url = url


@asynccontextmanager
async def open_gateway(
    runtime: Runtime, config: GatewayConfig | None = None
) -> AsyncGenerator[OpenGateway]:
    """Listen for as long as the block lasts.

    `config` replaces the `[gateway]` of the runtime's configuration. Port 0 is any that is
    free. Requests are watched by the rules that the runtime has when they begin
    (`Runtime.reload_rules`).

    Raises `ConfigError` for a configuration that cannot be used, and `CannotListen` if the
    place is taken.

    >>> async with open_gateway(runtime) as gateway:
    ...     print("the base URL of clients:", gateway.url)
    """
    whole = msgspec.structs.replace(runtime.config, gateway=config or runtime.config.gateway)
    config = whole.gateway
    upstreams = build_upstreams(config.upstreams, config.host)
    metrics, clock = GatewayMetrics(), runtime.clock
    async with AsyncExitStack() as stack:
        for upstream in upstreams:
            stack.push_async_callback(_close, upstream)
        files = await stack.enter_async_context(open_files(runtime, whole))
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        records = GatewayRecords(runtime, metrics, clock, runtime.ids, nursery)
        gateway = Gateway(
            upstreams,
            RulesInForce(runtime, whole),
            records.begin,
            stop_messages=runtime.stop_message_book(runtime.cwd, is_allowed=config.auto_continue),
            windows=Windows(
                now_ms=clock.now_ms, document=runtime.state_document(WINDOWS_DOCUMENT_ID)
            ),
            response_ids=ResponseIds(runtime.state_document(RESPONSES_DOCUMENT_ID)),
            files=files,
        )
        await gateway.recall()
        for upstream in upstreams:
            await upstream.prepare()
        app: ASGIApp = gateway_app(gateway, metrics.routes())
        if is_loopback(config.host):
            app = LocalOnly(app, config.hosts)
        try:
            url = await stack.enter_async_context(serve_http(app, config.host, config.port))
        except OSError as error:
            problem = f"cannot listen on {config.host} port {config.port}: {error}"
            raise CannotListen(f"{problem}; give another in gateway.port") from error
        yield OpenGateway(url)


async def _close(upstream: Upstream) -> None:
    with trio.CancelScope(shield=True):
        await upstream.aclose()


class RulesInForce:
    """The rules of the runtime as the gateway watches with them, made anew when they are
    other ones."""

    def __init__(self, runtime: Runtime, config: Config) -> None:
        self._runtime = runtime
        self._config = config
        self._rulebook = runtime.rules
        self._rules = build_rules(config, runtime.rules, runtime.cwd)

    def __call__(self) -> GatewayRules:
        if self._runtime.rules is not self._rulebook:
            self._rulebook = self._runtime.rules
            self._rules = build_rules(self._config, self._rulebook, self._runtime.cwd)
        return self._rules


def build_rules(config: Config, rulebook: RuleBook, cwd: Path) -> GatewayRules:
    """The rules of a runtime, as the gateway watches with them."""
    rule_set = rulebook.rule_set
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


@asynccontextmanager
async def open_files(runtime: Runtime, config: Config) -> AsyncGenerator[GatewayFiles | None]:
    """The files that clients may refer to; None if that is not configured. They are read by
    an actor of the runtime's tree.

    Raises `ConfigError`, also where anybody in the network could read them.
    """
    allowed, host = config.gateway.files, config.gateway.host
    if allowed is None:
        yield None
        return
    if not is_loopback(host):
        problem = f"{host} can be reached from the network, where anybody could read the files"
        raise ConfigError("configuration", "gateway.files", problem, "listen on 127.0.0.1")
    files = msgspec.structs.replace(
        config.files, allow=allowed.allow, deny=allowed.deny, strict=True
    )
    fs, limits = scoped_fs(files, runtime.cwd), attachment_limits(files)
    directory = user_directory(config.stop_message)
    resolver: ActorSpec[ResolverMessage] = ActorSpec(
        "gateway_files", lambda: FileRefResolver(fs, limits, directory, files.deadline_s)
    )
    await runtime.doors.start_child(resolver)
    try:
        yield GatewayFiles(resolver.address, runtime.clock)
    finally:
        with trio.move_on_after(STOP_DEADLINE_S) as patience:
            patience.shield = True
            await runtime.doors.stop_child(resolver.id)

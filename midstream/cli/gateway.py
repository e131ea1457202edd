"""`midstream gateway`: rules for any client, by its base URL."""

import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random  # noqa: TID251 - the one instance of this program
from typing import Annotated

import msgspec
import trio
import typer
from starlette.types import ASGIApp

from midstream.actors.clock import Ids, SystemClock
from midstream.cli.command import run_command
from midstream.config_file import config_for
from midstream.doors.access import is_loopback
from midstream.doors.gateway import Gateway, gateway_app
from midstream.doors.gateway_access import LocalOnly
from midstream.doors.gateway_backoff import DOCUMENT_ID as WINDOWS_DOCUMENT_ID
from midstream.doors.gateway_backoff import Windows
from midstream.doors.gateway_metrics import GatewayMetrics
from midstream.doors.gateway_response_ids import DOCUMENT_ID as RESPONSES_DOCUMENT_ID
from midstream.doors.gateway_response_ids import ResponseIds
from midstream.doors.gateway_upstream import Upstream
from midstream.doors.http import serve_http
from midstream.gateway import build_rules, build_upstreams, named_upstream, open_files
from midstream.gateway_records import GatewayRecords
from midstream.messages.errors import ConfigError
from midstream.runtime import open_runtime


def gateway_command(
    upstream: Annotated[
        list[str] | None,
        typer.Option(help="anthropic, openai, or an address; may be given several times."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Where to listen; by default 127.0.0.1, or as configured.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port; 0 for any that is free.", min=0, max=65535)
    ] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option(help="A rule file or a directory of them; may be given several times."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; by default ./midstream.toml.")
    ] = None,
) -> None:
    """Stand between a client and its provider, with rules listening.

    Point the client's base URL here. What no rule concerns goes through unchanged.
    """
    run_command(_run, tuple(upstream or ()), host, port, tuple(rules or ()), config)


async def _run(
    named: tuple[str, ...],
    host: str | None,
    port: int | None,
    rules: tuple[Path, ...],
    config_path: Path | None,
) -> int:
    cwd = Path.cwd()
    config = config_for(config_path, cwd)
    paths = (*(str(path.absolute()) for path in rules), *config.rules.paths)
    config = msgspec.structs.replace(
        config, rules=msgspec.structs.replace(config.rules, paths=paths)
    )
    place = (
        config.gateway.host if host is None else host,
        config.gateway.port if port is None else port,
    )
    given = dict(map(named_upstream, named)) or config.gateway.upstreams
    upstreams = build_upstreams(given, place[0])
    metrics, clock = GatewayMetrics(), SystemClock()
    async with open_runtime(config, cwd=cwd) as runtime:
        for problem in runtime.rules.problems:
            typer.secho(str(problem), fg="yellow", err=True)
        async with trio.open_nursery() as nursery:
            records = GatewayRecords(runtime, metrics, clock, Ids(clock, Random()), nursery)
            gateway = Gateway(
                upstreams,
                build_rules(runtime, cwd),
                records.begin,
                stop_messages=runtime.stop_message_book(
                    cwd, is_allowed=config.gateway.auto_continue
                ),
                windows=Windows(
                    now_ms=clock.now_ms, document=runtime.state_document(WINDOWS_DOCUMENT_ID)
                ),
                response_ids=ResponseIds(runtime.state_document(RESPONSES_DOCUMENT_ID)),
                files=await open_files(runtime, cwd, place[0]),
            )
            await gateway.recall()
            app: ASGIApp = gateway_app(gateway, metrics.routes())
            if is_loopback(place[0]):
                app = LocalOnly(app, config.gateway.hosts)
            await _serve(app, place, upstreams)
            nursery.cancel_scope.cancel()
    return 0


async def _serve(app: ASGIApp, place: tuple[str, int], upstreams: Sequence[Upstream]) -> None:
    """Until somebody ends it."""
    try:
        async with serve_http(app, *place) as url:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                typer.echo(f"midstream listens at {url}")
                await anext(signals)
    except* OSError as errors:
        problem = f"cannot listen on {place[0]} port {place[1]}: {errors.exceptions[0]}"
        raise ConfigError("midstream gateway", "gateway.port", problem) from None
    finally:
        with trio.CancelScope(shield=True):
            for each in upstreams:
                await each.aclose()

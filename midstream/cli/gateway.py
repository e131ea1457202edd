"""`midstream gateway`: rules for any client, by its base URL.

What serves HTTP is loaded when it is wanted: it would be a fifth of the start of each command.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from midstream.cli.command import run_command
from midstream.cli.operator import obey_signals, show_problems
from midstream.config_file import config_for
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

    Point the client's base URL here. What no rule concerns goes through unchanged. SIGHUP
    reads the rules again, for requests that come from then on.
    """
    run_command(_run, tuple(upstream or ()), host, port, tuple(rules or ()), config)


async def _run(
    named: tuple[str, ...],
    host: str | None,
    port: int | None,
    rules: tuple[Path, ...],
    config_path: Path | None,
) -> int:
    from midstream.gateway import open_gateway
    from midstream.gateway_upstreams import named_upstream

    cwd = Path.cwd()
    config = config_for(config_path, cwd)
    paths = (*(str(path.absolute()) for path in rules), *config.rules.paths)
    config = msgspec.structs.replace(
        config,
        rules=msgspec.structs.replace(config.rules, paths=paths),
        gateway=msgspec.structs.replace(
            config.gateway,
            host=config.gateway.host if host is None else host,
            port=config.gateway.port if port is None else port,
            upstreams=dict(map(named_upstream, named)) or config.gateway.upstreams,
        ),
    )
    async with open_runtime(config, cwd=cwd) as runtime:
        show_problems(runtime.rules)
        async with open_gateway(runtime) as gateway:
            await obey_signals(runtime, f"midstream listens at {gateway.url}")
    return 0

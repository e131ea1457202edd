"""`midstream detach -- COMMAND...`: a session that goes on when this program has ended."""

import sys
from pathlib import Path
from random import Random  # noqa: TID251 - the one instance of this program
from typing import Annotated

import msgspec
import typer

from midstream.actors.clock import Ids, SystemClock
from midstream.cli.command import run_command
from midstream.config_file import config_for
from midstream.detach import DetachRequest, detach

STDIN = Path("-")


def detach_command(
    command: Annotated[
        list[str], typer.Argument(help="What to run, behind --", show_default=False)
    ],
    prompt: Annotated[str, typer.Option(help="What the command reads from its stdin.")] = "",
    prompt_file: Annotated[
        Path | None, typer.Option(help="A file to read that from; - for our own stdin.")
    ] = None,
    role: Annotated[str | None, typer.Option(help="Who the session is, for its record.")] = None,
    meta: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for its record; may be given several times.")
    ] = None,
    conversation: Annotated[
        str | None, typer.Option(help="The conversation it is part of.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option(help="Its name in the record; by default the program's.")
    ] = None,
    cwd: Annotated[Path, typer.Option(help="Where the command runs.")] = Path(),
    url: Annotated[
        str | None, typer.Option(help="Where the host listens; by default as configured.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which it is stopped.", min=1.0)] = 24
    * 3600.0,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; by default ./midstream.toml.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a command as a session that outlives this program.

    A babysitter reports to the host (`midstream serve`) that it runs and how it ends, and
    stops it when it is cancelled. What no host hears waits in the dead-letter queue.
    """
    metadata = _metadata(meta or [], role)
    request = DetachRequest(
        argv=tuple(command),
        cwd=cwd,
        provider=provider,
        prompt=_prompt(prompt, prompt_file),
        conversation_id=conversation,
        metadata=metadata,
        url=url,
        timeout_s=timeout,
    )
    run_command(_detach, request, config, json)


async def _detach(request: DetachRequest, config_path: Path | None, json: bool) -> int:
    root = Path.cwd()
    config = config_for(config_path, root)
    clock = SystemClock()
    detached = await detach(request, config, root, clock, Ids(clock, Random()))
    if detached.warning:
        typer.secho(f"midstream: {detached.warning}", fg="yellow", err=True)
    if json:
        told = {"sessionId": detached.session_id, "pid": detached.pid}
        typer.echo(msgspec.json.encode(told).decode())
    else:
        typer.echo(detached.session_id)
    return 0


def _prompt(prompt: str, file: Path | None) -> str:
    if file is None:
        return prompt
    if prompt:
        raise typer.BadParameter("give --prompt or --prompt-file, not both")
    if file == STDIN:
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error


def _metadata(pairs: list[str], role: str | None) -> dict[str, str]:
    metadata = {"trigger": "detach"}
    if role is not None:
        metadata["role"] = role
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{pair!r} is no KEY=VALUE")
        metadata[key] = value
    return metadata

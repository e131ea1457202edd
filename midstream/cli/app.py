"""The commands and their options; each does its work in a module of its own."""

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from midstream.cli.attach import attach_command
from midstream.cli.command import run_command
from midstream.cli.conversations import conversations_app
from midstream.cli.detach import detach_command
from midstream.cli.gateway import gateway_command
from midstream.cli.rules import rules_app
from midstream.cli.run import RunOptions, run_prompt
from midstream.cli.serve import serve_command
from midstream.cli.sessions import sessions_app, status_command

app = typer.Typer(
    name="midstream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Listens while a model talks: aborts on a rule, says why, lets it try again.",
)
app.add_typer(rules_app)
app.add_typer(sessions_app)
app.add_typer(conversations_app)

Json = Annotated[bool, typer.Option("--json", help="Print events as NDJSON, one a line.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"midstream {version('midstream')}")
        raise typer.Exit


@app.callback()
def midstream(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Listens while a model talks: aborts on a rule, says why, lets it try again."""


@app.command()
def demo(
    json: Json = False,
    speed: Annotated[float, typer.Option(help="Times the pace of reading.", min=0.1)] = 1.0,
) -> None:
    """Watch two answers being cut, corrected and finished. Needs no key and no network.

    A server on this machine speaks Anthropic's wire format; the real provider connects.
    """
    from midstream.cli.demo import run_demo  # its server would slow the start of all commands

    run_command(run_demo, json, speed)


@app.command()
def run(
    prompt: Annotated[str, typer.Argument(help="What to ask the model.")] = "",
    provider: Annotated[
        str | None,
        typer.Option(
            help="anthropic, openai, openai_responses, claude_code; by default as configured."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model to ask.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Where the provider listens.")] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option(help="A rule file or a directory of them; may be given several times."),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Play a recorded stream instead of asking a model.")
    ] = None,
    pace: Annotated[
        float | None, typer.Option(help="With --replay: seconds between events.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Continue this conversation.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; by default ./midstream.toml.")
    ] = None,
    json: Json = False,
) -> None:
    """Ask a model, or replay a recorded stream, with rules listening.

    Files that the prompt refers to as @path go along with it.

    Ctrl-C lets the model stop and ends cleanly; a second one ends at once.
    """
    options = RunOptions(
        prompt=prompt,
        provider=provider,
        model=model,
        base_url=base_url,
        rules=tuple(rules or ()),
        replay=replay,
        pace_s=pace,
        system=system,
        conversation=conversation,
        config=config,
        json=json,
    )
    run_command(run_prompt, options)


# Behind `demo` and `run`, so that the help begins with these.
app.command("gateway")(gateway_command)
app.command("serve")(serve_command)
app.command("attach")(attach_command)
app.command("detach")(detach_command)
app.command("status")(status_command)

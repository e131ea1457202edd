"""The commands of `midstream rules` and their options.

Each does its work in a module of its own. Results go to standard output, notes and
progress to standard error; `--json` prints one JSON object a line. Exit codes: 0 as it
should be, 1 something was found (each command says when), 2 wrong input, 130 Ctrl-C.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import trio
import typer
from rich.console import Console

from midstream.cli.command import exit_with
from midstream.cli.rule_selection import select_rules
from midstream.cli.rules_check import check_rules
from midstream.cli.rules_list import list_rules
from midstream.cli.rules_scan import ScanOptions, scan_files
from midstream.cli.rules_snippet import TryOptions
from midstream.cli.rules_try import try_rules
from midstream.cli.rules_why import explain_rule
from midstream.cli.source_files import MAX_BYTES
from midstream.rules.example_check import DEFAULT_CUTS
from midstream.rules.explain import AskedOutput
from midstream.rules.rule import Source

rules_app = typer.Typer(
    name="rules",
    no_args_is_help=True,
    help="Look at rules, check them, try them, and find out why one is silent.",
)

RulePaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--rules",
        "-r",
        help="Only the rules of this file or directory; may be given several times.",
        show_default=False,
    ),
]
RuleNames = Annotated[
    list[str] | None,
    typer.Option(
        "--rule", help="Only the rule of this name; may be given several times.", show_default=False
    ),
]
ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", help="Configuration file; by default ./midstream.toml."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
SourceOption = Annotated[
    Source | None, typer.Option(help="Where the text stands.", show_default=False)
]
ToolOption = Annotated[str | None, typer.Option(help="The tool whose call it is.")]
PathOption = Annotated[str | None, typer.Option("--path", "-p", help="The file it goes to.")]
AgentOption = Annotated[
    str | None, typer.Option(help="Which agent is asked about; by default as configured.")
]


@rules_app.command("list", epilog="Example: midstream rules list --all")
def command_list(
    rules: RulePaths = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also those that are disabled or shadowed.")
    ] = False,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """Show the rules of this directory: what each listens to, does, and comes from."""

    def work(console: Console) -> int:
        return list_rules(select_rules(config, rules or ()), console, show_all=show_all, json=json)

    _run(work)


@rules_app.command("check", epilog="Example: midstream rules check --strict .midstream/rules")
def command_check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Rule files or directories; by default the rules of this directory.",
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """Find what is wrong with rule files.

    Reports what could not be loaded, and what loads but never fires, always
    fires, fires twice, waits for the end of a passage, or costs much.

    Exit code 1 if a file gives no rule at all, with --strict also if any part
    of one is lost.
    """

    def work(console: Console) -> int:
        selection = select_rules(config, paths or ())
        return check_rules(selection, paths or (), console, strict=strict, json=json)

    _run(work)


@rules_app.command(
    "test", epilog="Example: midstream rules test 'x as any' -r no-any.md --path src/a.ts"
)
def command_test(
    snippet: Annotated[
        str | None,
        typer.Argument(
            metavar="[SNIPPET|FILE|-]",
            help="A text, a file, or - for standard input. Without it the rules' examples run.",
            show_default=False,
        ),
    ] = None,
    rules: RulePaths = None,
    rule: RuleNames = None,
    source: SourceOption = None,
    tool: ToolOption = None,
    path: PathOption = None,
    agent: AgentOption = None,
    cuts: Annotated[
        int, typer.Option(help="How often the text is also cut at random places.", min=0)
    ] = DEFAULT_CUTS,
    seed: Annotated[int, typer.Option(help="Seed of these places.")] = 0,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """Try rules on their examples, or on a text of your own.

    The text is streamed through the engine, whole and in random pieces. A
    source file is tried as an edit of that file, other text as prose.

    Exit code 1 if an example fails, or if rules were named (-r, --rule) and
    none of them matches.
    """
    options = TryOptions(
        snippet=snippet,
        names=tuple(rule or ()),
        source=source,
        tool=tool,
        path=path,
        agent=agent,
        cuts=cuts,
        seed=seed,
        json=json,
    )

    def work(console: Console) -> int:
        return try_rules(select_rules(config, rules or ()), options, console)

    _run(work)


@rules_app.command("scan", epilog="Example: midstream rules scan src --rule no-any --fail")
def command_scan(
    place: Annotated[Path, typer.Argument(help="A directory, or a file.")] = Path(),
    rules: RulePaths = None,
    rule: RuleNames = None,
    no_gitignore: Annotated[
        bool, typer.Option("--no-gitignore", help="Also files that git ignores.")
    ] = False,
    max_bytes: Annotated[int, typer.Option(help="Larger files are left out.", min=1)] = MAX_BYTES,
    fail: Annotated[bool, typer.Option("--fail", help="Exit with 1 if anything is found.")] = False,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """Run the rules over files, as if a model had just written them.

    Each file counts as a write, and as an edit, of its whole text; scopes and
    globs are honoured. The rules are those of the working directory, or of -r.
    """

    def work(console: Console) -> int:
        options = ScanOptions(
            place=place,
            names=tuple(rule or ()),
            max_bytes=max_bytes,
            heeds_gitignore=not no_gitignore,
            fail=fail,
            json=json,
        )
        return scan_files(select_rules(config, rules or ()), options, console)

    _run(work)


@rules_app.command(
    "why", epilog="Example: midstream rules why no-any --conversation con-1 --path src/a.ts"
)
def command_why(
    name: Annotated[str, typer.Argument(help="The rule's name.", show_default=False)],
    conversation: Annotated[
        str | None,
        typer.Option(help="The conversation in which it was silent.", show_default=False),
    ] = None,
    source: SourceOption = None,
    tool: ToolOption = None,
    path: PathOption = None,
    agent: AgentOption = None,
    rules: RulePaths = None,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """Say why a rule did not fire.

    It may be disabled, shadowed, not for this agent, not watched for, out of
    scope, or spent since some turn. The exit code is 0 whatever the answer is.
    """
    asked = source or (Source.TOOL if tool or path else None)
    place = AskedOutput(source=asked, tool=tool, path=path, cwd=str(Path.cwd()))

    def work(console: Console) -> int:
        selection = select_rules(config, rules or ())
        arguments = (selection, name, conversation, place, agent, console, json)
        return trio.run(explain_rule, *arguments)

    _run(work)


def _run(work: Callable[[Console], int]) -> None:
    exit_with(lambda: work(Console(highlight=False)))

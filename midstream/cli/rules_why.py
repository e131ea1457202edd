"""`midstream rules why`: why a rule did not fire, or what it takes (spec/ttsr.md B26)."""

from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from midstream.assembly import build_store, repeat_policy
from midstream.cli.rule_selection import Selection
from midstream.cli.tables import one_line, print_line
from midstream.messages.errors import ConfigError
from midstream.rules.explain import (
    AskedOutput,
    Explanation,
    Memory,
    Situation,
    Standing,
    explain,
)
from midstream.stores.conversation_load import load_conversation

_STYLES = {Standing.OPEN: "bold green", Standing.UNKNOWN: "bold red"}
_TITLES = {
    Standing.UNKNOWN: "no such rule",
    Standing.DISABLED: "disabled",
    Standing.OTHER_AGENT: "for another agent",
    Standing.NOT_WATCHED: "not watched for",
    Standing.OUT_OF_SCOPE: "out of scope",
    Standing.SPENT: "spent",
    Standing.OPEN: "nothing keeps it silent",
}


async def explain_rule(
    selection: Selection,
    name: str,
    conversation_id: str | None,
    place: AskedOutput,
    agent: str | None,
    console: Console,
    json: bool,
) -> int:
    """Print the answer. Returns 0: that a rule is silent is an answer.

    Raises `ConfigError` for a conversation that the store does not have, and `StoreError`.
    """
    settings = selection.config.rules
    situation = Situation(
        found=selection.found,
        agent=agent or selection.config.agent,
        enabled=settings.enabled or selection.is_named,
        disabled_rules=selection.disabled_rules,
        builtin_rules=settings.builtin_rules,
        policy=repeat_policy(selection.config.rules),
        place=place,
        memory=await _remember(selection, conversation_id),
    )
    answer = explain(name, situation)
    if json:
        console.file.write(msgspec.json.encode(answer).decode() + "\n")
        return 0
    _print(console, answer, selection.cwd)
    return 0


def _print(console: Console, answer: Explanation, cwd: Path) -> None:
    """In a terminal sentences are wrapped; in a pipe each is one line."""
    style = _STYLES.get(answer.standing, "bold yellow")
    print_line(console, f"{one_line(answer.rule)}: {_TITLES[answer.standing]}", style)
    lines = [*answer.sentences, *map(str, answer.problems)]
    styles = [""] * len(answer.sentences) + ["yellow"] * len(answer.problems)
    for line, line_style in zip(lines, styles, strict=True):
        shown = Text(one_line(line.replace(f"{cwd}/", "")), line_style)
        console.print(shown, soft_wrap=not console.is_terminal)


async def _remember(selection: Selection, conversation_id: str | None) -> Memory | None:
    """What the configured store knows of the conversation. A store that is not there yet
    is not made."""
    if conversation_id is None:
        return None
    store_config = selection.config.store
    path = selection.cwd / store_config.path
    missing = ConfigError(
        "midstream rules why",
        "--conversation",
        f"there is no conversation {conversation_id} in {store_config.path}",
        "`midstream run` names the conversation that it begins",
    )
    if store_config.path == ":memory:" or not path.exists():
        raise missing
    async with await build_store(store_config, selection.cwd) as store:
        conversation = await load_conversation(store, conversation_id)
    if conversation.kept.version == 0:
        raise missing
    return Memory(
        conversation_id=conversation_id,
        turn=conversation.turn,
        records=conversation.injections,
    )

"""The commands of `midstream conversations`: which there are, and what was said in one.

They read the store of a configuration and change nothing. What neither the user typed nor
the model said is marked as hidden: reminders, attached files, notices, and what midstream
said in the user's name to continue. `--json` prints one JSON object a line. Exit codes: 0,
2 for wrong input, 130 for Ctrl-C.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text as Styled

from midstream.assembly import build_store
from midstream.books import require_store
from midstream.cli.command import run_command
from midstream.cli.sessions_view import STYLES, clock_text
from midstream.cli.tables import counted, one_line, print_line, print_table
from midstream.config_file import config_for
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    OpaquePart,
    ReminderItem,
    SystemItem,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.messages.errors import MidstreamError
from midstream.messages.stop_message_codec import STATE_NAME, decode_state, snapshot
from midstream.stores.conversation_list import ConversationSummary, list_conversations
from midstream.stores.conversation_load import Conversation, load_conversation
from midstream.stores.item_log import read_items
from midstream.stores.store import Store

conversations_app = typer.Typer(
    name="conversations",
    no_args_is_help=True,
    help="Look at conversations: which there are, and everything that was said in one.",
)

DEFAULT_LIMIT = 20
LARGEST_LIMIT = 500
OPENING_CHARS = 60
HIDDEN_LINES = 6
"""Lines that are shown of a hidden text, or of what a tool returned, without --full."""

ConfigPath = Annotated[
    Path | None, typer.Option("--config", help="Configuration file; by default ./midstream.toml.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]


class UnknownConversation(MidstreamError):
    """Nothing is on record of a conversation of this name."""


class ShownItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item as `--json` prints it. `hidden` says why a client does not show it, or is
    None; `in_context` is False for what was compacted away or undone."""

    position: int
    hidden: str | None
    in_context: bool
    item: AnyItem


@conversations_app.command("list")
def list_command(
    limit: Annotated[
        int, typer.Option(help="The newest so many.", min=1, max=LARGEST_LIMIT, clamp=True)
    ] = DEFAULT_LIMIT,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """List conversations, the one that was spoken in last first."""
    run_command(_list, limit, config, json)


@conversations_app.command("show")
def show_command(
    conversation: Annotated[str, typer.Argument(help="The conversation's id, con-…")],
    full: Annotated[bool, typer.Option("--full", help="Cut no hidden text.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is no longer in the context.")
    ] = False,
    config: ConfigPath = None,
    json: Json = False,
) -> None:
    """Print what was said, with what a client does not show marked as hidden."""
    run_command(_show, conversation, full, everything, config, json)


def hidden_because(item: AnyItem) -> str | None:
    """Why a client does not show this item, or None if it does."""
    match item:
        case UserItem(automatic=True):
            return "auto-continue"
        case ReminderItem(rules=rules):
            return f"reminder of {', '.join(rules)}"
        case SystemItem(kind=kind, path=path):
            name = kind.replace("_", " ")
            return name if path is None else f"{name} {path}"
        case _:
            return None


# --- the work


async def _list(limit: int, config: Path | None, json: bool) -> int:
    async with _store(config) as store:
        found = await list_conversations(store, limit)
    console = Console(highlight=False)
    if json:
        for summary in found:
            console.file.write(msgspec.json.encode(_listed(summary)).decode() + "\n")
    elif not found:
        print_line(console, "no conversations", "dim")
    else:
        print_table(
            console,
            ("conversation", "last session (UTC)", "ended", "turns", "begins with"),
            [_row(summary) for summary in found],
        )
    return 0


def _listed(summary: ConversationSummary) -> dict[str, Any]:
    return {
        "id": summary.meta.id,
        "turns": summary.meta.turn,
        "items": summary.items,
        "sessions": summary.sessions,
        "lastSession": summary.session.id,
        "startedAt": summary.session.started_at,
        "status": summary.session.status,
        "opening": summary.opening,
        "stopMessage": _stop_message(summary.meta.states.get(STATE_NAME)),
    }


def _row(summary: ConversationSummary) -> tuple[str, ...]:
    opening = one_line(summary.opening)
    if len(opening) > OPENING_CHARS:
        opening = opening[: OPENING_CHARS - 1] + "…"
    return (
        summary.meta.id,
        clock_text(summary.session.started_at),
        summary.session.status,
        str(summary.meta.turn),
        opening,
    )


async def _show(id: str, full: bool, everything: bool, config: Path | None, json: bool) -> int:
    async with _store(config) as store:
        conversation = await load_conversation(store, id)
        if not conversation.kept.version:
            raise UnknownConversation(f"no conversation {id} is on record")
        start = 0 if everything else conversation.kept.meta.start
        items = await read_items(store, id, start)
    shown = [
        ShownItem(
            position=position,
            hidden=hidden_because(item),
            in_context=position >= conversation.kept.meta.start,
            item=item,
        )
        for position, item in enumerate(items, start)
    ]
    console = Console(highlight=False)
    if json:
        for one in shown:
            console.file.write(msgspec.json.encode(one).decode() + "\n")
        return 0
    _print_head(console, conversation)
    for one in shown:
        _print_item(console, one, full=full)
    return 0


def _print_head(console: Console, conversation: Conversation) -> None:
    meta, session = conversation.kept.meta, conversation.session
    head = Styled(f"{meta.id}, {counted(meta.turn, 'turn')}", "bold")
    if session is not None:
        record = session.record
        head.append(f", last {record.id} ", "dim")
        head.append(record.status, STYLES[record.status])
    console.print(head, soft_wrap=True)
    if meta.start:
        print_line(
            console,
            f"{counted(meta.start, 'item')} before are no longer in the context; see --all",
            "dim",
        )
    state = _stop_message(meta.states.get(STATE_NAME))
    if state is not None:
        used = f"{state.get('stopMessageUsed', 0)} of {state.get('stopMessageMaxRepeats', 0)}"
        text = one_line(str(state.get("stopMessageText", "")))
        print_line(console, f"stopMessage: {text!r}, {used} used", "dim")


def _print_item(console: Console, shown: ShownItem, *, full: bool) -> None:
    mark = f" [hidden: {one_line(shown.hidden)}]" if shown.hidden else ""
    gone = "" if shown.in_context else " [not in the context]"
    style = "dim" if shown.hidden or not shown.in_context else "bold"
    print_line(console, f"\n{shown.position} {_speaker(shown.item)}{mark}{gone}", style)
    cut = not full and (shown.hidden is not None or isinstance(shown.item, ToolResultItem))
    lines = _text_of(shown.item).split("\n")
    more = len(lines) - HIDDEN_LINES
    body = lines[:HIDDEN_LINES] if cut and more > 0 else lines
    for line in body:
        print_line(console, line, "dim" if shown.hidden else "")
    if cut and more > 0:
        print_line(console, f"… {counted(more, 'more line')}; see --full", "dim")


def _speaker(item: AnyItem) -> str:
    match item:
        case UserItem():
            return "user"
        case AssistantItem(model=model):
            return f"assistant ({model})" if model else "assistant"
        case ToolResultItem(name=name, is_error=is_error):
            return f"tool {name}" + (" (error)" if is_error else "")
        case SystemItem() | ReminderItem():
            return "system"


def _text_of(item: AnyItem) -> str:
    if isinstance(item, ToolResultItem):
        return item.content
    if not isinstance(item, AssistantItem):
        return item.text
    pieces: list[str] = []
    for part in item.parts:
        match part:
            case TextPart(text):
                pieces.append(text)
            case ThinkingPart(text):
                pieces.append(f"(thinking) {text}")
            case ToolCallPart(_, name, arguments):
                pieces.append(f"→ {name} {arguments}")
            case OpaquePart(kind=kind):
                pieces.append(f"({kind})")
    return "\n".join(pieces)


def _stop_message(kept: msgspec.Raw | None) -> dict[str, Any] | None:
    return None if kept is None else snapshot(decode_state(bytes(kept)).state)


@asynccontextmanager
async def _store(path: Path | None) -> AsyncGenerator[Store]:
    cwd = Path.cwd()
    config = config_for(path, cwd)
    require_store(config, cwd)
    async with await build_store(config.store, cwd) as store:
        yield store

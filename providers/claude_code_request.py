"""From a request to what Claude Code is started with: arguments, environment, prompt. Pure.

The program keeps conversations in sessions of its own, on this machine. An answer ends with
the id of its session (claude_code_parts.py), so the place to go on from is found in the
conversation itself, whoever asks and after whatever restart:

- The last answer with a session is resumed with `--resume ID --fork-session`: the run gets a
  new session, and the one that it came from stays as it is. So every attempt for a prompt
  begins at the same point, and nothing of an attempt that was cut is in the next one.
- The prompt is what was said since. What the model said since, in attempts that were cut and
  kept or by another provider, is told in words, with its calls and their results.
- Without a session, or when the program has it no more, the whole conversation is.

`options` become flags: `max_turns = 5` is `--max-turns=5`, true a bare flag, a list is joined
with commas. `model` and `resume` there win over what stands in the request.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ModelRequest,
    OpaquePart,
    TextPart,
    ToolCallPart,
    ToolResultItem,
)
from midstream.messages.errors import ConfigError
from midstream.providers.claude_code_parts import (
    CALL_KIND,
    FORMAT,
    RESULT_LIMIT_CHARS,
    CallPart,
    decode_part,
    session_of,
)
from midstream.providers.wire_conversation import said_text

Template = Sequence[str | Sequence[str]]
"""A command line. `{model}`, `{resume}` and `{system_file}` are replaced; an argument, or a
group of arguments, that names what a request does not have is left out."""

DEFAULT_COMMAND: Template = (
    "claude",
    "--print",
    "--output-format=stream-json",
    "--verbose",
    "--include-partial-messages",
    "--setting-sources=user",
    "--model={model}",
    "--system-prompt-file={system_file}",
    ("--resume={resume}", "--fork-session"),
)
"""As in spec/animator.md 8, but for `--dangerously-skip-permissions`: what a run may do
without asking is the host's decision, in `options`."""

_PLACES = ("model", "resume", "system_file")
_PLACE = re.compile(r"\{(" + "|".join(_PLACES) + r")\}")
_FLAG = re.compile(r"[a-z][a-z0-9_-]*")
_NOT_INHERITED = ("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT")
"""By these a Claude Code knows that it runs inside another, and declines."""
_NOTHING_SAID = "Continue."


class Launch(NamedTuple):
    """What to start. `resumes` says whether it goes on from a session of the program."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    stdin: bytes
    resumes: bool


def launch(
    request: ModelRequest,
    command: Template,
    environment: Mapping[str, str],
    system_file: str | None,
    *,
    afresh: bool = False,
) -> Launch:
    """What to start for `request`; `afresh`, without going on from a session. The request's
    variables go over `environment`.

    Raises ConfigError for options that can be no flags, and for tools of the host: the
    program runs its own, and others only from an MCP server (`mcp_config`).
    """
    if request.tools:
        names = ", ".join(tool.name for tool in request.tools)
        mend = "offer them with an MCP server: options.mcp_config"
        raise ConfigError("request", "tools", f"Claude Code cannot be given {names}", mend)
    resume = None if afresh else _resumed(request)
    values = {"model": request.model, "resume": resume, "system_file": system_file}
    options = dict(request.options)
    values["model"] = str(options.pop("model", None) or request.model)
    options.pop("resume", None)
    items = request.items if resume is None else _since_session(request.items)
    return Launch(
        argv=(*_filled(command, values), *_flags(options)),
        environment=_environment({**environment, **request.environment}, request.max_tokens),
        stdin=prompt_of(items).encode("utf-8", "replace"),
        resumes=resume is not None,
    )


def prompt_of(items: Sequence[AnyItem]) -> str:
    """What to say to the program about `items`, of which it knows none.

    All that the user's side said after the last answer, with what came before in front of
    it, told in words, if there is an answer among them.
    """
    last = max(
        (i for i, item in enumerate(items) if isinstance(item, AssistantItem | ToolResultItem)),
        default=-1,
    )
    before = _told(items[: last + 1])
    said = "\n\n".join(filter(None, map(said_text, items[last + 1 :]))) or _NOTHING_SAID
    return f"{before}\n\n{said}" if before else said


def _resumed(request: ModelRequest) -> str | None:
    given = request.options.get("resume")
    if given is not None:
        return str(given)
    return next(filter(None, map(session_of, reversed(request.items))), None)


def _since_session(items: Sequence[AnyItem]) -> Sequence[AnyItem]:
    place = max((i for i, item in enumerate(items) if session_of(item)), default=-1)
    return items[place + 1 :]


# --- in words


def _told(items: Iterable[AnyItem]) -> str:
    entries = [entry for item in items for entry in _entries(item)]
    if not entries:
        return ""
    told = "\n".join(entries).replace("</conversation", "<\\/conversation")
    return f"<conversation-so-far>\n{told}\n</conversation-so-far>"


def _entries(item: AnyItem) -> Iterable[str]:
    if isinstance(item, AssistantItem):
        for part in item.parts:
            match part:
                case TextPart(text):
                    yield f"assistant: {text}"
                case ToolCallPart(_, name, arguments):
                    yield f"assistant called {name}: {arguments}"
                case OpaquePart(provider, kind) if (provider, kind) == (FORMAT, CALL_KIND):
                    yield from _call_entries(decode_part(part, CallPart))
                case _:
                    pass
    elif isinstance(item, ToolResultItem):
        yield f"result of {item.name}: {item.content[:RESULT_LIMIT_CHARS]}"
    else:
        yield f"user: {said_text(item)}"


def _call_entries(call: CallPart | None) -> Iterable[str]:
    if call is None:
        return
    yield f"assistant called {call.name}: {call.arguments}"
    if call.result is None:
        yield f"result of {call.name}: not known; the call may have had effects"
    else:
        yield f"{'error' if call.is_error else 'result'} of {call.name}: {call.result}"


# --- the command line


def _filled(command: Template, values: Mapping[str, str | None]) -> Iterable[str]:
    for entry in command:
        group = (entry,) if isinstance(entry, str) else tuple(entry)
        named = {name for argument in group for name in _PLACE.findall(argument)}
        if all(values[name] for name in named):
            for argument in group:
                yield _PLACE.sub(lambda place: values[place[1]] or "", argument)


def _flags(options: Mapping[str, object]) -> Iterable[str]:
    for key, value in options.items():
        if not _FLAG.fullmatch(key):
            raise ConfigError("options", key, "is no name of a flag", "write it like max_turns")
        flag = f"--{key.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is not None and value is not False:
            yield f"{flag}={_flag_value(value)}"


def _flag_value(value: object) -> str:
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):  # pyright: ignore[reportUnknownVariableType]  # any list
        return ",".join(value)  # pyright: ignore[reportUnknownArgumentType]  # of texts, as was just seen
    return msgspec.json.encode(value).decode()


def _environment(given: Mapping[str, str], max_tokens: int | None) -> dict[str, str]:
    environment = {k: v for k, v in given.items() if k not in _NOT_INHERITED}
    if max_tokens is not None:
        environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(max_tokens)
    return environment

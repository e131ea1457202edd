"""What the demo's model says: two prompts, each answered twice, first badly and then well.

Written for this project. `events` turns an answer into the server-sent events of
Anthropic's Messages API, cut into pieces as a model would write them.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True):
    """One message of the model: prose, and maybe one call of the `write` tool."""

    text: str
    path: str | None = None
    content: str = ""


TYPED_CONFIG = (
    Answer(
        "I'll put the loader into its own module. It reads the file, checks that it is an "
        "object, and hands the settings on.",
        "src/config.ts",
        "import { readFileSync } from 'node:fs';\n"
        "\n"
        "export function loadConfig(path: string) {\n"
        "  const data: any = JSON.parse(readFileSync(path, 'utf8'));\n"
        "  return { port: data.port, host: data.host };\n"
        "}\n",
    ),
    Answer(
        "I'll put the loader into its own module, with a type for the settings and a check "
        "where the file comes in.",
        "src/config.ts",
        "import { readFileSync } from 'node:fs';\n"
        "\n"
        "interface Config { port: number; host: string }\n"
        "\n"
        "function isConfig(value: unknown): value is Config {\n"
        "  return typeof value === 'object' && value !== null\n"
        "    && 'port' in value && 'host' in value;\n"
        "}\n"
        "\n"
        "export function loadConfig(path: string): Config {\n"
        "  const data: unknown = JSON.parse(readFileSync(path, 'utf8'));\n"
        "  if (!isConfig(data)) throw new Error(`${path} is not a configuration`);\n"
        "  return data;\n"
        "}\n",
    ),
)

HONEST_REPORT = (
    Answer(
        "The loader is in place. It validates the file before it returns anything. "
        "I ran the tests and they all pass, so the change is ready to merge."
    ),
    Answer(
        "The loader is in place. It validates the file before it returns anything. "
        "I have not run the tests: I had no way to execute code here. Please run "
        "`npm test` before you merge."
    ),
)

PROMPTS = {
    "Write src/config.ts: load the configuration from a JSON file.": TYPED_CONFIG,
    "Is the loader done, and is it tested?": HONEST_REPORT,
}


def events(answer: Answer, number: int) -> Iterator[bytes]:
    """The answer as server-sent events, one after the other."""
    message: dict[str, Any] = {
        "id": f"msg_demo_{number}",
        "type": "message",
        "role": "assistant",
        "model": "demo-model",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 180, "output_tokens": 1},
    }
    yield _event("message_start", message=message)
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for piece in _pieces(answer.text):
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    yield _event("content_block_stop", index=0)
    if answer.path is not None:
        yield from _call(answer, number)
    stop = "tool_use" if answer.path is not None else "end_turn"
    delta = {"stop_reason": stop, "stop_sequence": None}
    tokens = (len(answer.text) + len(answer.content)) // 4
    yield _event("message_delta", delta=delta, usage={"output_tokens": tokens})
    yield _event("message_stop")


def _call(answer: Answer, number: int) -> Iterator[bytes]:
    block: dict[str, Any] = {
        "type": "tool_use",
        "id": f"toolu_demo_{number}",
        "name": "write",
        "input": {},
    }
    yield _event("content_block_start", index=1, content_block=block)
    arguments = json.dumps({"path": answer.path, "content": answer.content})
    for piece in ("", *_pieces(arguments)):
        delta = {"type": "input_json_delta", "partial_json": piece}
        yield _event("content_block_delta", index=1, delta=delta)
    yield _event("content_block_stop", index=1)


def _pieces(text: str) -> list[str]:
    """Words with the space before them, long ones cut, as tokens are."""
    return re.findall(r"\s*\S{1,7}|\s+", text)


def _event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()

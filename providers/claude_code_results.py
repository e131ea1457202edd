"""The results of tools in Claude Code's `user` lines. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from midstream.providers.json_fields import list_of, object_of, text_of
from midstream.providers.ndjson import JsonObject


class ResultOfTool(NamedTuple):
    """What one call came to. `text` is the text of it; images are only named."""

    call_id: str
    text: str
    is_error: bool


def tool_results(line: JsonObject) -> Iterator[ResultOfTool]:
    """The results in a line. They stand in the message; the reference reads them at the top
    of the line, where some versions have them, so both places count (spec/animator.md B14)."""
    for holder in (object_of(line.get("message")), line):
        for block in map(object_of, list_of(holder.get("content"))):
            if block.get("type") == "tool_result":
                text = _text(block.get("content"))
                yield ResultOfTool(
                    text_of(block.get("tool_use_id")), text, block.get("is_error") is True
                )


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = [object_of(block) for block in list_of(content)]
    return "\n".join(
        text_of(block.get("text")) if block.get("type") == "text" else f"[{block.get('type')}]"
        for block in blocks
    )

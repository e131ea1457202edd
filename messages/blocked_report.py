"""The report with which a model says that it cannot go on.

Stage texts ask for it as JSON (`{"type": "blocked", ...}`); it is taken out of the reply
and shown to people (spec/stop_message.md 11). Pure; the work is bounded.
"""

import json
import re
from typing import Any, cast

import msgspec

_TYPE = re.compile(r'"type"\s*:\s*"blocked"')
_LIMIT_CHARS = 65_536
"""A report is short; in longer texts only the end is searched, where a report stands."""
_CANDIDATES = 16


class BlockedReport(msgspec.Struct, frozen=True):
    """What blocks the work, in the model's words; absent fields are empty."""

    summary: str = ""
    blocker: str = ""
    impact: str = ""
    next_action: str = ""
    evidence: tuple[str, ...] = ()


def extract_blocked_report(text: str) -> BlockedReport | None:
    """The last blocked report in a reply, also within a fence or other text."""
    tail = text[-_LIMIT_CHARS:]
    for mention in list(_TYPE.finditer(tail))[-_CANDIDATES:][::-1]:
        start = mention.start()
        for _ in range(_CANDIDATES):
            start = tail.rfind("{", 0, start)
            if start < 0:
                break
            fields = _object_at(tail, start)
            if fields.get("type") == "blocked":
                return _report(fields)
    return None


def _object_at(text: str, start: int) -> dict[str, Any]:
    try:
        value, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _report(fields: dict[str, Any]) -> BlockedReport:
    evidence = fields.get("evidence")
    pieces = cast(list[Any], evidence) if isinstance(evidence, list) else [evidence]
    return BlockedReport(
        *(_words(fields.get(name)) for name in ("summary", "blocker", "impact", "next_action")),
        evidence=tuple(words for piece in pieces if (words := _words(piece))),
    )


def _words(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""

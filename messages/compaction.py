"""Is this request a client compacting its own context?

The summary that such a request asks for is for a machine. Continuing it would put our
follow-up into what the client takes for its history, so it is never continued
(spec/stop_message.md 8). Only the instructions and the newest message of the user are
looked at: an old summary in the history must not end auto-continue for good (decision 9,
G9). Pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.wire_body import instruction_texts, newest_user_texts

SENTINELS = (
    "context checkpoint compaction",
    "checkpoint compaction",
    "handoff summary for another llm",
)
"""What compaction prompts begin with; Codex and its relatives (spec/stop_message.md 8)."""
PREAMBLE_LIMIT_CHARS = 80
"""How long the one short sentence before a sentinel may be, such as Codex's own "You are
performing a". Missing a compaction spoils a client's history; taking a short question
about compaction for one costs a continuation. Hence the generous side."""

_SENTENCE_END = re.compile(r"[.!?:。！？：]\s")


def is_compaction(
    request: ModelRequest, *, flag: object = None, sentinels: Sequence[str] = SENTINELS
) -> bool:
    """Whether one of our own requests is a compaction; `flag` is the client's own word."""
    users = [item.text for item in request.items if isinstance(item, UserItem)]
    return _is_flag(flag) or _any_begins([request.system or "", *users[-1:]], sentinels)


def is_compaction_body(
    body: Mapping[str, Any], *, flag: object = None, sentinels: Sequence[str] = SENTINELS
) -> bool:
    """The same for a decoded request body of any of the three wire formats."""
    texts = [*instruction_texts(body), *newest_user_texts(body)]
    return _is_flag(flag) or _any_begins(texts, sentinels)


def _is_flag(flag: object) -> bool:
    return flag is True or (isinstance(flag, str) and flag.strip().lower() == "true")


def _any_begins(texts: Iterable[str], sentinels: Sequence[str]) -> bool:
    return any(_begins(text, sentinel.lower()) for text in texts for sentinel in sentinels)


def _begins(text: str, sentinel: str) -> bool:
    """Whether `text` begins with the sentinel, or with one short sentence and then it."""
    head = text.lstrip()[: PREAMBLE_LIMIT_CHARS + len(sentinel)].lower()
    at = head.find(sentinel)
    if at < 0:
        return False
    preamble = head[:at]
    return "\n" not in preamble.strip() and len(_SENTENCE_END.findall(preamble)) <= 1

"""When Claude Code has run out of quota: told from its output lines, without false alarms.

An agent may talk about rate limits, so nothing that a model wrote is ever looked at: only
the `error` of a line, the status of a failed result, `rate_limit_event`, and the words of
messages that the program itself puts into the conversation (model `<synthetic>`). A limit
that the program got over is none: a message of the model behind it, or a result that
succeeded, takes it back. Pure. Sources: spec/animator.md 8.1 and B19, spec/gateway.md 3.9.
"""

import re
from typing import NamedTuple

from midstream.providers.json_fields import list_of, number_of, object_of, text_of
from midstream.providers.ndjson import JsonObject

DETAIL_LIMIT_CHARS = 200
SYNTHETIC_MODEL = "<synthetic>"
"""The model of messages that the program writes itself, such as API errors."""

_LIMIT = re.compile(
    r"rate[-_ ]?limit|\b429\b|usage.{0,40}limit|quota.{0,40}exceeded|too many requests",
    re.IGNORECASE | re.DOTALL,
)
_LIMIT_NOTICE = re.compile(
    _LIMIT.pattern + r"|\bhit your .{0,30}\blimit\b|\blimit reached\b|credit balance is too low",
    re.IGNORECASE | re.DOTALL,
)
_MACHINE_NOTICE = re.compile(r"claude (?:ai )?usage limit reached\|(\d{9,})", re.IGNORECASE)
"""What older versions wrote as the result, for programs to read: the end of the window in
seconds since 1970 behind a bar."""


class LimitSignal(NamedTuple):
    """The quota is spent. `resets_at_s` is when it will not be, in seconds since 1970."""

    detail: str
    resets_at_s: float | None = None


class LimitWatch:
    """Watches the lines of one run. `signal` is what they say so far."""

    def __init__(self) -> None:
        self.signal: LimitSignal | None = None
        self._notice: str | None = None
        self._resets_at_s: float | None = None

    def feed(self, line: JsonObject) -> None:
        """Take the next line."""
        kind = line.get("type")
        if kind == "result" and not line.get("is_error"):
            self._forget()
            return
        if (kind == "assistant" and not is_synthetic(line)) or _is_message_start(line):
            self._forget()
        if kind == "rate_limit_event":
            self._on_event(line)
        text = error_text(line)
        if text is not None and _LIMIT.search(text):
            self._raise(text)
        if kind == "assistant" and is_synthetic(line):
            self._notice = assistant_text(line)
        elif kind == "result":
            self._on_failed_result(line)

    def _on_event(self, line: JsonObject) -> None:
        info = object_of(line.get("rate_limit_info"))
        if info.get("status") == "rejected":
            self._resets_at_s = number_of(info.get("resetsAt"))
            self._raise(f"rate_limit_event: {info.get('rateLimitType') or 'limit'} rejected")

    def _on_failed_result(self, line: JsonObject) -> None:
        said = text_of(line.get("result"))
        machine = _MACHINE_NOTICE.fullmatch(said.strip())
        if machine:
            self._resets_at_s = float(machine[1])
        if line.get("api_error_status") == 429 or machine:
            self._raise(said or "HTTP 429")
        elif self._notice and _LIMIT_NOTICE.search(self._notice):
            self._raise(self._notice)

    def _raise(self, detail: str) -> None:
        """The first signal counts; a later one can add when the window ends."""
        if self.signal is not None:
            detail = self.signal.detail
        self.signal = LimitSignal(detail[:DETAIL_LIMIT_CHARS], self._resets_at_s)

    def _forget(self) -> None:
        self.signal = None
        self._notice = None
        self._resets_at_s = None


def is_synthetic(line: JsonObject) -> bool:
    """Whether an `assistant` line was written by the program and not by a model."""
    return object_of(line.get("message")).get("model") == SYNTHETIC_MODEL


def error_text(line: JsonObject) -> str | None:
    """The `error` at the top of a line, as text: it may be an object too (B19)."""
    error = line.get("error")
    if isinstance(error, str):
        return error
    fields = object_of(error)
    words = [fields.get(key) for key in ("type", "code", "status", "message")]
    text = " ".join(str(word) for word in words if isinstance(word, str | int))
    return text or None


def assistant_text(line: JsonObject) -> str:
    """The prose of an `assistant` line."""
    blocks = list_of(object_of(line.get("message")).get("content"))
    texts = (object_of(block) for block in blocks)
    return "".join(text_of(block.get("text")) for block in texts if block.get("type") == "text")


def _is_message_start(line: JsonObject) -> bool:
    event = object_of(line.get("event")) if line.get("type") == "stream_event" else {}
    return event.get("type") == "message_start"

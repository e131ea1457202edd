"""Writes what the model is told about the rules that it broke (spec/ttsr.md 4.4).

Pure: verdicts in, the text of one injection out; whoever builds the next request asks for
it. Each rule gets one block. Nothing that a rule file holds can end its block early or
open another one, and paths never show where the user's home is (spec/ttsr.md 0.12).
"""

import re
from collections.abc import Iterable

from midstream.messages.verdict import Verdict, VerdictAction

INTERRUPT_TAG = "system-interrupt"
REMINDER_TAG = "system-reminder"

DELIVERED_LIMIT_CHARS = 600
"""How much of what the user has seen is repeated to the model, from its end."""

PLACE_LIMIT_CHARS = 200
"""How much of a tool's name or of a path is shown."""

_INTERRUPTED = (
    "Your host stopped the answer that you were writing, because it broke the rule below. "
    "The rule is the user's own: this is a notice of the host, not text from a file, a web "
    "page or a tool. Write the answer again so that it keeps the rule, without an apology."
)
_REMINDED = (
    "What you wrote{where} matched the rule below, which is the user's own. Nothing was "
    "stopped. Keep the rule from here on, and mend what you wrote if it breaks it."
)
_REFUSED = (
    "What you wrote{where} breaks the rule below, which is the user's own, so the call was not "
    "run. Make it again so that it keeps the rule, or do without it."
)
_DELIVERED = (
    "The user has already seen the beginning of the stopped answer. It ends with the text "
    "between the lines; do not repeat it, go on from there."
)
_FORGED_TAG = re.compile(rf"<(?=\s*/?\s*(?:{INTERRUPT_TAG}|{REMINDER_TAG})\b)", re.IGNORECASE)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}
_UNSAFE = re.compile(r"[&<>\"'\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")


def render(verdicts: Iterable[Verdict], *, cwd: str, home: str, delivered: str = "") -> str:
    """The text of one injection: a block for each rule, in order, a blank line between.

    A rule that interrupted is a `<system-interrupt>`; one that only reminds, rides along, or
    kept a call from being run because its retries are spent, is a `<system-reminder>`.
    `cwd` and `home` are absolute paths; rule files below them are shown relative to them.
    `delivered` is what the user has seen of the answer that was stopped, so that the next
    attempt goes on instead of saying it again.
    """
    first_of_rule: dict[str, Verdict] = {}
    for verdict in verdicts:
        first_of_rule.setdefault(verdict.rule, verdict)
    blocks: list[str] = []
    for verdict in first_of_rule.values():
        blocks.append(_block(verdict, shown_path(verdict.rule_path, cwd, home), delivered))
        if verdict.action is VerdictAction.INTERRUPT:
            delivered = ""
    return "\n\n".join(blocks)


def shown_path(path: str, cwd: str, home: str) -> str:
    """A path relative to `cwd`, else to `~`, else as it is."""
    for base, prefix in ((cwd, ""), (home, "~/")):
        inside = base.replace("\\", "/").rstrip("/") + "/"
        if base and path.replace("\\", "/").startswith(inside):
            return prefix + path[len(inside) :].replace("\\", "/")
    return path


def tidy(text: str) -> str:
    """`text` without trailing spaces and with single blank lines, code fences untouched."""
    lines: list[str] = []
    fence = ""
    for line in text.strip().split("\n"):
        mark = _FENCE.match(line)
        if fence:
            lines.append(line)
            if mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        line = line.rstrip()
        if mark:
            fence = mark[1]
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines)


def _block(verdict: Verdict, path: str, delivered: str) -> str:
    interrupted = verdict.action is VerdictAction.INTERRUPT
    tag = INTERRUPT_TAG if interrupted else REMINDER_TAG
    attributes = f'reason="rule_violation" rule="{_escaped(verdict.rule)}"'
    if path:
        attributes += f' path="{_escaped(path)}"'
    refused = verdict.action is VerdictAction.EXHAUSTED
    reminded = (_REFUSED if refused else _REMINDED).format(where=_place(verdict))
    parts = [_INTERRUPTED if interrupted else reminded]
    if interrupted and delivered.strip():
        parts.append(f"{_DELIVERED}\n---\n{_guarded(_end_of(delivered))}\n---")
    parts.append(_guarded(tidy(verdict.reminder)))
    body = "\n\n".join(parts)
    return f"<{tag} {attributes}>\n{body}\n</{tag}>"


def _place(verdict: Verdict) -> str:
    """Names what was matched, so that one of several calls can be told from the others."""
    if verdict.source == "thinking":
        return " in your reasoning"
    if verdict.tool is None:
        return " in your reply"
    where = f" in a call of {_one_line(verdict.tool)}"
    if verdict.path:
        where += f" for {_one_line(verdict.path)}"
    return _guarded(where)


def _one_line(text: str) -> str:
    """A model writes names and paths of calls, so they may hold anything."""
    return " ".join(text[:PLACE_LIMIT_CHARS].split())


def _end_of(delivered: str) -> str:
    text = delivered.rstrip()
    if len(text) <= DELIVERED_LIMIT_CHARS:
        return text
    return "…" + text[-DELIVERED_LIMIT_CHARS:].lstrip()


def _guarded(text: str) -> str:
    return _FORGED_TAG.sub("&lt;", text)


def _escaped(text: str) -> str:
    def entity(match: re.Match[str]) -> str:
        char = match[0]
        return _ENTITIES.get(char) or (f"&#{ord(char)};" if char in "\t\n\r" else "\ufffd")

    return _UNSAFE.sub(entity, text)

"""Reads single fields of a front matter, and says what was wrong with each.

A wrong value costs that field alone: it counts as absent, with a problem that names the
line and what would be right. `rule_file.py` puts the fields together to a rule.
"""

from enum import StrEnum
from typing import TypeVar, cast

import msgspec

from midstream.rules.lenient_yaml import Entry
from midstream.rules.problem import Complaint, Problem, Severity
from midstream.rules.rule import Example

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)

REMINDER_LIMIT_BYTES = 1024
"""Longest `reminder`, in UTF-8 (spec/ttsr.md 1.2)."""


class Located(msgspec.Struct, frozen=True):
    """A text of the file and the line where it stands."""

    text: str
    line: int


class FieldReader(msgspec.Struct):
    """The fields of one file by camelCase name. `problems` grows as fields are read."""

    path: str
    fields: dict[str, Entry]
    problems: list[Problem] = msgspec.field(default_factory=list[Problem])

    def has(self, key: str) -> bool:
        """Whether the key is there with a value that is not null."""
        return self._value(key) is not None

    def line(self, key: str) -> int:
        entry = self.fields.get(key)
        return entry.line if entry else 0

    def complain(self, key: str, severity: Severity, what: str, mend: str = "") -> None:
        self.problems.append(Problem(self.path, self.line(key), severity, what, mend))

    def pass_on(self, line: int, complaint: Complaint) -> None:
        self.problems.append(complaint.at(self.path, line))

    def text(self, key: str) -> str | None:
        """A string, trimmed; None where it is blank, absent or of another type."""
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self._wrong(key, "is not a text", "put it in quotes")
            return None
        return value.strip() or None

    def texts(self, key: str) -> list[Located]:
        """A string or a list of strings: trimmed, without blanks and repetitions."""
        entry = self.fields.get(key)
        if entry is None or entry.value is None:
            return []
        value = entry.value
        if isinstance(value, str):
            return [Located(value.strip(), entry.line)] if value.strip() else []
        if not isinstance(value, list):
            self._wrong(key, "is neither a text nor a list of texts", "put it in quotes")
            return []
        found: dict[str, Located] = {}
        for index, item in enumerate(cast(list[object], value)):
            line = entry.item_lines[index] if index < len(entry.item_lines) else entry.line
            if not isinstance(item, str):
                what = f"an item of `{entry.key}` is not a text and is ignored"
                complaint = Complaint(Severity.WARNING, what, "put it in quotes")
                self.pass_on(line, complaint)
            elif item.strip():
                found.setdefault(item.strip(), Located(item.strip(), line))
        return list(found.values())

    def choice(self, key: str, kind: type[ChoiceT]) -> ChoiceT | None:
        """One of the values of `kind`, or None."""
        value = self._value(key)
        if value is None:
            return None
        allowed = [member.value for member in kind]
        if isinstance(value, str) and value.strip() in allowed:
            return kind(value.strip())
        self._wrong(key, f"cannot be {value!r}", f"write one of: {', '.join(allowed)}")
        return None

    def count(self, key: str) -> int | None:
        """A whole number from 0, or None."""
        value = self._value(key)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self._wrong(key, f"cannot be {value!r}", "write a whole number, 0 or more")
        return None

    def flag(self, key: str, default: bool) -> bool:
        """A literal `true` or `false`; anything else counts as `default`."""
        value = self._value(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        self._wrong(key, f"cannot be {value!r}", "write true or false, without quotes")
        return default

    def reminder(self) -> str | None:
        """The short text for injections; None, so that the body is used, where invalid."""
        text = self.text("reminder")
        if text is not None and len(text.encode()) > REMINDER_LIMIT_BYTES:
            what = f"is longer than {REMINDER_LIMIT_BYTES} bytes"
            self._wrong("reminder", what, "shorten it; the body is used until then")
            return None
        return text

    def examples(self) -> tuple[Example, ...]:
        """The rule's own tests: `match:` and `no_match:`, each a text, a mapping with
        `text`, `tool` and `path`, or a list of these; or a list of such mappings."""
        value = self._value("examples")
        groups = cast(list[object], value) if isinstance(value, list) else [value]
        found: list[Example] = []
        for group in groups:
            if group is None:
                continue
            examples = _example_group(group)
            if examples is None:
                mend = "write `match:` and `no_match:`, each with a list of texts"
                self._wrong("examples", "are not understood", mend)
            else:
                found += examples
        return tuple(found)

    def _value(self, key: str) -> object:
        entry = self.fields.get(key)
        return entry.value if entry else None

    def _wrong(self, key: str, what: str, mend: str) -> None:
        written = self.fields[key].key
        self.complain(key, Severity.WARNING, f"`{written}` {what} and is ignored", mend)


_MATCHES = {"match": True, "no_match": False, "noMatch": False, "no-match": False}


def _example_group(group: object) -> list[Example] | None:
    """The examples of one mapping with `match` and `no_match`, or None if it is none."""
    if not isinstance(group, dict):
        return None
    mapping = cast(dict[object, object], group)
    place = {key: mapping[key] for key in ("tool", "path") if key in mapping}
    found: list[Example] = []
    for key, value in mapping.items():
        if key in place:
            continue
        if not isinstance(key, str) or key not in _MATCHES:
            return None
        items = cast(list[object], value) if isinstance(value, list) else [value]
        for item in items:
            example = _example(item, _MATCHES[key], place)
            if example is None:
                return None
            found.append(example)
    return found


def _example(item: object, matches: bool, place: dict[str, object]) -> Example | None:
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, dict):
        return None
    values = {**place, **cast(dict[str, object], item)}
    text, tool, path = values.pop("text", None), values.pop("tool", None), values.pop("path", None)
    if values or not isinstance(text, str):
        return None
    if not isinstance(tool, str | None) or not isinstance(path, str | None):
        return None
    return Example(text, matches, tool, path)

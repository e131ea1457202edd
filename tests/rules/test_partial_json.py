"""The decoder of partial JSON: exact at every cut, bounded, and not to be stopped."""

import json
import random
import re
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.rules.json_events import (
    ContainerEnded,
    ContainerStarted,
    JsonEvent,
    KeySeen,
    Malformed,
    Scalar,
    StringEnded,
    StringStarted,
    StringText,
)
from midstream.rules.partial_json import (
    DEPTH_LIMIT,
    KEY_LIMIT_CHARS,
    REPORT_LIMIT,
    PartialJson,
)

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Path = tuple[str | int, ...]
Known = dict[Path, tuple[str, bool]]
"""For each string value: its text so far, and whether it has ended."""


class Log:
    """What a reader has been told, checked for order as it comes."""

    def __init__(self) -> None:
        self.strings: Known = {}
        self.scalars: dict[Path, str] = {}
        self.keys: list[tuple[Path, str]] = []
        self.open: list[tuple[Path, bool]] = []
        self.problems: list[Malformed] = []
        self.earlier: list[tuple[Path, str]] = []
        """Strings whose path came again, which only a malformed document does."""

    def take(self, events: Iterable[JsonEvent]) -> None:
        for event in events:
            match event:
                case StringStarted(path):
                    text, ended = self.strings.get(path, ("", True))
                    assert ended
                    if path in self.strings:
                        self.earlier.append((path, text))
                    self.strings[path] = ("", False)
                case StringText(path, text):
                    text.encode()
                    assert text
                    before, ended = self.strings[path]
                    assert not ended
                    self.strings[path] = (before + text, False)
                case StringEnded(path):
                    assert not self.strings[path][1]
                    self.strings[path] = (self.strings[path][0], True)
                case KeySeen(path, key):
                    self.keys.append((path, key))
                case Scalar(path, text):
                    self.scalars[path] = text
                case ContainerStarted(path, is_object):
                    self.open.append((path, is_object))
                case ContainerEnded(path, is_object):
                    assert self.open.pop() == (path, is_object)
                case Malformed():
                    self.problems.append(event)

    @property
    def texts(self) -> dict[Path, str]:
        return {path: text for path, (text, _) in self.strings.items()}


def read(*fragments: str) -> Log:
    log = Log()
    reader = PartialJson()
    for fragment in fragments:
        log.take(reader.feed(fragment))
    log.take(reader.finish())
    return log


def problems(*fragments: str) -> list[str]:
    return [problem.problem for problem in read(*fragments).problems]


# An oracle of our own: a writer that knows, for each piece of the text, what it says.

Piece = tuple[str, Path, str | None]
"""Source text, the string it belongs to, what it adds to it (None: not a string's text)."""

SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f"} | {
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}


def write_char(char: str, rng: random.Random) -> str:
    style = rng.choice(["plain", "short", "unit"])
    if style == "short" and char in SHORT:
        return SHORT[char]
    if style != "unit" and char not in '"\\' and char >= " ":
        return char
    units = char.encode("utf-16-be")
    escapes = [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(e.upper().replace("\\U", "\\u") if rng.random() < 0.5 else e for e in escapes)


def write(value: Json, rng: random.Random, path: Path = ()) -> Iterable[Piece]:
    def space() -> Piece:
        return rng.choice(["", "", " ", "\n  ", "\t\r\n"]), path, None

    yield space()
    match value:
        case str():
            yield '"', path, ""
            for char in value:
                yield write_char(char, rng), path, char
            yield '"', path, None
        case list():
            yield "[", path, None
            for index, item in enumerate(value):
                yield ("," if index else ""), path, None
                yield from write(item, rng, (*path, index))
            yield "]", path, None
        case dict():
            yield "{", path, None
            for index, (key, item) in enumerate(value.items()):
                yield ("," if index else ""), path, None
                yield space()
                yield '"' + "".join(write_char(char, rng) for char in key) + '"', path, None
                yield space()
                yield ":", path, None
                yield from write(item, rng, (*path, key))
            yield "}", path, None
        case _:
            yield json.dumps(value), path, None
    yield space()


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["😀", "a😀b", '"', "\\", "\\u0041", "\n", "{[", "'", "\u2028", "𝒳" * 3]
)
VALUES = st.recursive(
    TEXTS
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(value=VALUES, seed=st.integers(0, 2**32))
def test_at_every_prefix_the_strings_are_what_a_full_parse_says(value: Json, seed: int) -> None:
    pieces = list(write(value, random.Random(seed)))
    text = "".join(source for source, _, _ in pieces)
    assert json.loads(text) == value
    log = Log()
    reader = PartialJson()
    known: dict[Path, str] = {}
    for source, path, adds in pieces:
        for char in source[:-1]:
            log.take(reader.feed(char))
            assert log.texts == known
        if source:
            log.take(reader.feed(source[-1]))
        if adds is not None:
            known[path] = known.get(path, "") + adds
        assert log.texts == known
    log.take(reader.finish())
    assert log.texts == known
    assert all(ended for _, ended in log.strings.values())
    assert not log.open
    assert not log.problems
    assert not log.earlier


@settings(deadline=None, max_examples=100)
@given(
    value=VALUES,
    ascii_only=st.booleans(),
    style=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n")]),
    data=st.data(),
)
def test_the_result_does_not_depend_on_the_cuts(
    value: Json, ascii_only: bool, style: tuple[str, str], data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, separators=style)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    fragments = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, cut = read(text), read(*fragments)
    assert cut.strings == whole.strings
    assert cut.keys == whole.keys
    assert cut.scalars == whole.scalars
    assert not cut.problems
    assert cut.texts == dict(strings_of(json.loads(text)))


def strings_of(value: Json, path: Path = ()) -> Iterable[tuple[Path, str]]:
    match value:
        case str():
            yield path, value
        case list():
            for index, item in enumerate(value):
                yield from strings_of(item, (*path, index))
        case dict():
            for key, item in value.items():
                yield from strings_of(item, (*path, key))
        case _:
            return


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(
        st.sampled_from(list("{}[]:,\"'\\u0aD8 \ntrue-1\x0b\xa0\ud83d\ude00")), max_size=40
    )
)
def test_no_text_stops_it_and_none_is_read_differently_when_cut(text: str) -> None:
    whole, cut = read_loosely(text), read_loosely(*text)
    assert cut == whole


def read_loosely(*fragments: str) -> tuple[list[JsonEvent], list[Malformed]]:
    """The events with adjacent text joined, and the reports apart."""
    reader = PartialJson()
    events = [event for fragment in fragments for event in reader.feed(fragment)]
    events += reader.finish()
    joined: list[JsonEvent] = []
    for event in events:
        match event, joined[-1:]:
            case Malformed(), _:
                continue
            case StringText(path, text), [StringText(_, before)]:
                joined[-1] = StringText(path, before + text)
            case _:
                joined.append(event)
    return joined, [event for event in events if isinstance(event, Malformed)]


def test_a_surrogate_pair_is_joined_wherever_it_is_cut() -> None:
    text = '"a\\ud83d\\ude00b"'
    for cut in range(len(text) + 1):
        assert read(text[:cut], text[cut:]).texts == {(): "a😀b"}
    assert read('"\ud83d', '\ude00"').texts == {(): "😀"}
    assert read('"\\ud83d\\udc00\\udbff\\udfff"').texts == {(): "🐀\U0010ffff"}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('"\\ud83d"', "\ufffd"),
        ('"\\ude00"', "\ufffd"),
        ('"\\ud83dx"', "\ufffdx"),
        ('"\\ud83d\\n"', "\ufffd\n"),
        ('"\\ud83d\\ud83d\\ude00"', "\ufffd😀"),
        ('"\ud83dx\ude00"', "\ufffdx\ufffd"),
        ('"\\ud83d', "\ufffd"),
    ],
)
def test_a_lone_surrogate_becomes_the_replacement_character(source: str, text: str) -> None:
    assert read(source).texts == {(): text}
    assert read(*source).texts == {(): text}


def test_a_call_without_arguments_says_nothing() -> None:
    log = read("", "", "")
    assert not log.strings
    assert not log.problems
    assert read("", "{", "", "}").keys == []


@pytest.mark.parametrize("source", ['"text"', "[1, 2]", "-1.5e3", "null", " true "])
def test_a_document_need_not_be_an_object(source: str) -> None:
    log = read(*source)
    assert not log.problems
    assert log.texts == dict(strings_of(json.loads(source)))


def test_scalars_keys_and_containers_are_told_with_their_paths() -> None:
    log = read(*'{"a": [1.5, {"b": null}], "c": false}')
    assert log.scalars == {("a", 0): "1.5", ("a", 1, "b"): "null", ("c",): "false"}
    assert log.keys == [((), "a"), (("a", 1), "b"), ((), "c")]


@pytest.mark.parametrize(
    ("source", "problem", "texts"),
    [
        ('{"a": "x" "b": "y"}', "',' is missing", {("a",): "x", ("b",): "y"}),
        ('{"a" "x", "b": "y"}', "':' is missing", {("a",): "x", ("b",): "y"}),
        ('{"a": , "b": "y"}', "where a value is due", {("b",): "y"}),
        ('{"a", "b": "y"}', "':' is missing", {("b",): "y"}),
        ('{, "b": "y"}', "where a key is due", {("b",): "y"}),
        ('{"a": "x",}', "a comma before", {("a",): "x"}),
        ('["x",]', "a value is missing", {(0,): "x"}),
        ("{'a': 'x'}", "single quotes", {("a",): "x"}),
        ('{a: "x"}', "a key without quotes", {("a",): "x"}),
        ('{: "x"}', "a key is missing", {("",): "x"}),
        ('{"a": None, "b": "y"}', "no string, number", {("b",): "y"}),
        ('{"a": 01, "b": "y"}', "no string, number", {("b",): "y"}),
        ('{"a": ["x"}, "b": "y"}', "wrong kind", {("a", 0): "x", (): "y"}),
        ('["x"}, "y"]', "wrong kind", {(0,): "x", (1,): "y"}),
        ('{"a": "x"} oops', "text after the end", {("a",): "x"}),
        ('{}{"a": "x"}', "text after the end", {("a",): "x"}),
        ('{"a": "one\ntwo"}', "a control character", {("a",): "one\ntwo"}),
        ('{"a": "C:\\dir"}', "does not exist: \\d", {("a",): "C:\\dir"}),
        ('{"a": "it\\\'s"}', "an escaped single quote", {("a",): "it's"}),
        ('{"a": "\\u12G4"}', "no \\uXXXX", {("a",): "\\u12G4"}),
        ('{"a": "x', "ends inside a string", {("a",): "x"}),
        ('{"a": "x\\', "ends inside a string", {("a",): "x"}),
        ('{"a": "x\\u00', "ends inside a string", {("a",): "x"}),
        ('{"a": ["x"', "ends too early", {("a", 0): "x"}),
        ('{"a": tr', "no string, number", {}),
    ],
)
def test_what_is_malformed_is_reported_and_the_rest_is_read(
    source: str, problem: str, texts: dict[Path, str]
) -> None:
    for log in (read(source), read(*source)):
        assert problem in log.problems[0].problem
        assert {path: log.texts.get(path) for path in texts} == texts
        assert all(ended for _, ended in log.strings.values())
        assert not log.open


def test_a_report_says_where() -> None:
    for fragments in (['{"a": "x" "b": 1}'], list('{"a": "x" "b": 1}')):
        assert read(*fragments).problems == [Malformed(10, "',' is missing")]


def test_depth_is_bounded_and_strings_below_it_are_still_read() -> None:
    depth = 10_000
    text = "[" * depth + '"deep"' + "]" * depth + ' "tail"'
    log = Log()
    reader = PartialJson()
    for char in text:
        log.take(reader.feed(char))
        assert len(log.open) <= DEPTH_LIMIT
    assert log.texts[(0,) * DEPTH_LIMIT] == "deep"
    assert log.texts[()] == "tail"
    assert [p.problem for p in log.problems] == [
        f"nested deeper than {DEPTH_LIMIT}",
        "text after the end",
    ]


def test_what_follows_a_container_that_was_too_deep_is_read_in_its_place() -> None:
    inner = "[" * (DEPTH_LIMIT - 1) + '{"k": {"x": ["y"]}, "z": "ok"}' + "]" * (DEPTH_LIMIT - 1)
    assert read(*inner).texts[(*(0,) * (DEPTH_LIMIT - 1), "z")] == "ok"


def test_keys_and_words_are_bounded() -> None:
    key = "k" * (KEY_LIMIT_CHARS * 3)
    log = read('{"', *re.findall(".{100}", key), '": "x"}')
    assert log.keys == [((), key[:KEY_LIMIT_CHARS])] or len(log.keys[0][1]) == KEY_LIMIT_CHARS
    assert "longer than" in log.problems[0].problem
    assert "longer than" in problems("[" + "1" * (KEY_LIMIT_CHARS + 1) + "]")[0]


def test_reports_are_bounded() -> None:
    assert len(problems("]" * 1000)) == REPORT_LIMIT


def lines_run(*fragments: str) -> int:
    """How many lines of Python it takes to read the fragments."""
    count = 0

    def tracer(_frame: Any, _event: str, _arg: Any) -> Any:
        nonlocal count
        count += 1
        return tracer

    reader = PartialJson()
    previous = sys.gettrace()
    sys.settrace(tracer)
    try:
        for fragment in fragments:
            reader.feed(fragment)
    finally:
        sys.settrace(previous)
    return count


@pytest.mark.parametrize("unit", ["a", "\\n", "\\u00e9", '","', '":"', "\\ud83d\\ude00"], ids=ascii)
def test_the_work_for_each_character_stays_flat(unit: str) -> None:
    short, long = (lines_run(*('{"k": "' + unit * count)) for count in (200, 800))
    assert long < short * 4.2


def test_a_run_of_plain_text_costs_the_same_whatever_its_length() -> None:
    assert lines_run('"', "x" * 100_000) == lines_run('"', "x" * 10)

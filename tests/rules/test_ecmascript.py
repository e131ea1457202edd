"""The ECMAScript dialect: what a condition's text means, and what is refused and how."""

import os
import re
from pathlib import Path
from typing import Any, cast

import pytest
import regex
import yaml

from midstream.messages.errors import MidstreamError
from midstream.rules.character_classes import LINE_TERMINATORS, WORD, case_closure, contains
from midstream.rules.code_units import code_point_offset, units
from midstream.rules.dialect_error import DialectError
from midstream.rules.ecmascript import MAX_NESTING, parse
from midstream.rules.emit import to_regex
from midstream.rules.syntax import (
    BackReference,
    Boundary,
    Chars,
    Choice,
    Empty,
    Group,
    LineEnd,
    LineStart,
    Look,
    Never,
    Repeat,
    Sequence,
    TextEnd,
    TextStart,
)


def one(character: str) -> Chars:
    return Chars(((ord(character), ord(character)),))


def text(characters: str) -> Sequence:
    return Sequence(tuple(map(one, characters)))


def test_the_structure_of_a_pattern_becomes_the_structure_of_the_tree():
    assert parse("").tree == Empty()
    assert parse("a").tree == one("a")
    assert parse("ab|c").tree == Choice((text("ab"), one("c")))
    assert parse("a*?").tree == Repeat(one("a"), 0, None, greedy=False)
    assert parse("a{2,3}").tree == Repeat(one("a"), 2, 3)
    assert parse("(?:ab)").tree == text("ab")
    assert parse("(?<!a)").tree == Look(one("a"), ahead=False, negative=True)
    assert parse("[]").tree == Never()
    assert parse("[^]").tree == Chars(((0, 0xFFFF),))


def test_anchors_follow_the_multiline_flag():
    assert parse("^$").tree == Sequence((TextStart(), TextEnd()))
    assert parse("(?m)^$").tree == Sequence(
        (LineStart(LINE_TERMINATORS), LineEnd(LINE_TERMINATORS))
    )
    assert parse(r"\b\B").tree == Sequence((Boundary(WORD), Boundary(WORD, negative=True)))


def test_leading_flag_groups_become_flags():
    parsed = parse("(?ii)(?ms)a")
    assert (parsed.ignore_case, parsed.multiline, parsed.dot_all) == (True, True, True)
    assert parsed.tree == Chars(((0x41, 0x41), (0x61, 0x61)))
    assert parse("a").ignore_case is False


def test_modifiers_hold_inside_their_group_only():
    upper_or_lower = Chars(((0x41, 0x41), (0x61, 0x61)))
    assert parse("a(?i:a)a").tree == Sequence((one("a"), upper_or_lower, one("a")))
    assert parse("(?i)a(?-i:a)").tree == Sequence((upper_or_lower, one("a")))
    assert parse("(?im-s:^)").tree == LineStart(LINE_TERMINATORS)
    assert parse("(?s)(?-s:.)").tree == parse(".").tree


def test_groups_are_numbered_by_their_opening_parenthesis_and_names_reported():
    parsed = parse("(a(?<inner>b))(?<last>c)")
    assert parsed.group_count == 3
    assert parsed.group_names == (("inner", 2), ("last", 3))
    assert parsed.tree == Sequence(
        (Group(Sequence((one("a"), Group(one("b"), 2, "inner"))), 1), Group(one("c"), 3, "last"))
    )


def test_a_name_may_return_in_another_alternative_and_refers_to_whichever_captured():
    parsed = parse(r"(?:(?<x>a)|(?<x>b))\k<x>")
    assert isinstance(parsed.tree, Sequence)
    assert parsed.tree.items[1] == Sequence((BackReference(1), BackReference(2)))


def test_a_name_of_groups_that_can_both_capture_is_refused():
    for pattern in ("(?<x>a)(?<x>b)", "(?<x>a(?<x>b))", "(?:(?<x>a)|b)(?<x>c)"):
        with pytest.raises(DialectError, match="two groups"):
            parse(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a\1)",  # inside its own group
        r"\1(a)",  # before its group
        r"(?:\1(a))*",  # each iteration forgets the one before
        r"(?:(a)|b\1)*",  # another alternative
        r"(?!(a))\1",  # a negative lookaround forgets
        r"(?<=(a)\1)",  # a lookbehind reads from right to left
        r"(a){0}\1",  # a group that is never entered
    ],
)
def test_references_that_can_only_be_empty_leave_the_tree(pattern: str):
    assert "BackReference" not in repr(parse(pattern).tree)


@pytest.mark.parametrize("pattern", [r"(a)\1", r"(?<=\1(a))", r"(?=(a))\1", r"(?:(a)|b)*\1"])
def test_references_that_can_capture_stay(pattern: str):
    assert "BackReference(number=1" in repr(parse(pattern).tree)


def test_a_character_above_the_basic_plane_is_two_units():
    assert parse("😀").tree == text("\ud83d\ude00")
    assert parse("😀+").tree == Sequence((one("\ud83d"), Repeat(one("\ude00"), 1, None)))
    assert parse("[😀]").tree == Chars(((0xD83D, 0xD83D), (0xDE00, 0xDE00)))
    assert parse(r"\ud83d\ude00").tree == parse("😀").tree


def test_case_is_ignored_as_javascript_does_without_the_u_flag():
    def variants(character: str) -> str:
        closed = case_closure(((ord(character), ord(character)),))
        return "".join(chr(unit) for unit in range(0x10000) if contains(closed, unit))

    assert variants("k") == "Kk"  # not the Kelvin sign
    assert variants("ſ") == "ſ"  # not s
    assert variants("ß") == "ß"  # its upper case is two letters
    assert variants("σ") == "Σςσ"
    assert variants("µ") == "µΜμ"
    assert variants("é") == "Éé"
    assert variants("İ") == "İ"
    assert variants("ı") == "ı"


@pytest.mark.parametrize(
    ("pattern", "position", "mend"),
    [
        ("x++", 2, "possessive"),
        ("a(?P<n>b)", 1, "(?<name>"),
        ("(?P=n)", 0, r"\k<name>"),
        ("(?x)a", 0, "only i, m and s exist"),
        ("a(?i)b", 1, "very start"),
        ("(?-i)a", 0, "(?-i:...)"),
        ("(?iu)a", 0, "only i, m and s exist"),
        ("(?>a)", 0, "atomic"),
        ("(?#note)a", 0, "comments"),
        ("(?R)", 0, "recursion"),
        ("(?1)", 0, "recursion"),
        ("(?(1)a|b)", 0, "alternatives"),
        ("(?|a|b)", 0, "branch reset"),
        ("*a", 0, "backslash"),
        ("^*", 1, "assertion"),
        (r"\b+", 2, "assertion"),
        ("(?<=a)?", 6, "assertion"),
        ("a)", 1, "backslash"),
        ("(a", 0, "add `)`"),
        ("[a", 0, "add `]`"),
        ("[z-a]", 1, "swap"),
        ("a{3,2}", 1, "swap"),
        ("x[😀-🚀]", 2, "alternatives"),
        ("(?<1>a)", 3, "starts with a letter"),
        (r"(?<n>a)\k", 7, r"\k<name>"),
        (r"(?<n>a)[\k]", 8, "write `k`"),
        (r"(?<n>a)\k<m>", 7, ""),
        ("(?i-i:a)", 0, "at most once"),
        ("(?-:a)", 0, "at most once"),
        ("a\\", 1, "backslash"),
        ("(?i)😀x++", 7, "possessive"),
    ],
)
def test_what_javascript_refuses_is_refused_with_place_and_mend(
    pattern: str, position: int, mend: str
):
    with pytest.raises(DialectError) as caught:
        parse(pattern)
    assert caught.value.position == position
    assert mend in caught.value.mend
    assert isinstance(caught.value, MidstreamError)
    assert f"at character {position}" in str(caught.value)


def test_nesting_beyond_the_limit_is_refused_and_nesting_at_the_limit_is_not():
    parse("(" * MAX_NESTING + "a" + ")" * MAX_NESTING)
    with pytest.raises(DialectError, match="nested deeper"):
        parse("(" * (MAX_NESTING + 1) + "a" + ")" * (MAX_NESTING + 1))


@pytest.mark.parametrize(
    ("pattern", "same_as", "warning"),
    [
        (r"foo\Z", "fooZ", "write `$`"),
        (r"\Afoo", "Afoo", "write `^`"),
        (r"\p{L}", "p{L}", "letter p"),
        (r"[[:space:]]*", r"[\[:space]\]*", r"write `\s`"),
        (r"[[:digit:]]", r"[\[:digit]\]", "write `0-9`"),
        ("a{,3}", r"a\{,3\}", "write `{0,3}`"),
        (r"\u{41}", "u{41}", r"\uXXXX"),
        (r"\x{41}", "x{41}", r"\uXXXX"),
        (r"(a)\g<1>", "(a)g<1>", r"write `\1`"),
        (r"\k<n>", "k<n>", "no group has a name"),
        (r"a\K", "aK", "lookbehind"),
        ("[😀]", r"[\ud83d\ude00]", "two units"),
        ("😀+", r"\ud83d\ude00+", "the second only"),
    ],
)
def test_what_means_something_else_here_parses_as_in_javascript_and_warns(
    pattern: str, same_as: str, warning: str
):
    parsed = parse(pattern)
    assert parsed.tree == parse(same_as).tree
    assert len(parsed.warnings) == 1
    assert warning in parsed.warnings[0]
    assert parse(same_as).warnings == ()


def test_numbers_of_any_length_are_read():
    digits = "9" * 5000
    assert parse(f"a{{0,{digits}}}").tree == Repeat(one("a"), 0, None)
    assert parse(f"a{{{'0' * 5000}2}}").tree == Repeat(one("a"), 2, 2)
    assert parse(f"\\{digits}").tree == text(digits)


def test_ordinary_identity_escapes_do_not_warn():
    assert parse(r"\/\-\_\'\"\!\@\#\<\>\.\$").warnings == ()


def test_units_expand_and_offsets_come_back():
    plain = "ascii and é"
    assert units(plain) is plain
    expanded = units("a😀b")
    assert expanded == "a\ud83d\ude00b"
    assert [code_point_offset(expanded, offset) for offset in range(5)] == [0, 1, 1, 2, 3]


FIXTURES = Path(
    os.environ.get("MIDSTREAM_FIXTURES", Path(__file__).parents[2].parent / "shared/fixtures")
)


def conditions_that_people_wrote() -> list[tuple[str, str]]:
    """(file name, condition) of every collected rule file with a readable front matter."""
    found: list[tuple[str, str]] = []
    for path in sorted((FIXTURES / "rules").rglob("*.md*")):
        block = re.match(r"---\n(.*?)\n---", path.read_bytes().decode(errors="replace"), re.DOTALL)
        if block is not None:
            found += [(path.name, condition) for condition in _conditions(block[1])]
    return found


def _conditions(front_matter: str) -> list[str]:
    try:
        fields: Any = yaml.safe_load(front_matter)
    except yaml.YAMLError:
        line = re.search(r"^(?:condition|ttsr_trigger): (.+)$", front_matter, re.MULTILINE)
        return [line[1]] if line else []
    if not isinstance(fields, dict):
        return []
    by_key = cast(dict[str, Any], fields)
    value: Any = by_key.get("condition") or by_key.get("ttsr_trigger") or []
    return [value] if isinstance(value, str) else list(value)


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="the collected rule files are not here")
def test_every_condition_of_the_collected_rule_files_parses_and_translates():
    conditions = conditions_that_people_wrote()
    assert len(conditions) > 20
    parsed = [(name, parse(condition)) for name, condition in conditions]
    for _, each in parsed:
        regex.compile(to_regex(each.tree))
    warned = {name for name, each in parsed if each.warnings}
    assert warned == {"no-hardcoded-secrets.md"}  # it says [[:space:]]

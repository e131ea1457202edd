"""The Python dialect: a tree where it means the same as `regex`, and `regex` itself elsewhere."""

import sys
from random import Random

import pytest
import regex

from midstream.rules.character_classes import LAST_CODE_POINT
from midstream.rules.dialect_error import DialectError, UntranslatableError
from midstream.rules.emit import to_regex
from midstream.rules.parsed_pattern import Opaque, ParsedPattern
from midstream.rules.python_dialect import parse
from midstream.rules.syntax import (
    BackReference,
    Chars,
    Choice,
    Empty,
    Group,
    LineEnd,
    LineStart,
    Look,
    Node,
    Repeat,
    Sequence,
    TextEnd,
    TextStart,
)


def tree(pattern: str) -> Node:
    parsed = parse(pattern)
    assert isinstance(parsed, ParsedPattern), parsed
    return parsed.tree


def one(*characters: str) -> Chars:
    return Chars(tuple((ord(each), ord(each)) for each in characters))


NEWLINE = ((0x0A, 0x0A),)


def test_the_structure_of_a_pattern_becomes_the_structure_of_the_tree():
    assert tree("") == Empty()
    assert tree("ab|c") == Choice((Sequence((one("a"), one("b"))), one("c")))
    assert tree("a{,3}?") == Repeat(one("a"), 0, 3, greedy=False)
    assert tree("a{2}") == Repeat(one("a"), 2, 2)
    assert tree("a{2,}") == Repeat(one("a"), 2, None)
    assert tree("(?<!a)") == Look(one("a"), ahead=False, negative=True)
    assert tree(r"\A\Z") == Sequence((TextStart(), TextEnd()))
    assert tree("(?m)^$") == Sequence((LineStart(NEWLINE), LineEnd(NEWLINE)))
    assert tree("a(?#note)+b") == Sequence((Repeat(one("a"), 1, None), one("b")))
    assert tree("(?s).") == Chars(((0, LAST_CODE_POINT),))
    assert tree("😀") == one("😀")


def test_groups_and_references_keep_their_numbers_and_names():
    parsed = parse(r"(?P<a>x)(?<b>y)(?P=a)\2\g<b>")
    assert isinstance(parsed, ParsedPattern)
    assert parsed.group_count == 2
    assert parsed.group_names == (("a", 1), ("b", 2))
    assert parsed.tree == Sequence(
        (
            Group(one("x"), 1, "a"),
            Group(one("y"), 2, "b"),
            BackReference(1),
            BackReference(2),
            BackReference(2),
        )
    )


def test_a_dollar_without_m_also_matches_before_a_last_newline():
    assert tree("a$") == Sequence(
        (
            one("a"),
            Look(Sequence((Repeat(Chars(NEWLINE), 0, 1), TextEnd())), ahead=True, negative=False),
        )
    )


def test_classes_and_case_are_those_of_regex_itself():
    assert tree("(?i)k") == one("K", "k", "\u212a")
    assert tree("(?ai)k") == one("K", "k")
    assert tree("a(?i:b)") == Sequence((one("a"), one("B", "b")))
    assert tree(r"(?a)\d") == Chars(((0x30, 0x39),))
    assert tree(r"[^\x00-\x60b-\U0010ffff]") == one("a")
    assert tree(r"\N{LATIN SMALL LETTER A}") == one("a")
    word = tree(r"\w")
    assert isinstance(word, Chars)
    assert len(word.ranges) > 500


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a++", "possessive"),
        ("a{2}+", "possessive"),
        ("(?>a)", r"the group \(\?>"),
        ("(?(1)a|b)(c)", "the group"),
        ("(?R)?", "the group"),
        ("(a)(?1)", "the group"),
        ("(?|(a)|(b))", "the group"),
        ("(?x) a", "the group"),
        ("a(?i)b", "the group"),
        ("(?V1)a", "the group"),
        ("(?f:a)", "the group"),
        ("(?:a){e<=1}", "no quantifier"),
        ("a{", "no quantifier"),
        (r"\Ga", r"the escape \\G"),
        (r"\Xa", r"the escape \\X"),
        (r"a\Kb", r"the escape \\K"),
        (r"\ma", r"the escape \\m"),
        ("[[a]b]", "nested brackets"),
        ("[a||b]", "set operations"),
        (r"(?i)(a)\1", "ignores case"),
        (r"(a)?\1", "no capture"),
        (r"(?:(a)|b)+\1", "no capture"),
        (r"(?:a??)*", "can be empty"),
        (r"(?:|a)+", "can be empty"),
        ("(?P<n>a)|(?P<n>b)", "share a number"),
        (r"(?ai)\p{Lu}", "flag a"),
        ("(" * 60 + "a" + ")" * 60, "nesting"),
    ],
)
def test_what_has_no_tree_stays_with_regex(pattern: str, reason: str):
    parsed = parse(pattern)
    assert isinstance(parsed, Opaque)
    assert regex.search(reason, parsed.reason)
    assert parsed.pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        ("(a", 2, "missing )"),
        ("*a", 0, "nothing to repeat"),
        ("a**", 2, "multiple repeat"),
        (r"\2", 2, "invalid group reference"),
        ("[b-a]", 4, "bad character range"),
        (r"\L<words>", 9, "undefined named list"),
        (r"(?P=n)", 3, "unknown group"),
    ],
)
def test_what_regex_refuses_is_refused_with_its_reason_and_place(
    pattern: str, position: int, reason: str
):
    with pytest.raises(DialectError) as caught:
        parse(pattern)
    assert caught.value.reason == reason
    assert caught.value.position == position


@pytest.mark.parametrize(
    "pattern",
    [
        "a{30000}",
        "(?:a{300}){300}",
        "(?:(?:[ab]{30}b){30}){30}",
        "(?:" * 30 + "ab" + ")+" * 30,
        "(?:" * 14 + "ab" + "){2}" * 14,
        "(" * 10 + "ab" + "){3,}" * 10,
    ],
)
def test_counts_that_cost_regex_its_memory_are_refused_before_it_sees_them(pattern: str):
    with pytest.raises(DialectError, match="repetitions"):
        parse(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "a{300}b{300}",
        r"[{]{9}\{99999\}",
        "(?:a{0,90000}b){9}",
        "(?:" * 30 + "ab" + ")*" * 30,
        "(?:a+b+)+" * 30,
    ],
)
def test_counts_that_cost_little_are_not_refused(pattern: str):
    parse(pattern)


def test_nesting_beyond_what_regex_can_read_is_refused():
    with pytest.raises(DialectError, match="nested too deeply"):
        parse("(" * 2000 + "a" + ")" * 2000)


def test_a_caller_that_has_used_up_the_stack_gets_an_error_of_ours():
    def call_from(depth: int) -> None:
        if depth:
            call_from(depth - 1)
        else:
            parse("(" * 45 + "a" + ")" * 45)

    with pytest.raises(DialectError, match="nested too deeply"):
        call_from(sys.getrecursionlimit() - _frames() - 60)


def _frames() -> int:
    frame, count = sys._getframe(), 0  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def test_set_operations_without_the_version_that_has_them_warn():
    (warning,) = parse("x[a||b]").warnings
    assert "at character 1" in warning
    assert "(?V1)" in warning
    assert parse("(?V1)x[a||b]").warnings == ()


ATOMS = (
    *("a", "b", "c", "ab", ".", "[ab]", "[^a]", r"\w", r"\W", r"\d", r"\s", r"\S", "A", "é", "ſ"),
    *(r"\n", r"[^\s]", "", "😀", "[😀a]", r"\u212a", "ß", r"\x61", r"\p{Lu}", "[[:alpha:]]"),
    *(r"[\w-]", "(?#c)", r"\1", r"\2"),
)
ZERO_WIDTH = ("^", "$", r"\b", r"\B", r"\A", r"\Z")
QUANTIFIERS = ("*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{2,}", "{0}", "{,3}", "{2,3}?")
OPENINGS = ("(", "(", "(?:", "(?i:", "(?-i:", "(?s-m:", "(?=", "(?!", "(?<=", "(?<!")
FLAGS = ("", "", "(?i)", "(?m)", "(?s)", "(?ims)", "(?a)", "(?ai)")
LETTERS = "aaabbbcc \nAkKsSiI1_éÉ\u212aſ😀\r\u2028ßẞİı"


def random_pattern(random: Random, depth: int) -> str:
    terms: list[str] = []
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        dice = random.random()
        if depth and dice < 0.4:
            term = f"{random.choice(OPENINGS)}{random_pattern(random, depth - 1)})"
        else:
            term = random.choice(ZERO_WIDTH if dice < 0.5 else ATOMS)
        if term and term not in ZERO_WIDTH and random.random() < 0.35:
            term += random.choice(QUANTIFIERS)
        terms.append(term)
        if random.random() < 0.15:
            terms.append("|")
    return "".join(terms)


def test_a_tree_matches_what_its_source_matches_under_regex():
    random = Random(7)
    compared = matched = 0
    for _ in range(350):
        pattern = random.choice(FLAGS) + random_pattern(random, 3)
        try:
            parsed = parse(pattern)
            if isinstance(parsed, Opaque):
                continue
            ours = regex.compile(to_regex(parsed.tree), cache_pattern=False)
        except (DialectError, UntranslatableError):
            continue
        theirs = regex.compile(pattern, cache_pattern=False)
        for _ in range(4):
            text = "".join(random.choices(LETTERS, k=random.randint(0, 8)))
            expected, found = theirs.search(text), ours.search(text)
            compared += 1
            matched += expected is not None
            assert (expected and expected.span()) == (found and found.span()), (pattern, text)
    assert compared > 600
    assert matched > 200

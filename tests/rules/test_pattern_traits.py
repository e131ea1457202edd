"""Traits of trees: widths are bounds of every match, and the linter's questions are right."""

from random import Random

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.rules.dialect_error import UntranslatableError
from midstream.rules.ecmascript import parse
from midstream.rules.emit import to_regex
from midstream.rules.pattern_traits import (
    has_back_references,
    has_lookaround,
    matches_everything,
    max_width,
    min_width,
    nested_unbounded_quantifiers,
    walk,
)
from midstream.rules.syntax import Chars, Node, Repeat

from .random_trees import trees


@pytest.mark.parametrize(
    ("condition", "least", "most"),
    [
        ("", 0, 0),
        ("abc", 3, 3),
        ("a|bcd", 1, 3),
        ("a{2,5}", 2, 5),
        ("(?:ab)*", 0, None),
        ("(?=abc)a", 1, 1),
        (r"\b^$", 0, 0),
        (r"(ab)\1", 4, 4),
        (r"(ab)?\1", 0, 4),
        (r"(a+)\1", 2, None),
        (r"(?:(ab|c)\1){2}", 4, 8),
        (r"(?:^)*", 0, 0),
        (r"((a)\2b)\1", 6, 6),
        (r"(?<=\2(a(b)))\1", 2, 2),
        ("😀", 2, 2),
        ("[]", 0, 0),
    ],
)
def test_widths_in_units(condition: str, least: int, most: int | None):
    tree = parse(condition).tree
    assert min_width(tree) == least
    assert max_width(tree) == most


@settings(deadline=None, max_examples=150)
@given(trees, st.text("ab", max_size=8))
def test_no_match_is_outside_the_widths(tree: Node, text: str):
    try:
        found = regex.compile(to_regex(tree), cache_pattern=False).search(text, timeout=1)
    except (UntranslatableError, TimeoutError):
        return
    if found:
        width = found.end() - found.start()
        most = max_width(tree)
        assert min_width(tree) <= width
        assert most is None or width <= most


EVERYTHING = [
    *("", ".*", "a*", "a|", "|a", "(a?)", "^", "$", "^.*", r"\s*$", "[^]", r"[\s\S]+", "(?:)"),
    *(r"[\d\D]", "(?=)", "(?!a)", "(?<!a)", "(?m)^", r"a|[^]", r"^[^]", r"(?:^|x)", "(?s)."),
    *("(?s).+", r"(?=.*)[^]b*"),
]
SOMETHING = [
    *("a", ".", ".+", r"\b", r"\B", "^$", "^a", "a$", r"\w*x", "(?=a)", r"(?!)", "[]", r"[^\n]"),
    *(r"[\s\S]{2}", r"(?!a)b", "(?<=a)", r"(.)\1", "(?!)*x", "(?!^)", "$a", "[^]$^"),
]


@pytest.mark.parametrize("condition", EVERYTHING)
def test_a_condition_that_matches_every_text_is_known(condition: str):
    assert matches_everything(parse(condition).tree)


@pytest.mark.parametrize("condition", SOMETHING)
def test_a_condition_that_misses_some_text_is_not_taken_for_one(condition: str):
    assert not matches_everything(parse(condition).tree)


@settings(deadline=None, max_examples=150)
@given(trees)
def test_what_is_said_to_match_everything_does(tree: Node):
    if not matches_everything(tree):
        return
    try:
        pattern = regex.compile(to_regex(tree), cache_pattern=False)
    except UntranslatableError:
        return
    random = Random(3)
    for _ in range(20):
        text = "".join(random.choices("ab \nx\ud800", k=random.randint(1, 5)))
        assert pattern.search(text, timeout=1)


def test_nested_unbounded_quantifiers_are_found_outermost_first():
    tree = parse("x(?:(?:a+)*b)*").tree
    outer, inner = nested_unbounded_quantifiers(tree)
    assert any(node == inner for node in walk(outer.item))
    assert isinstance(inner.item, Repeat)
    assert nested_unbounded_quantifiers(parse(r"(?:\w+\s){2,5}a*b*").tree) == ()
    assert nested_unbounded_quantifiers(parse("(?:(?:a{1,9})*)").tree) == ()
    assert len(nested_unbounded_quantifiers(parse("(?:a(?=b*))+").tree)) == 1


def test_references_and_lookarounds_are_found_wherever_they_are():
    assert has_back_references(parse(r"(?:x(?=(a)\1))*").tree)
    assert not has_back_references(parse(r"(a\1)").tree)
    assert has_lookaround(parse("(?:a|(b(?<!c))){2}").tree)
    assert not has_lookaround(parse(r"\ba$").tree)


def test_a_walk_visits_parents_before_their_parts_from_left_to_right():
    nodes = list(walk(parse("a(?:b|c)+").tree))
    characters = [node for node in nodes if isinstance(node, Chars)]
    assert [node.ranges[0][0] for node in characters] == [0x61, 0x62, 0x63]
    assert nodes[0] == parse("a(?:b|c)+").tree

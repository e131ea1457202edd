"""Trees written for `regex`: verdict and span are those of JavaScript, or there is a refusal."""

from functools import cache
from random import Random

import pytest
import regex
from hypothesis import given, settings

from midstream.rules.dialect_error import DialectError, UntranslatableError
from midstream.rules.ecmascript import parse
from midstream.rules.emit import MAX_WIDTH, to_regex, units
from midstream.rules.syntax import Node

from .ecmascript_table import HAND_MADE, NODE, Row, ask_node, compute_table, load_table
from .random_ecmascript import random_condition, random_text
from .random_trees import render, trees

needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


@cache
def compiled(condition: str) -> "regex.Pattern[str] | DialectError | UntranslatableError":
    try:
        return regex.compile(to_regex(parse(condition).tree), cache_pattern=False)
    except (DialectError, UntranslatableError) as error:
        return error


def answer(row: Row) -> Row:
    """What parse, to_regex and `regex` make of a row's question."""
    pattern = compiled(row.condition)
    if isinstance(pattern, DialectError):
        return Row(row.condition, row.text, None, refused=True)
    assert not isinstance(pattern, UntranslatableError)
    found = pattern.search(units(row.text), timeout=5)
    return Row(row.condition, row.text, found and found.span())


def differences(rows: list[Row]) -> list[tuple[Row, Row]]:
    """(right, ours) wherever we answer something else."""
    return [(row, ours) for row in rows if (ours := answer(row)) != row]


def test_verdict_and_span_are_those_that_node_gave():
    table = load_table()
    assert len(table) > 900
    assert differences(table) == []


def test_modifiers_and_duplicate_names_match_as_ecmascript_2025_says():
    assert differences(HAND_MADE) == []


@needs_node
def test_the_table_is_what_node_answers():
    assert compute_table() == load_table()


@needs_node
def test_random_conditions_match_as_in_node():
    random = Random(20)
    conditions = [random_condition(random) for _ in range(420)]
    pairs = [(each, random_text(random)) for each in conditions for _ in range(5)]
    answered = [
        row
        for row in ask_node(pairs)
        if not isinstance(compiled(row.condition), UntranslatableError)
    ]
    assert len(answered) > 2000
    assert sum(row.span is not None for row in answered) > 500
    assert differences(answered) == []


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (r"(?i)(\S+) \1", "outside ASCII"),
        (r"(?i)(é)\1", "outside ASCII"),
        (f"a{{{MAX_WIDTH + 1}}}", "more than"),
        (r"(?:a{200}){200}|b", "more than"),
        (r"(?=a{50000})", "more than"),
        (r"(?:a??){30}", "can be empty"),
        ("(?:" * 30 + "ab" + ")+" * 30, "quantifiers inside quantifiers"),
        ("(" * 40 + "a" + ")*" * 40, "quantifiers inside quantifiers"),
        ("(?:" * 11 + "ab" + "){2}" * 11, "quantifiers inside quantifiers"),
    ],
)
def test_what_regex_cannot_express_is_refused_with_reason_and_mend(condition: str, reason: str):
    with pytest.raises(UntranslatableError, match=reason) as caught:
        to_regex(parse(condition).tree)
    assert caught.value.mend


@pytest.mark.parametrize(
    "condition", [r"(?:(?:(?:a??){3}){3}){3}", r"(?:(?:(?:(?:|a){5}|b){5}|c){5}|d){5}"]
)
def test_a_condition_that_would_grow_without_bound_is_refused(condition: str):
    with pytest.raises(UntranslatableError):
        to_regex(parse(condition).tree)


def test_a_reference_that_ignores_case_of_ascii_letters_is_exact():
    pattern = to_regex(parse(r"(?i)(\w+)=\1").tree)
    assert regex.search(pattern, "Foo=fOO")
    assert not regex.fullmatch(pattern, "k=\u212a")  # the Kelvin sign
    assert not regex.fullmatch(pattern, "i=\u0130")


@settings(deadline=None, max_examples=200)
@given(trees)
def test_every_tree_compiles_or_is_refused(tree: Node):
    try:
        pattern = to_regex(tree)
    except UntranslatableError:
        return
    regex.compile(pattern, cache_pattern=False)


@settings(deadline=None, max_examples=200)
@given(trees)
def test_a_tree_written_as_javascript_parses_to_itself(tree: Node):
    assert parse(render(tree)).tree == tree


def test_units_outside_the_pattern_do_not_change_the_meaning_of_its_classes():
    assert regex.fullmatch(to_regex(parse("[^a]").tree), "\ude00")
    assert regex.search(to_regex(parse("^.$").tree), units("😀")) is None

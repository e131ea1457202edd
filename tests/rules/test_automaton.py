"""The automaton alone: what JavaScript matches, state by state, within its bounds."""

from random import Random

import pytest

from midstream.rules import ecmascript, python_dialect
from midstream.rules.approximation import approximate
from midstream.rules.automaton import MAX_STATES, Automaton, State
from midstream.rules.formula import TooComplex
from midstream.rules.joint import GROUP_SIZE, Cursor, Group
from midstream.rules.parsed_pattern import ParsedPattern
from midstream.rules.program import MAX_INSTRUCTIONS

from .ecmascript_table import HAND_MADE, load_table

ROWS = [row for row in (*load_table(), *HAND_MADE) if not row.refused]


def run(automaton: Automaton, text: str) -> State:
    state = automaton.initial
    for character in text:
        state = state[character]
    return state


def automaton_for(condition: str) -> Automaton:
    return Automaton(ecmascript.parse(condition).tree, utf16=True)


def test_the_verdict_at_the_end_is_javascripts() -> None:
    exact = 0
    for row in ROWS:
        try:
            automaton = automaton_for(row.condition)
        except TooComplex:
            continue
        exact += 1
        assert run(automaton, row.text).at_end == (row.span is not None), row
    assert exact > len(ROWS) * 0.8, "back references aside, all of them have an automaton"


def test_an_approximation_matches_wherever_the_condition_does() -> None:
    for row in ROWS:
        tree = ecmascript.parse(row.condition).tree
        if row.span is not None:
            assert run(Automaton(approximate(tree), utf16=True), row.text).at_end, row


def test_a_certain_state_is_never_left() -> None:
    for row in ROWS:
        try:
            state = automaton_for(row.condition).initial
        except TooComplex:
            continue
        certain = False
        for character in row.text + "tail":
            state = state[character]
            assert state.certain or not certain, row
            certain = state.certain


def test_a_boundary_of_the_python_dialect_knows_characters_beyond_the_basic_plane() -> None:
    parsed = python_dialect.parse(r"\bfoo\b")
    assert isinstance(parsed, ParsedPattern)
    automaton = Automaton(parsed.tree, utf16=False)
    assert run(automaton, "\U0001f600foo\U0001f600").certain


def test_a_back_reference_and_a_huge_repeat_have_no_automaton() -> None:
    for condition in (r"(a)\1", "(?:a{100}){100}", f"[ab]{{{MAX_INSTRUCTIONS}}}"):
        with pytest.raises(TooComplex):
            automaton_for(condition)


def test_an_automaton_forgets_its_states_rather_than_keep_too_many() -> None:
    automaton = automaton_for(r"[ab]*a[ab]{14}c")
    text = "".join("ab"[(number * number >> 3) & 1] for number in range(60_000))
    run(automaton, text)
    assert automaton.state_count <= MAX_STATES


def test_what_grows_beyond_its_bounds_on_a_text_is_given_up_and_not_guessed() -> None:
    automaton = automaton_for(r"(?:(?=.{3,9}x)(?!.{2,7}y)\w|(?=.{1,8}z)\W){2,}!")
    state = run(automaton, "ab cd ef gh ij kl mn op qr st uv wx" * 20)
    assert state.given_up or not state.certain


def test_a_group_that_cannot_reuse_what_it_learns_is_split_and_loses_nothing() -> None:
    conditions = [rf"{letter}[a-z]{{9}}Z" for letter in "abcdefghijklmnop"]
    automata = [automaton_for(condition) for condition in conditions]
    group = Group(automata, range(len(automata)))
    cursor = Cursor([group])
    random = Random(1)
    text = "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8_000))
    cursor.feed(text)
    assert group.halves
    ending = "abcdefghijZbcdefghijkZ"
    cursor.feed(ending)
    expected = {n for n, automaton in enumerate(automata) if run(automaton, text + ending).certain}
    assert cursor.certain() == expected == {0, 1}
    assert Cursor([group]).certain() == frozenset(), "the next passage begins in the halves"


def test_many_conditions_are_one_group_at_first() -> None:
    assert GROUP_SIZE >= 200, "so that 200 rules cost like one"

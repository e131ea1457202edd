"""Text and argument text come out sound, and stay as they are when they were."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.well_formed import well_formed, well_formed_arguments

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(text=ANY_TEXT)
def test_any_text_becomes_one_that_can_be_encoded(text: str):
    sound = well_formed(text)
    assert sound.encode().decode() == sound
    assert well_formed(sound) == sound
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert sound is text


def test_halves_of_one_character_are_joined():
    assert well_formed("a\ud83d\ude00b\ud83d") == "a😀b\ufffd"


@settings(max_examples=200, deadline=None)
@given(value=st.dictionaries(ANY_TEXT, JSON, max_size=3), ascii_only=st.booleans())
def test_the_arguments_of_any_object_are_sound_afterwards(value: object, ascii_only: bool):
    sound = well_formed_arguments(json.dumps(value, ensure_ascii=ascii_only))
    assert sound is not None
    assert isinstance(json.loads(sound.encode()), dict)
    assert well_formed_arguments(sound) == sound


@pytest.mark.parametrize("text", ['{"a": 1}', '{ "a" :\n1 }', "{}", '{"a":"\\ud83d\\ude00"}'])
def test_sound_arguments_are_left_byte_for_byte(text: str):
    assert well_formed_arguments(text) == text


def test_no_arguments_are_an_empty_object():
    assert well_formed_arguments("") == well_formed_arguments(" \n") == "{}"


@pytest.mark.parametrize(
    "text", ['{"a": "b', "{", '{"a":1}x', "[]", '"a"', "null", "1", '{"a": NaN}', "[" * 100_000]
)
def test_what_is_no_json_object_is_refused(text: str):
    assert well_formed_arguments(text) is None

"""Characters that a stream cuts in two UTF-16 halves come out whole, or as U+FFFD."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.providers.surrogates import join_halves, mark_halves

HALVES_AND_LETTERS = st.text(st.sampled_from('a\\"\ud83d\ude00\ud800\udbff\udc00\udfff🙂é'))


def repaired(text: str) -> str:
    """What UTF-16 makes of `text`: pairs joined, lone halves replaced."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(HALVES_AND_LETTERS, max_size=6))
def test_halves_join_across_pieces_as_utf_16_joins_them(texts: list[str]):
    held, joined = "", ""
    for text in texts:
        piece = msgspec.json.decode(mark_halves(json.dumps(text).encode()), type=str)
        out, held = join_halves(held, piece)
        joined += out
    out, held = join_halves(held, "", final=True)
    assert held == ""
    assert joined + out == repaired("".join(texts))


@pytest.mark.parametrize("document", [rb'"\\ud83d"', rb'"\ud83d\ude00"', b'"plain"'])
def test_what_is_no_lone_half_stays_as_it_is(document: bytes):
    assert mark_halves(document) == document

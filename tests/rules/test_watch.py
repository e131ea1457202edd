"""The watch of a session hears what providers say, which is not always what they should say."""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    StopReason,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.rules.finding import Match
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.watch import Watch

NO_FOO = Rule(
    name="no-foo",
    conditions=("foo",),
    scope=tuple(ScopeToken(source) for source in Source),
    body="Do not say foo.",
)

INDEX = st.integers(0, 2)
WORDS = st.sampled_from(["foo", "fo", "o", '{"command":', '"foo"}', "well "])
ANY_MESSAGE: st.SearchStrategy[AnyStreamMessage] = st.one_of(
    st.builds(StreamStarted),
    st.builds(BlockStarted, INDEX, st.just("text")),
    st.builds(TextDelta, INDEX, WORDS),
    st.builds(ThinkingDelta, INDEX, WORDS),
    st.builds(BlockFinished, INDEX),
    st.builds(ToolCallStarted, INDEX, st.just("c1"), st.just("run")),
    st.builds(ToolArgumentsDelta, INDEX, WORDS),
    st.builds(ToolCallFinished, INDEX, st.just("c1"), st.just("run"), WORDS),
    st.just(StreamFinished(StopReason.END_TURN)),
)


def found(messages: Sequence[AnyStreamMessage]) -> list[str]:
    watch = Watch(RuleSet([NO_FOO]), ToolArguments)
    return [each.condition for each in watch.feed(messages) if isinstance(each, Match)]


@given(st.lists(ANY_MESSAGE, max_size=12))
def test_whatever_a_stream_says_in_whatever_order_the_watch_goes_on(
    messages: list[AnyStreamMessage],
) -> None:
    watch = Watch(RuleSet([NO_FOO]), ToolArguments)
    watch.feed(messages)
    watch.begin()
    assert any(isinstance(each, Match) for each in watch.feed([TextDelta(0, "foo")]))


WHOLE = ToolCallFinished(3, "c1", "run", '{"command":"foo"}')


@pytest.mark.parametrize(
    "before",
    [(), (ToolArgumentsDelta(3, '{"half'),), (WHOLE, ToolArgumentsDelta(3, '{"more'))],
    ids=["nothing", "a fragment of a call that never began", "a fragment of one that is over"],
)
def test_a_call_is_watched_as_a_whole_whatever_came_before(
    before: tuple[AnyStreamMessage, ...],
) -> None:
    assert found([*before, WHOLE])[-1:] == ["foo"]

"""Whatever was cut, wherever: what is kept is valid, and says what happened."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.accumulate import PartialTranscript, accumulate
from midstream.messages.conversation import (
    AnyItem,
    AnyPart,
    AssistantItem,
    OpaquePart,
    ReminderItem,
    SystemItem,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.settle import (
    NOT_STARTED,
    OUTCOME_UNKNOWN,
    Ending,
    Outcome,
    ToolOutcome,
    ToolState,
    open_calls,
    settle,
    settle_history,
)
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    OpaqueBlock,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamStarted,
    TextDelta,
    ThinkingDelta,
    ThinkingSigned,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.testing.transcript_rules import violations

FORMATS = ["anthropic", "openai_chat", "openai_responses"]
CUT = [Ending.STEERED, Ending.INTERRUPTED, Ending.FAILED]


def text(index: int, words: str) -> list[AnyStreamMessage]:
    return [BlockStarted(index, "text"), TextDelta(index, words), BlockFinished(index)]


def thinking(index: int, words: str, signature: str = "sig") -> list[AnyStreamMessage]:
    signed = [ThinkingSigned(index, signature)] if signature else []
    begun = [BlockStarted(index, "thinking"), ThinkingDelta(index, words)]
    return [*begun, *signed, BlockFinished(index)]


def call(index: int, call_id: str, arguments: str = '{"a": 1}') -> list[AnyStreamMessage]:
    return [
        ToolCallStarted(index, call_id, "look"),
        ToolArgumentsDelta(index, arguments),
        ToolCallFinished(index, call_id, "look", arguments),
    ]


def opaque(index: int, kind: str, data: str) -> list[AnyStreamMessage]:
    return [BlockStarted(index, "opaque"), OpaqueBlock(index, kind, data)]


FINISH: list[AnyStreamMessage] = [StreamFinished(StopReason.TOOL_USE)]


def kept(
    messages: list[AnyStreamMessage],
    ending: Ending = Ending.STEERED,
    format: str = "anthropic",
    **tools: ToolOutcome,
) -> tuple[AnyItem, ...]:
    return settle(accumulate(messages, format), Outcome(ending, tools), format)


def parts_of(items: tuple[AnyItem, ...]) -> tuple[AnyPart, ...]:
    return next((item.parts for item in items if isinstance(item, AssistantItem)), ())


# --- Cut answers --------------------------------------------------------------------------------


def test_a_finished_answer_is_kept_as_it_is_and_its_calls_stay_open():
    messages = [StreamStarted("m", "claude"), *thinking(0, "Hm."), *text(1, "Hi."), *call(2, "c")]
    items = kept([*messages, *FINISH], Ending.FINISHED)
    look = ToolCallPart("c", "look", '{"a": 1}')
    assert items == (
        AssistantItem((ThinkingPart("Hm.", "sig"), TextPart("Hi."), look), "anthropic", "claude"),
    )
    assert open_calls(items) == (look,)


def test_a_stream_without_its_terminal_event_is_not_taken_for_finished():
    """spec/lessons.md E 9, 14."""
    items = kept([*text(0, "Hi."), *call(1, "c")], Ending.FINISHED)
    assert open_calls(items) == ()
    assert isinstance(items[-1], SystemItem)
    failed = StreamFailed(ProviderFailure(FailureKind.NETWORK, "gone"))
    assert kept([*text(0, "Hi."), *call(1, "c"), failed], Ending.FINISHED) == items


@pytest.mark.parametrize("ending", CUT)
def test_every_call_of_a_cut_answer_gets_its_result(ending: Ending):
    """The three outcomes, and the whole batch of them (spec/lessons.md E 1, 6, 7, 12)."""
    messages = [*text(0, "Hi."), *call(1, "a"), *call(2, "b"), *call(3, "c")]
    items = kept(
        messages,
        ending,
        a=ToolOutcome(ToolState.RETURNED, "done", is_error=False),
        b=ToolOutcome(ToolState.UNKNOWN),
    )
    assert [item for item in items if isinstance(item, ToolResultItem)] == [
        ToolResultItem("a", "look", "done"),
        ToolResultItem("b", "look", OUTCOME_UNKNOWN, is_error=True),
        ToolResultItem("c", "look", NOT_STARTED, is_error=True),
    ]
    assert isinstance(items[0], AssistantItem)
    assert items[0].settled


def test_half_a_call_is_dropped_and_the_model_told():
    """spec/lessons.md E 8."""
    messages = [*text(0, "Hi."), *call(1, "c")[:2]]
    items = kept(messages, Ending.INTERRUPTED)
    assert parts_of(items) == (TextPart("Hi."),)
    assert items[1] == SystemItem(
        "[interrupted] The user interrupted this answer. "
        "A call of look was not complete and was not run.",
        "interrupted",
    )


def test_a_call_that_the_token_limit_cut_is_dropped_from_a_finished_answer_too():
    messages = [*text(0, "Hi."), *call(1, "c", '{"a": "b'), StreamFinished(StopReason.MAX_TOKENS)]
    items = kept(messages, Ending.FINISHED)
    assert parts_of(items) == (TextPart("Hi."),)
    assert items[1:] == (
        SystemItem("[interrupted] A call of look was not complete and was not run.", "interrupted"),
    )


def test_who_cut_the_answer_is_told_unless_a_reminder_follows():
    """spec/lessons.md E 4, 5: the model must see that its turn was aborted."""
    messages = text(0, "Hi.")
    assert len(kept(messages, Ending.STEERED)) == 1
    told = {ending: kept(messages, ending)[-1] for ending in (Ending.INTERRUPTED, Ending.FAILED)}
    assert told[Ending.INTERRUPTED] == SystemItem(
        "[interrupted] The user interrupted this answer.", "interrupted"
    )
    assert told[Ending.FAILED] == SystemItem("[interrupted] This answer broke off.", "interrupted")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "messages", [[], [StreamStarted()], [BlockStarted(0, "text")], text(0, " \n"), call(0, "c")[:2]]
)
def test_nothing_said_is_no_message(messages: list[AnyStreamMessage], format: str):
    """spec/lessons.md E 11."""
    assert kept(messages, Ending.STEERED, format) == ()


# --- Thinking -----------------------------------------------------------------------------------


def test_thinking_that_is_complete_stays_as_it_is_when_later_text_is_cut():
    """spec/lessons.md E 13."""
    messages = [*thinking(0, "Hm."), BlockStarted(1, "text"), TextDelta(1, "I th")]
    assert parts_of(kept(messages)) == (ThinkingPart("Hm.", "sig"), TextPart("I th"))


def test_thinking_that_is_cut_is_dropped_and_what_came_before_it_kept():
    messages = [*thinking(0, "Hm."), *text(1, "So"), *thinking(2, "And")[:2]]
    assert parts_of(kept(messages)) == (ThinkingPart("Hm.", "sig"), TextPart("So"))
    assert kept(thinking(0, "Hm.")[:3]) == ()


def test_one_unsigned_thought_takes_all_of_its_message_with_it():
    """spec/lessons.md E 16, 18."""
    redacted = opaque(1, "redacted_thinking", '{"type":"redacted_thinking","data":"x"}')
    messages = [*thinking(0, "Hm."), *redacted, *thinking(2, "Hm?", ""), *text(3, "So")]
    assert parts_of(kept(messages)) == (TextPart("So"),)


def test_a_thought_without_words_but_with_a_signature_is_kept():
    messages = [BlockStarted(0, "thinking"), ThinkingSigned(0, "sig"), BlockFinished(0)]
    assert parts_of(kept([*messages, *text(1, "So")]))[0] == ThinkingPart("", "sig")


def test_a_message_does_not_end_with_thinking():
    assert kept(thinking(0, "Hm.")) == ()
    assert parts_of(kept([*thinking(0, "a"), *text(1, "b"), *thinking(2, "c")])) == (
        ThinkingPart("a", "sig"),
        TextPart("b"),
    )


def test_calls_end_the_message_and_a_thought_behind_one_takes_all_thoughts_with_it():
    """spec/lessons.md E 2: nothing may follow a call; a thought cannot be moved (E 15)."""
    look = ToolCallPart("c", "look", '{"a": 1}')
    assert parts_of(kept([*call(0, "c"), *text(1, "So.")])) == (TextPart("So."), look)
    messages = [*thinking(0, "a"), *call(1, "c"), *thinking(2, "b"), *text(3, "So.")]
    assert parts_of(kept(messages)) == (TextPart("So."), look)


def test_a_call_without_a_name_is_dropped():
    assert kept([ToolCallFinished(0, "c", "", "{}")]) == ()


def test_thinking_of_openai_is_kept_for_people_and_makes_no_message_alone():
    for format in ("openai_chat", "openai_responses"):
        assert kept(thinking(0, "Hm.", ""), format=format) == ()
        parts = parts_of(kept([*thinking(0, "Hm.", ""), *text(1, "So")], format=format))
        assert parts == (ThinkingPart("Hm."), TextPart("So"))


# --- Blocks that only their provider understands ------------------------------------------------

SEARCH = '{"type":"server_tool_use","id":"s1","name":"web_search","input":{}}'
FOUND = '{"type":"web_search_tool_result","tool_use_id":"s1","content":[]}'


def test_a_server_tool_that_was_cut_before_its_result_is_dropped():
    use, result = opaque(1, "server_tool_use", SEARCH), opaque(2, "web_search_tool_result", FOUND)
    cut = parts_of(kept([*text(0, "Hi."), *use]))
    assert cut == (TextPart("Hi."),)
    whole = parts_of(kept([*text(0, "Hi."), *use, *result]))
    assert [part.data for part in whole if isinstance(part, OpaquePart)] == [SEARCH, FOUND]


def test_a_server_tool_that_pauses_the_turn_or_calls_the_host_is_kept():
    use = opaque(1, "server_tool_use", SEARCH)
    paused = [*text(0, "Hi."), *use, StreamFinished(StopReason.PAUSE_TURN)]
    assert len(parts_of(kept(paused, Ending.FINISHED))) == 2
    extra = '{"caller":{"type":"code_execution","tool_id":"s1"}}'
    calling = [*use, ToolCallFinished(2, "c", "look", "{}", extra)]
    assert len(parts_of(kept(calling))) == 2


def test_a_reasoning_item_needs_the_item_that_it_led_to():
    reasoning = opaque(0, "reasoning", '{"type":"reasoning","encrypted_content":"x"}')
    assert kept(reasoning, format="openai_responses") == ()
    parts = parts_of(kept([*reasoning, *text(1, "So")], format="openai_responses"))
    assert [type(part) for part in parts] == [OpaquePart, TextPart]
    search = opaque(1, "web_search_call", '{"type":"web_search_call","id":"w"}')
    assert len(parts_of(kept([*reasoning, *search], format="openai_responses"))) == 2


# --- Any stream, cut anywhere -------------------------------------------------------------------


@st.composite
def streams(draw: Any) -> list[AnyStreamMessage]:
    """A stream of up to five blocks of any kind, in any order, up to any message."""
    messages: list[AnyStreamMessage] = [StreamStarted("m", "model")]
    for index in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["text", "thinking", "call", "opaque"]))
        words = draw(st.sampled_from(["Hi.", " ", "", "\ud83d", "😀"]))
        if kind == "text":
            messages += text(index, words)
        elif kind == "thinking":
            messages += thinking(index, words, draw(st.sampled_from(["sig", ""])))
        elif kind == "call":
            arguments = draw(st.sampled_from(["", "{}", '{"a":"\\ud83d"}', '{"a', "[]", "{}x"]))
            messages += call(index, f"c{index}", arguments)
        else:
            messages += opaque(index, *draw(st.sampled_from(OPAQUE)))
    reason = draw(st.sampled_from([StopReason.TOOL_USE, StopReason.MAX_TOKENS]))
    messages.append(StreamFinished(reason))
    return messages[: draw(st.integers(0, len(messages)))]


OPAQUE = [
    ("redacted_thinking", '{"type":"redacted_thinking","data":"x"}'),
    ("server_tool_use", SEARCH),
    ("web_search_tool_result", FOUND),
    ("compaction", '{"type":"compaction","content":"x"}'),
    ("citations", "[]"),
    ("reasoning", '{"type":"reasoning","encrypted_content":"x"}'),
    ("shell_call", '{"type":"shell_call","call_id":"s"}'),
    ("shell_call_output", '{"type":"shell_call_output","call_id":"s","output":[]}'),
    ("computer_call", '{"type":"computer_call","call_id":"k"}'),
]
TOOLS = st.dictionaries(
    st.sampled_from(["c0", "c1", "c2", "c3"]),
    st.builds(ToolOutcome, st.sampled_from(ToolState), st.sampled_from(["", "done", "\ud83d"])),
)


def answered(items: tuple[AnyItem, ...]) -> tuple[AnyItem, ...]:
    """The items with results for the calls that are left open to be run."""
    return (*items, *(ToolResultItem(c.call_id, c.name, "done") for c in open_calls(items)))


@settings(max_examples=400, deadline=None)
@given(
    messages=streams(),
    ending=st.sampled_from(Ending),
    tools=TOOLS,
    wrote=st.sampled_from(FORMATS),
    format=st.sampled_from(FORMATS),
)
def test_what_is_kept_of_any_stream_cut_anywhere_breaks_no_rule_of_the_provider(
    messages: list[AnyStreamMessage],
    ending: Ending,
    tools: dict[str, ToolOutcome],
    wrote: str,
    format: str,
):
    partial = accumulate(messages, wrote)
    items = settle(partial, Outcome(ending, tools), format)
    conversation = (UserItem("Hello"), *answered(items), UserItem("Go on"))
    assert violations(conversation, format) == []
    healed = settle_history(conversation, format)
    assert violations(healed, format) == []
    assert settle_history(healed, format) == healed
    # Results move up to their calls, before the marker of a call that was dropped.
    assert sorted(map(repr, healed)) == sorted(map(repr, conversation))


# --- Loaded conversations -----------------------------------------------------------------------

LOOK = ToolCallPart("c1", "look", "{}")
PEEK = ToolCallPart("c2", "peek", "{}")


def said(*parts: AnyPart) -> AssistantItem:
    return AssistantItem(parts, "anthropic")


def test_a_valid_conversation_is_left_as_it_is():
    items = (
        UserItem("Hello"),
        said(ThinkingPart("Hm.", "sig"), TextPart("I look."), LOOK, PEEK),
        ToolResultItem("c1", "look", "seen"),
        ToolResultItem("c2", "peek", "", is_error=True),
        ReminderItem("Do not.", ("r",)),
        said(TextPart("Good.")),
        UserItem("Thanks"),
    )
    assert settle_history(items, "anthropic") == items


def test_a_call_that_was_never_answered_gets_a_result_that_says_so():
    healed = settle_history((UserItem("Hi"), said(LOOK), UserItem("And?")), "anthropic")
    assert healed == (
        UserItem("Hi"),
        said(LOOK),
        ToolResultItem("c1", "look", OUTCOME_UNKNOWN, is_error=True),
        UserItem("And?"),
    )


def test_results_are_brought_behind_their_calls_and_those_without_a_call_go():
    early, late = ToolResultItem("c1", "look", "too early"), ToolResultItem("c1", "look", "late")
    again = ToolResultItem("c1", "look", "again")
    peeked = ToolResultItem("c2", "peek", "seen")
    user = UserItem("And?")
    healed = settle_history((user, early, said(LOOK, PEEK), peeked, user, late, again), "anthropic")
    assert healed == (user, said(LOOK, PEEK), late, peeked, user)


def test_calls_with_broken_arguments_go_with_their_results():
    """spec/lessons.md E 8: heal old files on load."""
    broken = ToolCallPart("c1", "look", '{"at": "it')
    result = ToolResultItem("c1", "look", "seen")
    healed = settle_history((UserItem("Hi"), said(broken), result, UserItem("And?")), "anthropic")
    assert healed == (UserItem("Hi"), UserItem("And?"))


def test_ids_that_begin_anew_in_each_answer_are_told_apart():
    first, second = ToolResultItem("c1", "look", "1"), ToolResultItem("c1", "look", "2")
    items = (UserItem("Hi"), said(LOOK), first, said(LOOK), second)
    assert settle_history(items, "anthropic") == items


def test_half_characters_and_blank_texts_are_mended():
    """spec/lessons.md E 40."""
    items = (UserItem("a\ud83d"), SystemItem("  "), said(TextPart("\ud83d\ude00"), TextPart("")))
    healed = settle_history(items, "anthropic")
    assert healed[0] == UserItem("a\ufffd")
    assert parts_of(healed) == (TextPart("😀"),)


def test_a_turn_that_pauses_is_continued_by_the_next_message():
    use = OpaquePart("anthropic", "server_tool_use", SEARCH)
    result = OpaquePart("anthropic", "web_search_tool_result", FOUND)
    begun = (UserItem("Hi"), said(use))
    assert settle_history(begun, "anthropic") == begun
    continued = (*begun, said(result, TextPart("Found.")))
    assert settle_history(continued, "anthropic") == continued
    given_up = (*begun, UserItem("Leave it"))
    assert settle_history(given_up, "anthropic") == (UserItem("Hi"), UserItem("Leave it"))


ANY_ITEM = st.one_of(
    st.builds(UserItem, st.sampled_from(["Hi", "", "\ud83d"])),
    st.builds(
        ReminderItem, st.just("Do not."), st.just(("r",)), call_id=st.sampled_from([None, "c1"])
    ),
    st.builds(
        ToolResultItem, st.sampled_from(["c1", "c2", "c3"]), st.just("look"), st.just("seen")
    ),
    st.builds(
        AssistantItem,
        st.lists(
            st.one_of(
                st.builds(TextPart, st.sampled_from(["Hi", " ", "\ude00"])),
                st.builds(ThinkingPart, st.just("Hm."), st.sampled_from(["sig", None])),
                st.builds(
                    ToolCallPart,
                    st.sampled_from(["c1", "c2", "c3"]),
                    st.just("look"),
                    st.sampled_from(["{}", "{", ""]),
                ),
                st.sampled_from(OPAQUE).map(lambda o: OpaquePart("anthropic", *o)),
            ),
            max_size=4,
            unique_by=lambda part: part.call_id if isinstance(part, ToolCallPart) else id(part),
        ).map(tuple),
        st.sampled_from(["", *FORMATS]),
    ),
)


@settings(max_examples=400, deadline=None)
@given(items=st.lists(ANY_ITEM, max_size=8), format=st.sampled_from(FORMATS))
def test_any_conversation_is_healed_once_and_for_all(items: list[AnyItem], format: str):
    healed = settle_history(items, format)
    assert violations(healed, format) == []
    assert settle_history(healed, format) == healed


def test_nothing_of_a_stream_is_needed_to_settle_it():
    assert settle(PartialTranscript(), Outcome(Ending.STEERED), "anthropic") == ()

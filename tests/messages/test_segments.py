"""Typed input: it travels whole, flattens the same way every time, and is found in flat text."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.alert import Alert, AlertLevel
from midstream.messages.conversation import SystemItem, UserItem
from midstream.messages.segments import (
    AnySegment,
    FileRefSegment,
    PasteSegment,
    SegmentFormatError,
    TextSegment,
    UnknownSegment,
    UnresolvedStyle,
    decode_segments,
    encode_segments,
    flatten,
    normalise,
    parse_flat,
)
from midstream.messages.submission import (
    Accepted,
    HookCancel,
    HookContinue,
    Rejected,
    SubmitCancel,
    SubmitContinue,
    SubmitContinueWith,
    SubmittedPrompt,
    settle_submission,
)

SEGMENTS: tuple[AnySegment, ...] = (
    TextSegment("look at "),
    FileRefSegment("src/a.py"),
    TextSegment(" and "),
    PasteSegment(id=1, chars=5, lines=2, content="a\nb\nc"),
)


def never(path: str) -> bool:
    return False


def among(*paths: str) -> Callable[[str], bool]:
    return lambda path: path in paths


# The wire


def test_segments_travel_as_tagged_objects():
    assert json.loads(encode_segments(SEGMENTS)) == [
        {"kind": "text", "content": "look at "},
        {"kind": "file_ref", "path": "src/a.py"},
        {"kind": "text", "content": " and "},
        {"kind": "paste", "id": 1, "chars": 5, "lines": 2, "content": "a\nb\nc"},
    ]
    assert decode_segments(encode_segments(SEGMENTS)) == SEGMENTS


def test_an_unknown_kind_is_kept_and_sent_back_whole():
    sent = b'[{"kind":"flow","selector":{"a":[1]}},{"kind":"knowledge_ref","slug":"x"}]'
    segments = decode_segments(sent)
    assert segments[0] == UnknownSegment("flow", {"kind": "flow", "selector": {"a": [1]}})
    assert encode_segments(segments) == sent


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ('[{"kind":"text"}]', "$[0]"),
        ('[{"kind":"text","content":""},{"kind":"file_ref","path":5}]', "$[1].path"),
        ('[{"content":"x"}]', "$[0].kind"),
        ('[{"kind":null}]', "$[0].kind"),
        ("[5]", "$[0]"),
        ("{}", "array"),
        ("nonsense", "malformed"),
    ],
)
def test_what_is_no_segment_is_refused_and_the_place_named(data: str, place: str):
    with pytest.raises(SegmentFormatError) as refused:
        decode_segments(data)
    assert place in str(refused.value)


def test_an_alert_travels_with_level_source_and_time():
    alert = Alert(AlertLevel.WARN, "file_ref", "@a", 5)
    assert (alert.level, alert.source, alert.timestamp_ms) == ("warn", "file_ref", 5)


# Flattening


def test_flattening_is_plain_concatenation():
    assert flatten(SEGMENTS) == "look at @src/a.py and a\nb\nc"
    assert flatten(()) == ""


def test_a_failed_reference_is_shown_as_unresolved_or_as_typed():
    assert flatten(SEGMENTS, {1}).startswith("look at [unresolved file ref: src/a.py] and")
    assert flatten(SEGMENTS, {1}, UnresolvedStyle.SIGIL) == flatten(SEGMENTS)


def test_an_unknown_segment_leaves_a_placeholder():
    assert flatten([UnknownSegment("flow", {})]) == "[unknown input segment]"


def test_a_replay_of_the_stored_segments_gives_the_same_text():
    assert flatten(decode_segments(encode_segments(SEGMENTS)), {1}) == flatten(SEGMENTS, {1})


def test_adjacent_texts_are_one_and_empty_ones_are_none():
    pieces = [TextSegment(""), TextSegment("a"), TextSegment("b"), FileRefSegment("x")]
    assert normalise([*pieces, TextSegment("")]) == (TextSegment("ab"), FileRefSegment("x"))


# Flat text (decision 11)


@pytest.mark.parametrize(
    ("text", "paths", "expected"),
    [
        ("@a.py", ["a.py"], [FileRefSegment("a.py")]),
        ("see @a.py now", ["a.py"], [TextSegment("see "), FileRefSegment("a.py")]),
        ("see\n\t@a.py", ["a.py"], [TextSegment("see\n\t"), FileRefSegment("a.py")]),
        ("(@a.py)", ["a.py"], [TextSegment("("), FileRefSegment("a.py"), TextSegment(")")]),
        ("「@a.py」", ["a.py"], [TextSegment("「"), FileRefSegment("a.py"), TextSegment("」")]),
        ("@a.py.", ["a.py"], [FileRefSegment("a.py"), TextSegment(".")]),
        ("@a.py?!).", ["a.py"], [FileRefSegment("a.py"), TextSegment("?!).")]),
        ("@a.py.", ["a.py", "a.py."], [FileRefSegment("a.py.")]),
        ("@README, and", ["README"], [FileRefSegment("README"), TextSegment(", and")]),
        ('@"my file.txt", ok', [], [FileRefSegment("my file.txt"), TextSegment(", ok")]),
        ("@src/missing.py", [], [FileRefSegment("src/missing.py")]),
        ("@missing.py,", [], [FileRefSegment("missing.py,")]),
        ("@docs/ @a", ["docs/", "a"], [FileRefSegment("docs/"), TextSegment(" ")]),
        ("@a @b", ["a", "b"], [FileRefSegment("a"), TextSegment(" "), FileRefSegment("b")]),
        ("@a@b", ["a@b"], [FileRefSegment("a@b")]),
    ],
)
def test_references_are_found_in_flat_text(text: str, paths: list[str], expected: list[AnySegment]):
    segments = parse_flat(text, among(*paths))
    assert list(segments[: len(expected)]) == expected
    assert flatten(segments).replace('"', "") == text.replace('"', "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "foo@bar.com",
        "ask @alice.",
        "@alice, @bob!",
        "@",
        "@ a",
        '@"',
        '@""',
        '@"open',
        "#note /cmd",
        "a.@b.c",
        "@...",
        "@_@",
    ],
)
def test_mentions_and_addresses_stay_text(text: str):
    assert parse_flat(text, never) == normalise([TextSegment(text)])


def test_a_token_of_punctuation_costs_few_looks_at_the_disk():
    asked: list[str] = []

    def exists(path: str) -> bool:
        asked.append(path)
        return False

    parse_flat("@a" + "!" * 10_000, exists)
    assert len(asked) < 10


@settings(deadline=None, max_examples=300)
@given(
    st.text(st.sampled_from(list('@ab./"(){}[]!?, \n「」')), max_size=40),
    st.sets(st.text(st.sampled_from(list("ab./")), min_size=1, max_size=3)),
)
def test_parsing_loses_nothing_but_quotes(text: str, paths: set[str]):
    segments = parse_flat(text, paths.__contains__)
    assert flatten(segments).replace('"', "") == text.replace('"', "")
    assert segments == normalise(segments)
    if '"' not in text:
        assert flatten(segments) == text


KNOWN = st.one_of(
    st.builds(TextSegment, st.text()),
    st.builds(FileRefSegment, st.text()),
    st.builds(PasteSegment, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.text()),
)


@settings(deadline=None, max_examples=100)
@given(st.lists(KNOWN))
def test_the_round_trip_is_exact_and_normalising_changes_no_text(segments: list[AnySegment]):
    assert list(decode_segments(encode_segments(segments))) == segments
    assert flatten(normalise(segments)) == flatten(segments)


# Submitting (spec/file_ref.md 7)

FILES = (SystemItem("[File: a]\n1", "file_attachment", "a"), SystemItem("[File: b]\n2"))


def test_attachments_follow_the_users_message_in_order():
    items = (UserItem("text"), *FILES)
    assert settle_submission(items, [HookContinue(), SubmitContinue()]) == Accepted(items)
    assert settle_submission(items, []) == Accepted(items)


def test_what_an_interceptor_adds_stands_behind_the_attachments():
    notice = SystemItem("It is Monday.")
    items = (UserItem("text"), *FILES)
    actions = [HookContinue(), SubmitContinue(), SubmitContinueWith((notice,))]
    assert settle_submission(items, actions) == Accepted((*items, notice))


def test_the_first_that_does_not_continue_decides():
    items = (UserItem("text"), *FILES)
    added = SubmitContinueWith((SystemItem("late"),))
    assert settle_submission(items, [HookContinue(), HookCancel("a"), added]) == Rejected("a")
    assert settle_submission(items, [added, SubmitCancel("b")]) == Accepted(
        (*items, SystemItem("late"))
    )
    assert settle_submission(items, [SubmitCancel("b"), HookCancel("a")]) == Rejected("b")


def test_b2_files_of_a_cancelled_submit_do_not_turn_up_in_the_next():
    settle_submission((UserItem("first"), *FILES), [HookCancel("no")])
    assert settle_submission((UserItem("second"),), []) == Accepted((UserItem("second"),))


def test_b7_a_cancelled_submit_leaves_nothing_to_store():
    assert settle_submission((UserItem("text"), *FILES), [HookCancel("no")]) == Rejected("no")


def test_a_prompt_says_what_the_user_says_in_the_newest_message():
    shown = SubmittedPrompt(session_id="s", conversation_id="c", items=(UserItem("text"), *FILES))
    assert shown.text == "text"
    assert SubmittedPrompt(session_id="s", conversation_id="c", items=FILES).text == ""

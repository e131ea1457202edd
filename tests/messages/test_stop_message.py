"""The stopMessage state: arming, counting, clearing, and surviving what a disk does to it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.arming import (
    EmptiedTurn,
    SessionScopeMissing,
    apply_directives,
    is_new,
    settle_emptied_turn,
)
from midstream.messages.conversation import AnyItem, AssistantItem, TextPart, UserItem
from midstream.messages.directive import AnyDirective, ClearStopMessage, SetMode, SetText, StageMode
from midstream.messages.directive_items import FoundDirectives, take_directives
from midstream.messages.directive_tail import AiMode
from midstream.messages.stop_message import (
    BdWorkState,
    Reservation,
    Source,
    Stage,
    StopMessageState,
    clear,
    refund,
    reserve,
    set_mode,
    set_text,
)
from midstream.messages.stop_message_codec import (
    decode_state,
    encode_state,
    heal,
    merge,
    snapshot,
)

FRESH = StopMessageState()


def found(*directives: AnyDirective, fingerprint: str = "0:aa", is_tail: bool = True):
    return FoundDirectives(directives, fingerprint, is_tail)


def armed(text: str = "go", max_repeats: int = 3, now_ms: int = 1000) -> StopMessageState:
    return set_text(FRESH, text, max_repeats, now_ms=now_ms)


def after_sends(state: StopMessageState, count: int) -> StopMessageState:
    for now_ms in range(2000, 2000 + count):
        reserved = reserve(state, now_ms=now_ms)
        assert reserved is not None
        state = reserved[0]
    return state


def applied(state: StopMessageState | None, items: list[AnyItem], now_ms: int = 5000):
    return apply_directives(state, take_directives(items).found, now_ms=now_ms).state


# Setting


def test_setting_a_text_arms_it_with_a_fresh_count():
    state = apply_directives(None, found(SetText(" go ", 3, AiMode.ON)), now_ms=7).state
    assert state == StopMessageState(
        text="go",
        max_repeats=3,
        updated_at_ms=7,
        source=Source.EXPLICIT,
        ai_mode=AiMode.ON,
        directive_fingerprint="0:aa",
    )
    assert (state.used, state.last_used_at_ms, state.remaining) == (0, None, 3)


@pytest.mark.parametrize(("text", "max_repeats"), [("", 3), ("  \n", 3), ("x", 0), ("x", -1)])
def test_an_empty_text_or_no_repeats_changes_nothing(text: str, max_repeats: int):
    before = armed()
    assert set_text(before, text, max_repeats, now_ms=9000) is before


def test_the_same_directive_in_a_new_message_re_arms_after_exhaustion():
    items: list[AnyItem] = [UserItem('go <**stopMessage:"T",2**>')]
    state = after_sends(applied(None, items, 1000), 2)
    assert not state.is_active
    again = [*items, AssistantItem((TextPart("done"),)), *items]
    renewed = applied(state, again)
    assert (renewed.used, renewed.last_used_at_ms, renewed.is_active) == (0, None, True)


def test_the_same_single_message_sent_again_re_arms_too():
    items: list[AnyItem] = [UserItem('go <**stopMessage:"T",2**>')]
    assert applied(after_sends(applied(None, items, 1000), 2), items).used == 0


def test_a_text_wakes_a_session_whose_mode_was_off():
    off = set_mode(armed(), StageMode.OFF, now_ms=2000)
    assert not off.is_active
    assert set_text(off, "x", 2, now_ms=3000).is_active


def test_a_text_from_a_file_is_armed_and_a_missing_file_is_ignored():
    directive = take_directives([UserItem("<**stopMessage:file://a/m.md,4**>")]).found
    state = apply_directives(None, directive, now_ms=1, file_texts={"a/m.md": "from file\n"}).state
    assert (state.text, state.max_repeats, state.source) == ("from file", 4, Source.EXPLICIT_FILE)
    missing = apply_directives(armed(), directive, now_ms=1)
    assert missing.state == armed()
    assert not missing.changed
    assert missing.warnings


def test_a_marker_within_the_text_is_never_sent_either():
    items: list[AnyItem] = [UserItem('<**stopMessage:"say <**clear**> and go",2**>')]
    assert applied(None, items).text == "say and go"
    assert applied(None, [UserItem('<**stopMessage:"<**x**>",2**>')]).text is None


def test_a_lone_surrogate_never_gets_into_the_state():
    state = set_text(FRESH, "a\ud800b", 1, now_ms=1)
    assert decode_state(encode_state(state)).state == state
    healed = decode_state(r'{"stopMessageText":"a\ud800"}').state
    assert decode_state(encode_state(healed)).state == healed


# Modes


def test_mode_only_defaults_to_ten_and_shows_in_the_snapshot():
    state = apply_directives(None, found(SetMode(StageMode.ON)), now_ms=1).state
    assert (state.text, state.max_repeats, state.is_active) == (None, 10, True)
    assert snapshot(state) == {
        "stopMessageMaxRepeats": 10,
        "stopMessageUpdatedAt": 1,
        "stopMessageStageMode": "on",
        "directiveFingerprint": "0:aa",
    }


def test_mode_on_with_n_re_arms_and_keeps_the_text():
    state = set_mode(after_sends(armed(), 3), StageMode.ON, 10, now_ms=9000)
    assert (state.text, state.max_repeats, state.used, state.last_used_at_ms) == ("go", 10, 0, None)
    assert state.is_active


def test_mode_off_stops_and_keeps_text_and_count():
    state = set_mode(after_sends(armed(), 1), StageMode.OFF, now_ms=9000)
    assert (state.text, state.max_repeats, state.used) == ("go", 3, 1)
    assert not state.is_active
    assert reserve(state, now_ms=9001) is None


def test_a_mode_without_anything_to_send_is_not_armed():
    assert not set_mode(FRESH, StageMode.OFF, now_ms=1).is_armed


# Clearing


def test_a_clear_leaves_only_a_tombstone_that_never_goes_back():
    before = armed(now_ms=5000)
    state = clear(before, now_ms=4000)
    assert state == StopMessageState(updated_at_ms=5001)
    assert snapshot(state) is None
    assert merge(state, before) == state
    assert merge(before, state) == state


def test_set_and_clear_in_one_message_clear_in_any_order():
    for text in ('<**stopMessage:"T"**><**stopMessage:clear**>', '<**clear**><**"T",2**>'):
        assert applied(armed(), [UserItem(f"x {text}")]).text is None


def test_updated_at_grows_although_the_clock_goes_back():
    state = armed(now_ms=5000)
    for change in (
        set_text(state, "x", 1, now_ms=10),
        set_mode(state, StageMode.ON, now_ms=10),
        set_mode(state, StageMode.OFF, now_ms=10),
        clear(state, now_ms=10),
    ):
        assert change.updated_at_ms == 5001


# Which directives are new (decision 1)

ANSWERED = [AssistantItem((TextPart("a"),))]


def test_a_directive_is_not_applied_again_from_history():
    items: list[AnyItem] = [UserItem('<**stopMessage:"T",2**> go'), *ANSWERED, UserItem("next")]
    state = armed("other")
    assert applied(state, items) is state


def test_a_directive_is_not_applied_again_when_the_tail_is_not_the_users():
    items: list[AnyItem] = [UserItem('<**stopMessage:"T",2**> go')]
    state = after_sends(applied(None, items), 1)
    assert applied(state, [*items, *ANSWERED]) is state


def test_g12_a_tool_loop_does_not_re_arm():
    items: list[AnyItem] = [UserItem('<**stopMessage:"T",2**> go')]
    state = after_sends(applied(None, items), 2)
    for _ in range(5):
        items = [*items, *ANSWERED]
        state = applied(state, items)
    assert state.used == 2
    assert not state.is_active


def test_a_directive_still_arms_when_the_first_request_was_lost():
    items: list[AnyItem] = [UserItem('<**stopMessage:"T",2**> go'), *ANSWERED]
    assert applied(None, items).text == "T"
    other = apply_directives(None, found(SetText("old"), fingerprint="0:zz"), now_ms=1).state
    assert applied(other, items).text == "T"


def test_a_state_without_a_fingerprint_treats_what_is_not_the_tail_as_old():
    old = found(SetText("T"), is_tail=False)
    assert not is_new(old, StopMessageState(updated_at_ms=5))
    assert not is_new(old, armed())
    assert is_new(old, FRESH)
    assert is_new(old, None)


def test_a_clear_remembers_which_directive_came_last():
    items: list[AnyItem] = [UserItem('<**stopMessage:"T",2**> go')]
    cleared = clear(applied(None, items), now_ms=9000)
    assert applied(cleared, [*items, *ANSWERED]) is cleared


def test_no_directive_leaves_the_state_as_it_is():
    state = armed()
    outcome = apply_directives(state, None, now_ms=1)
    assert outcome.state is state
    assert not outcome.changed


# A message of nothing but directives (decision 3)


@pytest.mark.parametrize(
    ("text", "asked", "answer"),
    [
        ('<**stopMessage:"T",2**>', "T", "Auto-continue is on, at most 2 times."),
        ("<**stopMessage:on,4**>", "go", "Auto-continue is on, at most 4 times."),
        ("<**stopMessage:clear**>", None, "Auto-continue is cleared."),
        ("<**clear**>", None, "Auto-continue is cleared."),
        ("<**stopMessage:off**>", None, "Auto-continue is off."),
        ("<**gpt-5**>", None, "No directive was understood, and there is nothing to answer."),
    ],
)
def test_g5_an_emptied_turn_says_the_text_that_was_set_or_is_answered_without_the_model(
    text: str, asked: str | None, answer: str
):
    reading = take_directives([UserItem(text)])
    assert reading.emptied_turn == 0
    state = apply_directives(armed(), reading.found, now_ms=5000).state
    assert settle_emptied_turn(reading.found, state) == EmptiedTurn(asked, answer)


def test_g5_a_mode_without_a_text_is_answered_without_the_model():
    on = found(SetMode(StageMode.ON))
    state = apply_directives(None, on, now_ms=1).state
    assert settle_emptied_turn(on, state).text is None


# Without a session (decision 11)


def test_without_a_session_it_holds_for_this_request_only_and_says_so():
    outcome = apply_directives(None, found(SetText("T")), now_ms=1, has_session=False)
    assert outcome.state.is_active
    assert not outcome.is_kept
    assert len(outcome.warnings) == 1


def test_strict_mode_raises_without_a_session_but_not_on_a_clear():
    with pytest.raises(SessionScopeMissing, match="session id"):
        apply_directives(None, found(SetText("T")), now_ms=1, has_session=False, strict=True)
    apply_directives(None, found(ClearStopMessage()), now_ms=1, has_session=False, strict=True)


# Counting (decision 8)


def test_n_sends_and_not_one_more():
    state = after_sends(armed(max_repeats=2), 2)
    assert reserve(state, now_ms=9000) is None


def test_g14_an_exhausted_state_stays_to_be_looked_at():
    state = after_sends(armed(max_repeats=2), 2)
    shown = snapshot(state)
    assert shown is not None
    assert (shown["stopMessageUsed"], shown["stopMessageMaxRepeats"]) == (2, 2)
    assert (state.is_armed, state.is_active, state.remaining) == (True, False, 0)


def test_g6_what_was_never_sent_is_not_counted():
    before = after_sends(armed(), 1)
    reserved = reserve(before, now_ms=9000)
    assert reserved is not None
    state, reservation = reserved
    assert (state.used, state.last_used_at_ms, reservation.number) == (2, 9000, 2)
    assert refund(state, reservation) == before


def test_a_refund_takes_nothing_from_a_state_that_was_set_or_cleared_since():
    reserved = reserve(armed(), now_ms=2000)
    assert reserved is not None
    state, reservation = reserved
    renewed = after_sends(set_text(state, "new", 2, now_ms=2001), 1)
    assert refund(renewed, reservation) is renewed
    cleared = clear(state, now_ms=2001)
    assert refund(cleared, reservation) is cleared


STEPS = st.lists(st.sampled_from(["reserve", "refund", "set", "mode", "clear"]), max_size=30)


def change(state: StopMessageState, step: str, max_repeats: int, now_ms: int) -> StopMessageState:
    if step == "set":
        return set_text(state, "x", max_repeats, now_ms=now_ms)
    if step == "mode":
        return set_mode(state, StageMode.AUTO, max_repeats, now_ms=now_ms)
    return clear(state, now_ms=now_ms)


@settings(deadline=None, max_examples=200)
@given(STEPS, st.integers(1, 4), st.randoms(use_true_random=False))
def test_whatever_the_order_n_is_never_exceeded(steps: list[str], max_repeats: int, chance: Any):
    """Reservations are refunded in any order, late, or never; the clock jumps about."""
    state = armed(max_repeats=max_repeats)
    open_sends: list[Reservation] = []
    sent_since_armed = 0
    for step in steps:
        now_ms = chance.randrange(10_000)
        before_ms = state.updated_at_ms or 0
        if step == "reserve":
            reserved = reserve(state, now_ms=now_ms)
            assert (reserved is None) == (not state.is_active)
            if reserved:
                state = reserved[0]
                open_sends.append(reserved[1])
                sent_since_armed += 1
        elif step == "refund" and open_sends:
            reservation = open_sends.pop(chance.randrange(len(open_sends)))
            counted = reservation.armed_at_ms == state.updated_at_ms
            state = refund(state, reservation)
            sent_since_armed -= counted
        elif step != "refund":
            state = change(state, step, max_repeats, now_ms)
            sent_since_armed = 0
            assert (state.updated_at_ms or 0) > before_ms
        assert state.used == sent_since_armed <= max_repeats


# Stored, healed, merged

FULL = StopMessageState(
    text="T",
    max_repeats=4,
    used=1,
    updated_at_ms=10,
    last_used_at_ms=11,
    source=Source.DEFAULT,
    stage_mode=StageMode.AUTO,
    stage=Stage.LOOP_SELF_CHECK,
    observation_hash="h",
    observation_stable_count=2,
    bd_work_state=BdWorkState.ACTIVE,
    ai_mode=AiMode.OFF,
    directive_fingerprint="0:aa",
)


def test_the_stored_form_is_camel_case_in_an_envelope():
    stored = json.loads(encode_state(FULL))
    assert stored["version"] == 1
    assert stored["state"] == {
        "stopMessageText": "T",
        "stopMessageMaxRepeats": 4,
        "stopMessageUsed": 1,
        "stopMessageUpdatedAt": 10,
        "stopMessageLastUsedAt": 11,
        "stopMessageSource": "default",
        "stopMessageStageMode": "auto",
        "stopMessageStage": "loop_self_check",
        "stopMessageObservationHash": "h",
        "stopMessageObservationStableCount": 2,
        "stopMessageBdWorkState": "active",
        "stopMessageAiMode": "off",
        "directiveFingerprint": "0:aa",
    }


def test_a_state_and_its_stages_survive_the_round_trip():
    for state in (FULL, armed(), clear(armed(), now_ms=9), FRESH, None):
        decoded = decode_state(encode_state(state))
        assert decoded.state == state
        assert not decoded.repaired


def test_a_state_without_its_envelope_is_read():
    decoded = decode_state(msgspec.json.encode(FULL))
    assert decoded.state == FULL


@pytest.mark.parametrize("garbage", ["}", "}}\n", '{"version":1', "\0\0\0", " \x00junk} more}"])
def test_trailing_garbage_is_cut_and_the_state_written_again(garbage: str):
    decoded = decode_state(encode_state(FULL) + garbage.encode())
    assert decoded.state == FULL
    assert decoded.repaired


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"nonsense",
        b'{"version":1,"state":{"stopMess',
        b"[" * 100_000,
        b"[1]x",
        b"9" * 5000,
        b'{"a":1}' + b" " * (256 * 1024) + b"x",
    ],
    ids=range(8),
)
def test_what_cannot_be_healed_is_no_state(data: bytes):
    decoded = decode_state(data)
    assert decoded.state is None
    assert decoded.repaired


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("stopMessageUsed", 2.9, 2),
        ("stopMessageUsed", -1, 0),
        ("stopMessageUsed", "2", 0),
        ("stopMessageUsed", True, 0),
        ("stopMessageUsed", 1e300, 0),
        ("stopMessageMaxRepeats", 3.7, 3),
        ("stopMessageMaxRepeats", 0, None),
        ("stopMessageMaxRepeats", None, None),
        ("stopMessageText", 5, None),
        ("stopMessageText", "  ", None),
        ("stopMessageText", " x ", "x"),
        ("stopMessageStage", "unheard_of", None),
        ("stopMessageUpdatedAt", "soon", None),
        ("stopMessageStageMode", ["on"], None),
    ],
)
def test_numbers_are_floored_and_corrupt_values_dropped(field: str, value: Any, expected: Any):
    state = heal({"stopMessageText": "x", "stopMessageMaxRepeats": 2, field: value})
    assert state is not None
    names = {info.encode_name: info.name for info in msgspec.structs.fields(StopMessageState)}
    assert getattr(state, names[field]) == expected


def test_not_a_number_is_dropped():
    decoded = decode_state('{"stopMessageText":"x","stopMessageMaxRepeats":NaN}')
    assert decoded.state == StopMessageState(text="x")
    assert decoded.repaired


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_mode_without_n_heals_to_ten(mode: str):
    decoded = decode_state(json.dumps({"version": 1, "state": {"stopMessageStageMode": mode}}))
    assert decoded.repaired
    assert decoded.state is not None
    assert decoded.state.max_repeats == 10
    assert decoded.state.is_active


def test_a_mode_off_without_n_stays_without():
    state = heal({"stopMessageStageMode": "off"})
    assert state is not None
    assert state.max_repeats is None


def test_the_newer_copy_wins_and_equal_copies_keep_the_larger_count():
    older, newer = after_sends(armed(now_ms=1), 3), armed(now_ms=2)
    assert merge(older, newer) == merge(newer, older) == newer
    ahead, behind = after_sends(armed(), 2), after_sends(armed(), 1)
    assert merge(ahead, behind).used == merge(behind, ahead).used == 2
    assert merge(behind, ahead).last_used_at_ms == ahead.last_used_at_ms


def test_a_clear_and_a_set_of_one_instant_are_a_clear():
    tombstone = StopMessageState(updated_at_ms=1000)
    assert merge(armed(), tombstone) == merge(tombstone, armed()) == tombstone


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FIELDS = [info.encode_name for info in msgspec.structs.fields(StopMessageState)]


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.binary(max_size=8))
def test_healing_never_fails_and_is_done_once(fields: dict[str, Any], garbage: bytes):
    stored = json.dumps({"version": 1, "state": fields}).encode() + garbage
    state = decode_state(stored).state
    assert state is not None
    assert decode_state(encode_state(state)) == type(decode_state(b"null"))(state, repaired=False)

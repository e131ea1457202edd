"""stopMessage in a whole runtime: directives, chains, quota, restarts, and every order of them.

The cases follow the reference's own tests (spec/stop_message.md 12). Every test runs under a
clock that jumps, but those that start the real `bd`; every world is held against the
invariants of the design when it ends.
"""

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from hosts import SPEAKING, doomed_host, host, wall_clock
from trio.testing import MockClock

from midstream.config import BudgetConfig, Config, RulesConfig, StopMessageConfig
from midstream.config_file import config_from
from midstream.messages.bd_stage import TEMPLATE_PATHS
from midstream.messages.continuation import WhyNot
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ModelRequest,
    ReminderItem,
    TextPart,
    ToolCallPart,
    ToolResultItem,
    UserItem,
)
from midstream.messages.errors import ConfigError
from midstream.messages.events import (
    AlertRaised,
    ContinuationDecided,
    LocalAnswer,
    Retracted,
    StopMessageChanged,
    Text,
)
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.marker import OPENING
from midstream.messages.record import SessionStatus
from midstream.messages.settle import open_calls
from midstream.messages.stop_message import StopMessageState
from midstream.messages.stop_message_codec import STATE_NAME, decode_state
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.messages.usage import Usage, UsageSource
from midstream.providers.scripted import (
    Call,
    Hang,
    Pause,
    Script,
    ScriptedProvider,
    SlowClose,
    Step,
    answer,
)
from midstream.rules.rule import RepeatMode, Rule, ScopeToken, Source
from midstream.stores.conversation_load import load_conversation
from midstream.stores.conversations import commit_write, keep_state
from midstream.stores.memory import MemoryStore
from midstream.stores.store import Append, Book, Log, Operation, Query, Receipt, encode
from midstream.testing.invariants import count_continuations
from midstream.testing.world import ObservedSession, World, open_world
from midstream.tools import Tool

NO_FOO = Rule(
    name="no-foo",
    conditions=("foo",),
    scope=(ScopeToken(Source.TEXT),),
    body="Do not say foo.",
)
QUOTA = ProviderFailure(FailureKind.RATE_LIMITED, "come back later", status=429)
REFUSED = ProviderFailure(FailureKind.NETWORK, "connection refused")
SET = 'work <**stopMessage:"go on",2**>'


def breaking(*after: Step) -> list[Step]:
    start: list[Step] = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "well, foo")]
    return [*start, *(after or (Hang(),))]


def seen(session: ObservedSession, kind: type[Any]) -> list[Any]:
    return [event.event for event in session.events if isinstance(event.event, kind)]


def reasons(session: ObservedSession) -> list[str]:
    """Why each reply was continued or not."""
    decisions = seen(session, ContinuationDecided)
    return [decision.record.reason or decision.record.decision for decision in decisions]


def users(request: ModelRequest) -> list[str]:
    return [item.text for item in request.items if isinstance(item, UserItem)]


async def kept_state(store: MemoryStore, conversation_id: str) -> StopMessageState | None:
    conversation = await load_conversation(store, conversation_id)
    kept = conversation.kept.meta.states.get(STATE_NAME)
    return None if kept is None else decode_state(bytes(kept)).state


async def state_of(session: ObservedSession, world: World) -> StopMessageState:
    state = await kept_state(world.store, session.handle.conversation_id)
    assert state is not None
    return state


def check_no_directive_was_sent(world: World) -> None:
    for request in world.provider.requests:
        assert OPENING not in msgspec.json.encode(request).decode()


# --- the chain


async def test_a_reply_is_continued_n_times_and_the_last_one_is_the_outcome(
    autojump_clock: MockClock,
) -> None:
    usage = Usage(100, 10, source=UsageSource.REPORTED)
    scripts = [answer(f"reply {number}", usage=usage) for number in range(3)]
    async with open_world(*scripts) as world:
        session = world.animate(SET)
        ended = await session.result()
        assert (ended.status, ended.output, ended.attempts) == (
            SessionStatus.COMPLETED,
            "reply 2",
            3,
        )
        assert (ended.usage.input_tokens, ended.usage.output_tokens) == (300, 30), "of all hops"
        assert [users(request) for request in world.provider.requests] == [
            ["work "],
            ["work ", "go on"],
            ["work ", "go on", "go on"],
        ]
        assert reasons(session) == ["continue", "continue", WhyNot.EXHAUSTED]
        texts = [(event.attempt, event.text) for event in seen(session, Text)]
        assert "".join(text for attempt, text in texts if attempt == 2) == "reply 1"
        check_no_directive_was_sent(world)


async def test_g7_the_follow_up_holds_the_reply_and_says_whose_words_it_is(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("first"), answer("second"), answer("third")) as world:
        session = world.animate(SET, conversation_id="con-1")
        await session.result()
        items = world.provider.requests[1].items
        assert isinstance(items[1], AssistantItem)
        assert items[2] == UserItem("go on", automatic=True)
        kept = await load_conversation(world.store, "con-1")
        assert [item.automatic for item in kept.items if isinstance(item, UserItem)] == [
            False,
            True,
            True,
        ]


async def test_g14_an_exhausted_state_stays_to_be_looked_at(autojump_clock: MockClock) -> None:
    async with open_world(*[answer(f"{n}") for n in range(4)]) as world:
        session = world.animate(SET, conversation_id="con-1")
        await session.result()
        shown = await world.runtime.stop_message("con-1")
        assert shown is not None
        assert (shown["stopMessageUsed"], shown["stopMessageMaxRepeats"]) == (2, 2)
        again = world.animate("more", conversation_id="con-1")
        assert (await again.result()).attempts == 1
        assert reasons(again) == [WhyNot.EXHAUSTED]


async def test_the_same_directive_in_a_new_prompt_arms_again(autojump_clock: MockClock) -> None:
    async with open_world(*[answer(f"{n}") for n in range(6)]) as world:
        for _ in range(2):
            session = world.animate(SET, conversation_id="con-1")
            assert (await session.result()).attempts == 3
            assert len(seen(session, StopMessageChanged)) == 1


async def test_what_is_left_of_n_goes_on_with_the_next_prompt(autojump_clock: MockClock) -> None:
    config = Config(
        rules=RulesConfig(discover=False), stop_message=StopMessageConfig(single_hop=True)
    )
    async with open_world(*[answer(f"{n}") for n in range(5)], config=config) as world:
        attempts: list[int] = []
        for prompt in (SET, "more", "and more"):
            session = world.animate(prompt, conversation_id="con-1")
            attempts.append((await session.result()).attempts)
        assert attempts == [2, 2, 1]


async def test_a_conversation_without_a_stop_message_hears_nothing_of_it(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("hello")) as world:
        session = world.animate("hello", conversation_id="con-1")
        assert (await session.result()).attempts == 1
        assert not reasons(session)
        assert await world.runtime.stop_message("con-1") is None


async def test_a_prompt_that_must_not_be_continued_is_not(autojump_clock: MockClock) -> None:
    async with open_world(answer("a"), answer("b"), answer("c"), answer("d")) as world:
        await world.animate(SET, conversation_id="con-1").result()
        once = world.animate(SET, conversation_id="con-1", auto_continue=False)
        assert (await once.result()).attempts == 1
        assert reasons(once) == [WhyNot.NO_REENTRY]


async def test_a_compaction_is_not_continued_and_does_not_end_it_for_good(
    autojump_clock: MockClock,
) -> None:
    prompt = "You are performing a CONTEXT CHECKPOINT COMPACTION. Sum up."
    async with open_world(*[answer(f"{n}") for n in range(5)]) as world:
        armed = world.animate(f"{SET} at once", conversation_id="con-1", auto_continue=False)
        await armed.result()
        summary = world.animate(prompt, conversation_id="con-1")
        assert (await summary.result()).attempts == 1
        assert reasons(summary) == [WhyNot.COMPACTION]
        after = world.animate("go on then", conversation_id="con-1")
        assert (await after.result()).attempts == 3


async def test_the_chain_is_bounded_by_the_budget_and_the_user_is_warned(
    autojump_clock: MockClock,
) -> None:
    config = Config(rules=RulesConfig(discover=False), budget=BudgetConfig(max_restarts=1))
    async with open_world(answer("a"), answer("b"), config=config) as world:
        session = world.animate(SET)
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.CAPPED, "b")
        [alert] = seen(session, AlertRaised)
        assert "budget.max_restarts = 1" in alert.alert.message


async def test_a_tool_round_within_a_hop_is_no_hop(autojump_clock: MockClock) -> None:
    """`runs_tools` is off, so the client brings the results: the chain stops, N stays."""
    scripts = [answer(Call("look")), answer("b"), answer("c"), answer("d")]
    async with open_world(*scripts) as world:
        session = world.animate(SET, conversation_id="con-1")
        ended = await session.result()
        assert reasons(session) == [WhyNot.NOT_A_NATURAL_STOP]
        assert ended.status is SessionStatus.COMPLETED
        results: Sequence[AnyItem] = (ToolResultItem("call_1", "look", "seen"),)
        after = world.animate(results, conversation_id="con-1")
        assert (await after.result()).attempts == 3, "G12: the directive is not applied again"


async def test_a_hop_may_run_tools_and_is_counted_once(autojump_clock: MockClock) -> None:
    scripts = [answer("first"), answer(Call("look")), answer("second"), answer("third")]
    async with open_world(*scripts) as world:

        async def look() -> str:
            """Look."""
            return "seen"

        handle = world.runtime.animate(SET, tools=[Tool(look)])
        events = [event.event async for event in handle.events()]
        ended = await handle.result()
        decided = [event.record.used for event in events if isinstance(event, ContinuationDecided)]
        assert decided == [0, 1, 2]
        assert (ended.output, ended.attempts) == ("third", 4)


@pytest.mark.parametrize("verb", ["detach", "interrupt"])
async def test_a_tool_that_runs_in_a_hop_is_stopped_with_it(
    verb: str, autojump_clock: MockClock
) -> None:
    started = trio.Event()

    async def look() -> str:
        """Look."""
        started.set()
        await trio.sleep(30.0)
        return "seen"

    async with open_world(answer("first"), answer(Call("look"))) as world:
        handle = world.runtime.animate(SET, tools=[Tool(look)], conversation_id="con-1")
        await started.wait()
        await getattr(handle, verb)()
        ended = await handle.result()
        expected = SessionStatus.COMPLETED if verb == "detach" else SessionStatus.CANCELLED
        assert (ended.status, ended.output) == (expected, "first")
        assert trio.current_time() < 20.0
        kept = await load_conversation(world.store, "con-1")
        assert not open_calls(kept.items), "no call is left without a result"


# --- directives


@pytest.mark.parametrize(
    "prompt",
    [
        SET,
        '<**stopMessage:"go on",2**> work',
        '```\n<**stopMessage:"in code"**>\n``` work',
        "work <**nonsense**> and <****> and <**stopMessage:**>",
        'work <**stopMessage:"unterminated,3**>',
        'work <**stopMessage:"with **> inside",2**>',
        "work <**clear**>",
    ],
)
async def test_nothing_of_a_directive_ever_reaches_the_provider_or_the_conversation(
    prompt: str, autojump_clock: MockClock
) -> None:
    async with open_world(*[answer(f"{n}") for n in range(12)]) as world:
        session = world.animate(prompt, conversation_id="con-1")
        await session.result()
        check_no_directive_was_sent(world)
        kept = await load_conversation(world.store, "con-1")
        assert OPENING not in msgspec.json.encode(kept.items).decode()


async def test_markers_that_other_hands_left_in_the_history_are_not_sent_and_not_executed(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("a"), answer("b")) as world:
        await world.animate("hello", conversation_id="con-1").result()
        old = UserItem('old <**stopMessage:"revive",5**> words')
        length = await world.store.length(Log.ITEMS, "con-1")
        await world.store.commit([Append(Log.ITEMS, "con-1", (encode(old),), length)])
        session = world.animate("again", conversation_id="con-1")
        assert (await session.result()).attempts == 1
        assert users(world.provider.requests[1]) == ["hello", "old words", "again"]
        check_no_directive_was_sent(world)


async def test_g5_a_prompt_that_is_only_a_directive_says_its_text_this_turn(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("a"), answer("b")) as world:
        session = world.animate('<**stopMessage:"go on",1**>')
        assert (await session.result()).attempts == 2
        assert [users(request) for request in world.provider.requests] == [
            ["go on"],
            ["go on", "go on"],
        ]


async def test_g5_a_clear_alone_is_answered_without_a_model(autojump_clock: MockClock) -> None:
    async with open_world(answer("a"), answer("b"), answer("c"), answer("d")) as world:
        await world.animate(SET, conversation_id="con-1").result()
        session = world.animate("<**stopMessage:clear**>", conversation_id="con-1")
        ended = await session.result()
        assert (ended.status, ended.attempts) == (SessionStatus.COMPLETED, 0)
        assert seen(session, LocalAnswer) == [LocalAnswer(ended.output)]
        assert len(world.provider.requests) == 3
        assert await world.runtime.stop_message("con-1") is None
        record = await session.handle.record()
        assert record.status is SessionStatus.COMPLETED
        after = world.animate("more", conversation_id="con-1")
        assert (await after.result()).attempts == 1
        assert reasons(after) == [WhyNot.NO_STATE]


async def test_a_clear_with_other_words_is_carried_out_and_the_words_are_answered(
    autojump_clock: MockClock,
) -> None:
    async with open_world(*[answer(f"{n}") for n in range(4)]) as world:
        await world.animate(SET, conversation_id="con-1").result()
        session = world.animate("stop it <**clear**> please", conversation_id="con-1")
        assert (await session.result()).attempts == 1
        assert users(world.provider.requests[-1])[-1] == "stop it please"


async def test_a_directive_that_is_not_understood_is_told_and_harmless(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("a")) as world:
        session = world.animate('work <**stopMessage:"",3**>')
        await session.result()
        [alert] = seen(session, AlertRaised)
        assert (
            alert.alert.message == "stopMessage: stopMessage directive with an empty text ignored"
        )
        assert users(world.provider.requests[0]) == ["work "]


async def test_a_directive_among_items_of_the_host_counts_too(autojump_clock: MockClock) -> None:
    prompt = (UserItem("first"), AssistantItem((TextPart("ok"),), "anthropic"), UserItem(SET))
    async with open_world(answer("a"), answer("b"), answer("c")) as world:
        session = world.animate(prompt)
        assert (await session.result()).attempts == 3
        assert users(world.provider.requests[0]) == ["first", "work "]


async def test_a_clear_that_comes_with_tool_results_still_brings_them(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer(Call("look")), answer("done")) as world:
        await world.animate("look", conversation_id="con-1").result()
        prompt = (ToolResultItem("call_1", "look", "seen"), UserItem("<**clear**>"))
        session = world.animate(prompt, conversation_id="con-1")
        assert (await session.result()).output == "done"
        assert isinstance(world.provider.requests[1].items[-1], ToolResultItem)


# --- the state


async def test_the_state_survives_a_restart(autojump_clock: MockClock) -> None:
    config = Config(
        rules=RulesConfig(discover=False), stop_message=StopMessageConfig(single_hop=True)
    )
    async with open_world(answer("a"), answer("b"), config=config) as world:
        await world.animate(SET, conversation_id="con-1").result()
    store = world.store.reopen()
    async with open_world(*[answer(f"{n}") for n in range(3)], store=store, seed=1) as later:
        session = later.animate("more", conversation_id="con-1")
        assert (await session.result()).attempts == 2, "one of two was used before"
        assert reasons(session) == ["continue", WhyNot.EXHAUSTED]


async def test_a_corrupt_state_heals_and_is_written_again(autojump_clock: MockClock) -> None:
    broken = {
        "version": 1,
        "state": {
            "stopMessageText": "  go on ",
            "stopMessageMaxRepeats": 2.9,
            "stopMessageUsed": "many",
            "stopMessageUpdatedAt": 5,
            "stopMessageStageMode": "sometimes",
            "nonsense": [1],
        },
    }
    async with open_world(answer("a"), answer("b"), answer("c"), answer("d")) as world:
        await world.animate("hello", conversation_id="con-1").result()
        conversation = await load_conversation(world.store, "con-1")
        await commit_write(
            world.store, conversation, lambda read: keep_state(read, STATE_NAME, broken)
        )
        session = world.animate("more", conversation_id="con-1")
        assert (await session.result()).attempts == 3
        state = await state_of(session, world)
        assert (state.text, state.max_repeats, state.used) == ("go on", 2, 2)
        kept = (await load_conversation(world.store, "con-1")).kept.meta.states[STATE_NAME]
        assert not decode_state(bytes(kept)).repaired


@pytest.mark.parametrize("garbage", [[1, 2], "text", {"state": 7}])
async def test_a_state_that_is_none_at_all_is_as_if_there_were_none(
    garbage: object, autojump_clock: MockClock
) -> None:
    async with open_world(answer("a"), answer("b")) as world:
        await world.animate("hello", conversation_id="con-1").result()
        conversation = await load_conversation(world.store, "con-1")
        await commit_write(
            world.store, conversation, lambda read: keep_state(read, STATE_NAME, garbage)
        )
        session = world.animate("more", conversation_id="con-1")
        assert (await session.result()).status is SessionStatus.COMPLETED


async def test_a_set_that_was_not_followed_by_a_reply_still_holds(
    autojump_clock: MockClock,
) -> None:
    async with open_world([StreamStarted(), Hang()], *[answer(f"{n}") for n in range(3)]) as world:
        session = world.animate(SET, conversation_id="con-1")
        await trio.sleep(1.0)
        await session.interrupt()
        await session.result()
        after = world.animate("again", conversation_id="con-1")
        assert (await after.result()).attempts == 3


# --- rules, quota, failures


async def test_a_rule_cuts_and_retries_a_follow_up_on_the_same_count(
    autojump_clock: MockClock,
) -> None:
    scripts = [answer("first"), breaking(), answer("second"), answer("third")]
    async with open_world(*scripts, rules=[NO_FOO]) as world:
        session = world.animate(SET)
        ended = await session.result()
        assert (ended.output, ended.attempts) == ("third", 4)
        assert reasons(session) == ["continue", "continue", WhyNot.EXHAUSTED]
        assert isinstance(world.provider.requests[2].items[-1], ReminderItem)
        assert len(seen(session, Retracted)) == 1


async def test_a_rate_limit_in_the_chain_pauses_everybody_and_costs_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("first"), [QUOTA]) as world:
        session = world.animate(SET, conversation_id="con-1")
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.RATE_LIMITED, "first")
        state = await state_of(session, world)
        assert (state.used, state.remaining) == (0, 2)
        assert not world.runtime.is_dispatchable()
        refused = world.animate("more", conversation_id="con-1")
        assert (await refused.result()).status is SessionStatus.RATE_LIMITED
        assert len(world.provider.requests) == 2


@pytest.mark.parametrize("midway", [False, True], ids=["at once", "midway"])
@pytest.mark.parametrize("hop", [0, 1, 2, 3])
async def test_a_rate_limit_at_any_hop_leaves_what_was_not_answered(
    hop: int, midway: bool, autojump_clock: MockClock
) -> None:
    spent: Script = [StreamStarted(), TextDelta(0, "half"), QUOTA] if midway else [QUOTA]
    scripts = [*(answer(f"reply {number}") for number in range(hop)), spent]
    async with open_world(*scripts) as world:
        session = world.animate('work <**stopMessage:"go on",3**>')
        ended = await session.result()
        assert ended.status is SessionStatus.RATE_LIMITED
        said = "half" if midway else ""
        assert ended.output == (f"reply {hop - 1}" if hop else said)
        assert (await state_of(session, world)).used == max(0, hop - 1)


async def test_after_the_pause_the_whole_of_n_is_there(autojump_clock: MockClock) -> None:
    scripts = [answer("first"), [QUOTA], answer("a"), answer("b"), answer("c")]
    async with open_world(*scripts) as world:
        await world.animate(SET, conversation_id="con-1").result()
        await trio.sleep(3600.0)
        session = world.animate("more", conversation_id="con-1")
        assert (await session.result()).attempts == 3


async def test_an_empty_follow_up_is_tried_again_and_then_the_good_reply_is_returned(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("first"), answer(), answer()) as world:
        session = world.animate(SET, conversation_id="con-1")
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "first")
        assert ended.reason == "auto-continue ended: the model had nothing more to say"
        assert await world.runtime.stop_message("con-1") is None, "cleared"


async def test_a_follow_up_that_hangs_is_cut_after_500_seconds(autojump_clock: MockClock) -> None:
    config = Config(rules=RulesConfig(discover=False), budget=BudgetConfig(max_s=5000.0))
    hanging: Script = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "hm"), Hang()]
    scripts = [answer("first"), hanging, answer("second"), answer("third")]
    async with open_world(*scripts, config=config) as world:
        began = trio.current_time()
        session = world.animate(SET)
        assert (await session.result()).output == "third"
        assert trio.current_time() - began == pytest.approx(500.0, abs=1.0)
        assert world.provider.most_live == 1


async def test_identical_replies_end_the_chain_as_capped(autojump_clock: MockClock) -> None:
    async with open_world(*[answer("same") for _ in range(13)]) as world:
        session = world.animate('work <**stopMessage:"go on",14**>')
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.CAPPED, "same")
        assert reasons(session)[-1] == WhyNot.REPEATING
        assert len(world.provider.requests) == 11, "the first asked something else"


# --- stops and disconnects


async def until_attempt(session: ObservedSession, attempt: int) -> None:
    async for event in session.handle.events():
        if isinstance(event.event, Text) and event.event.attempt == attempt:
            return


SLOW: list[Step] = [
    StreamStarted(),
    BlockStarted(0, "text"),
    TextDelta(0, "second, "),
    Pause(5.0),
    *answer("and more")[2:],
]


async def test_a_disconnect_in_a_follow_up_returns_the_good_reply(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("first"), SLOW) as world:
        session = world.animate(SET, conversation_id="con-1")
        await until_attempt(session, 2)
        await session.detach()
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "first")
        assert (await state_of(session, world)).used == 1
        await trio.sleep(60.0)
        assert world.provider.live == 0


async def test_a_client_that_leaves_gets_its_answer_finished_but_not_continued(
    autojump_clock: MockClock,
) -> None:
    async with open_world(SLOW) as world:
        session = world.animate(SET)
        await until_attempt(session, 1)
        await session.detach()
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "second, and more")
        assert reasons(session) == [WhyNot.DISCONNECTED]


async def test_an_interrupt_ends_the_chain_and_the_next_prompt_has_what_is_left(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("first"), SLOW, answer("a"), answer("b")) as world:
        session = world.animate(SET, conversation_id="con-1")
        await until_attempt(session, 2)
        await session.interrupt()
        ended = await session.result()
        assert (ended.status, ended.output) == (SessionStatus.CANCELLED, "first")
        after = world.animate("more", conversation_id="con-1")
        assert (await after.result()).attempts == 2
        assert reasons(after) == ["continue", WhyNot.EXHAUSTED]


async def test_closing_the_runtime_in_a_chain_leaves_a_state_that_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("first"), SLOW) as world:
        session = world.animate(SET, conversation_id="con-1")
        await until_attempt(session, 2)
    state = await kept_state(world.store.reopen(), "con-1")
    assert state is not None
    assert (state.used, state.remaining) == (1, 1)


async def test_a_chain_whose_host_was_killed_goes_on_with_what_is_left(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with doomed_host(store, answer("first"), SPEAKING, clock=clock, seed=1) as lost:
        handle = lost.animate(SET)
        async for event in handle.events():
            if isinstance(event.event, Text) and event.event.attempt == 2:
                break
    provider = ScriptedProvider(answer("second"), answer("third"), answer("never"))
    async with host(store.reopen(), provider=provider, clock=clock, seed=2) as heir:
        await trio.sleep(130)
        ended = await (await heir.recover(handle.session_id)).result()
    assert (ended.status, ended.output, ended.attempts) == (SessionStatus.COMPLETED, "third", 2)
    assert [users(request) for request in provider.requests] == [
        ["work ", "go on"],
        ["work ", "go on", "go on"],
    ]
    state = await kept_state(store, handle.conversation_id)
    assert state is not None
    assert state.used == 2


# --- whatever happens, whenever


def replay(test: str, seed: int) -> str:
    """Printed with every failure: the command that shows it again."""
    place = f"tests/midstream/test_continuation.py::{test}[{seed}]"
    return f"replay: MIDSTREAM_SEEDS={seed + 1} .venv/bin/pytest '{place}'"


def wild_hop(random: Random) -> Script:
    """One stream of a chain: good, bad or slow, at any pace."""
    steps: list[Step] = [StreamStarted(), BlockStarted(0, "text")]
    for _ in range(random.randint(0, 4)):
        steps.append(
            random.choice([Pause(random.random() / 5), TextDelta(0, f"word{random.random()} ")])
        )
    kind = random.choices(
        ["good", "foo", "empty", "quota", "refused", "late quota", "slow close", "hang"],
        [10, 3, 2, 1, 1, 1, 2, 1],
    )[0]
    match kind:
        case "good":
            return [*steps, TextDelta(0, "fine"), *answer("!")[3:]]
        case "foo":
            return [*steps, TextDelta(0, "foo"), random.choice([Hang(), Pause(0.03)])]
        case "empty":
            return [Pause(random.random() / 5), *answer()]
        case "quota":
            return [QUOTA]
        case "refused":
            return [REFUSED]
        case "late quota":
            return [*steps, QUOTA]
        case "slow close":
            return [SlowClose(random.random() / 5), *steps, TextDelta(0, "fine"), *answer("!")[3:]]
        case _:
            return [*steps, Hang()]


class SlowStore(MemoryStore):
    """Takes its time to acknowledge, so that a stop can come while something is written."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        before, after = self._random.random() / 5, self._random.random() / 5
        await trio.sleep(before)
        receipt = await super().commit(operations, key=key, durable=durable)
        await trio.sleep(after)
        return receipt


async def disturb(session: ObservedSession, random: Random) -> None:
    """Something that ends chains, at any moment of one."""
    await trio.sleep(random.choice([0.0, random.random() / 10, random.random() * 2]))
    verbs = random.sample([session.detach, session.interrupt, session.cancel], k=3)
    for verb in verbs[: random.randint(0, 2)]:
        if session.handle.ended is None:
            await verb()
            await trio.sleep(random.choice([0.0, random.random() / 10]))


SEEDS = int(os.environ.get("MIDSTREAM_SEEDS", "150"))
"""How many are explored; set the variable for a longer search."""


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_n_is_never_exceeded_and_never_lost_whatever_happens_in_a_chain(
    seed: int, autojump_clock: MockClock
) -> None:
    """The seed decides the pace, what goes wrong, and when the user stops or leaves."""
    print(replay("test_n_is_never_exceeded_and_never_lost_whatever_happens_in_a_chain", seed))
    random = Random(seed)
    n = random.randint(1, 4)
    config = Config(
        rules=RulesConfig(discover=False, repeat_mode=RepeatMode.ALWAYS),
        stop_message=StopMessageConfig(follow_up_deadline_s=3.0),
    )
    scripts = [wild_hop(random) for _ in range(40)]
    store = SlowStore(random)
    async with open_world(*scripts, rules=[NO_FOO], config=config, store=store, seed=seed) as world:
        used = 0
        for number in range(3):
            directive = f' <**stopMessage:"go on",{n}**>' if number == 0 else ""
            session = world.animate(f"prompt {number}{directive}", conversation_id="con-1")
            world_before = len(world.provider.requests)
            await disturb(session, random)
            with trio.move_on_after(2.0):
                await session.result()
            if session.handle.ended is None:
                await session.cancel("the test has waited enough")
            with trio.fail_after(60):
                ended = await session.result()
            await trio.sleep(0.5)
            assert world.provider.live == 0
            assert len(world.provider.requests) - world_before <= 17
            state = await kept_state(world.store, "con-1")
            if state is None:
                assert not reasons(session), "it was refused before anything of it was kept"
                return
            check_count(session, state, n, used)
            used = state.used
            if ended.status is SessionStatus.RATE_LIMITED or not state.is_armed:
                return
            await trio.sleep(1.0)


def check_count(session: ObservedSession, state: StopMessageState, n: int, before: int) -> None:
    """What is counted is exactly what was asked for, less what a spent quota has refused."""
    if not state.is_armed:
        return
    ended = session.handle.ended
    assert ended is not None
    sent = count_continuations(session.requests)
    refused = sent > 0 and ended.status is SessionStatus.RATE_LIMITED
    assert state.used == before + sent - refused
    assert state.used <= n
    assert sent <= reasons(session).count("continue") <= sent + 1


# --- `bd`, the real command


BD = """#!/bin/sh
echo "$PWD $*" >> "{log}"
{body}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a task list, and a user directory with the texts of the stages."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work" / ".beads").mkdir(parents=True)
    user = tmp_path / "user"
    for stage, path in TEMPLATE_PATHS.items():
        (user / path).parent.mkdir(parents=True, exist_ok=True)
        (user / path).write_text(f"{stage}: {{{{BASE_STOP_MESSAGE}}}}")
    (user / "stopMessage" / "m.md").write_text("from a file")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("MIDSTREAM_USER_DIR", str(user))
    return tmp_path


def install_bd(project: Path, body: str) -> Path:
    log = project / "bd.log"
    program = project / "bin" / "bd"
    program.write_text(BD.format(log=log, body=body))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return log


def staged_texts(world: World) -> list[str]:
    return [users(request)[-1] for request in world.provider.requests[1:]]


async def test_bd_is_asked_in_the_directory_of_the_session_and_chooses_the_stage(
    project: Path,
) -> None:
    log = install_bd(project, 'case "$*" in *in_progress*) echo \'[{"id":"a-1"}]\';; esac')
    scripts = [answer(f"reply {number}") for number in range(3)]
    async with open_world(*scripts, cwd=project / "work") as world:
        session = world.animate('work <**stopMessage:"T",2**> <**stopMessage:on,2**>')
        assert (await session.result()).status is SessionStatus.COMPLETED
        assert staged_texts(world) == ["status_probe: T", "active_continue: T"]
    asked = log.read_text().splitlines()
    assert asked == [f"{project / 'work'} --no-db --json list --status in_progress"], "cached"


async def test_an_idle_task_list_is_summed_up_once_and_then_it_is_over(project: Path) -> None:
    install_bd(project, "echo '[]'")
    scripts = [answer("a"), answer("a summary")]
    async with open_world(*scripts, cwd=project / "work") as world:
        session = world.animate("work <**stopMessage:on,5**>")
        ended = await session.result()
        assert (ended.output, reasons(session)) == (
            "a summary",
            ["continue", WhyNot.STAGES_OVER],
        )


@pytest.mark.parametrize("body", ["exit 1", "echo nonsense", "sleep 30", "sleep 30 & wait"])
async def test_a_bd_that_fails_or_hangs_is_replaced_by_the_conversation(
    project: Path, body: str
) -> None:
    install_bd(project, body)
    config = Config(
        rules=RulesConfig(discover=False), stop_message=StopMessageConfig(bd_timeout_s=0.3)
    )
    async with open_world(answer("a"), answer("b"), cwd=project / "work", config=config) as world:
        session = world.animate("work <**stopMessage:on,1**>")
        with trio.fail_after(20):
            ended = await session.result()
        assert (ended.output, staged_texts(world)) == ("b", ["status_probe:"])


async def test_g93_without_a_project_the_work_is_never_idle(project: Path) -> None:
    install_bd(project, "echo '[]'")
    (project / "elsewhere").mkdir()
    async with open_world(answer("a"), answer("b"), cwd=project / "elsewhere") as world:
        session = world.animate("work <**stopMessage:on,1**>")
        await session.result()
        assert staged_texts(world) == ["status_probe:"]
    assert not (project / "bd.log").exists()


async def test_mode_on_without_templates_fails_the_prompt_and_keeps_nothing(
    project: Path,
) -> None:
    (project / "user" / TEMPLATE_PATHS[next(iter(TEMPLATE_PATHS))]).unlink()
    async with open_world(cwd=project / "work") as world:
        session = world.animate("work <**stopMessage:on,1**>", conversation_id="con-1")
        ended = await session.result()
        assert ended.status is SessionStatus.FAILED
        assert ended.reason is not None
        assert "stopMessage/stage-status-check.md" in ended.reason
        assert not world.provider.requests
        assert await world.store.count(Book.CONVERSATIONS, {}) == 0
        assert await world.store.count(Book.SESSIONS, {}) == 0


async def test_the_text_of_a_file_directive_comes_from_the_user_directory(project: Path) -> None:
    async with open_world(answer("a"), answer("b"), cwd=project / "work") as world:
        session = world.animate("work <**stopMessage:file://stopMessage/m.md,1**>")
        await session.result()
        assert users(world.provider.requests[1]) == ["work ", "from a file"]


@pytest.mark.parametrize("path", ["stopMessage/none.md", "../work/secret", "/etc/passwd"])
async def test_a_file_directive_that_cannot_be_read_is_ignored_and_told(
    project: Path, path: str
) -> None:
    (project / "work" / "secret").write_text("secret")
    async with open_world(answer("a"), cwd=project / "work") as world:
        session = world.animate(f"work <**stopMessage:file://{path},1**>")
        assert (await session.result()).attempts == 1
        assert seen(session, AlertRaised)
        check_no_directive_was_sent(world)


# --- configuration


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("stop_message", "stop_after_identical", -1),
        ("stop_message", "bd_timeout_s", "soon"),
        ("stop_message", "bd_mode", "maybe"),
        ("stop_message", "stop_after", 5),
        ("files", "cap_bytes", -1),
        ("files", "max_entries", 0),
        ("files", "unresolved_style", "loud"),
        ("files", "alow", ["."]),
        ("hooks", "deadline_s", -1.0),
    ],
)
def test_a_wrong_key_of_the_configuration_is_named(section: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError) as raised:
        config_from({section: {key: value}})
    assert raised.value.key == f"{section}.{key}"


def test_a_guard_can_be_switched_off() -> None:
    config = config_from({"stop_message": {"stop_after_identical": 0, "stop_after_s": 0}})
    assert config.stop_message.stop_after_identical == 0


async def test_the_event_log_tells_every_decision_with_its_reason(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("a"), answer("b"), answer("c")) as world:
        session = world.animate(SET)
        await session.result()
        said = [json.loads(msgspec.json.encode(event)) for event in session.events]
        decisions = [
            event["event"] for event in said if event["event"]["event"] == "continuation.decided"
        ]
        assert [decision["record"]["remaining"] for decision in decisions] == [2, 1, 0]
        assert decisions[0]["text"] == "go on"
        assert decisions[-1]["record"]["reason"] == "exhausted"


def test_calls_of_a_reply_are_no_words() -> None:
    """Keeps the helper of this file honest: a call is nothing that a user said."""
    request = ModelRequest("m", (AssistantItem((ToolCallPart("c", "t", "{}"),)),))
    assert users(request) == []


async def test_no_session_record_is_left_by_a_prompt_that_was_stopped_before_it_began(
    autojump_clock: MockClock,
) -> None:
    async with open_world(answer("a")) as world:
        session = world.animate("hello")
        await session.cancel()
        assert (await session.result()).status is SessionStatus.CANCELLED
        found = await world.store.find(Book.SESSIONS, Query())
        assert len(found.rows) <= 1

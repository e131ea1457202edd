"""Conversations in a store: whole writes, one live session, reminders that are on record."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from midstream.messages.conversation import (
    AnyItem,
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
from midstream.messages.errors import FenceLost, StoreError, Unreadable, VersionConflict
from midstream.messages.record import Crossing, Fence, SessionStatus
from midstream.messages.transition import (
    AttachRunning,
    Cancel,
    HeartbeatTouch,
    OrphanFailed,
    Outcome,
    Recover,
    Revive,
    Terminal,
)
from midstream.stores.conversation_draft import Claim, ConversationWrite
from midstream.stores.conversation_list import list_conversations
from midstream.stores.conversation_load import Conversation, load_conversation
from midstream.stores.conversation_meta import ConversationMeta, KeptMeta
from midstream.stores.conversations import (
    ConversationBusy,
    accept_prompt,
    append_items,
    commit_write,
    finish,
    keep_state,
    replace_context,
)
from midstream.stores.item_log import read_items
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition, load_session
from midstream.stores.sqlite import open_sqlite
from midstream.stores.store import Append, Book, Log, Put, RequireFence, Store, encode

START = "2026-03-01T12:00:00.000Z"
LATER = "2026-03-01T12:00:30.000Z"
OWNER = Fence("host-a", 1)
MINE = Claim("s-1", OWNER)
HELLO = UserItem("hello")
ANSWER = AssistantItem((TextPart("good day"),), provider="anthropic")
REMINDER = ReminderItem(text="do not", rules=("no-any", "no-todo"))

EVERY_ITEM: tuple[AnyItem, ...] = (
    HELLO,
    SystemItem("file", kind="file_attachment", path="a.py"),
    AssistantItem(
        (
            ThinkingPart("hm", signature="sig"),
            OpaquePart("anthropic", "redacted_thinking", '{"b": 1.0}'),
            ToolCallPart("call-1", "edit", '{"path":"a"}'),
        ),
        provider="anthropic",
        settled=True,
    ),
    ToolResultItem("call-1", "edit", "done", is_error=True),
    REMINDER,
)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = MemoryStore() if request.param == "memory" else await open_sqlite(tmp_path / "m.db")
    async with opened:
        yield opened


def opening(id: str, fence: Fence = OWNER) -> AttachRunning:
    return AttachRunning(id=id, fence=fence, started_at=START, provider="anthropic")


def completed(id: str = "s-1", fence: Fence = OWNER) -> Terminal:
    return Terminal(
        id=id,
        fence=fence,
        status=Outcome.COMPLETED,
        ended_at=LATER,
        exit_code=0,
        last_activity_at=LATER,
    )


async def write(store: Store, decide: Callable[[Conversation], ConversationWrite]) -> Any:
    """Read, decide, commit; what was decided has to be what is then read."""
    done = await commit_write(store, await load_conversation(store, "c"), decide)
    assert await load_conversation(store, "c") == done.conversation
    return done


async def accept(store: Store, id: str = "s-1", fence: Fence = OWNER) -> ConversationWrite:
    return await write(store, lambda c: accept_prompt(c, opening(id, fence), [HELLO]))


async def say(store: Store, *items: AnyItem, claim: Claim = MINE) -> ConversationWrite:
    return await write(
        store, lambda c: append_items(c, claim, items, turn=c.turn + 1, attempt=1, at=LATER)
    )


async def status_of(store: Store, id: str) -> SessionStatus:
    kept = await load_session(store, id)
    assert kept is not None
    return kept.record.status


# --- the course of a session ----------------------------------------------------------


async def test_a_conversation_that_nobody_began_is_empty(store: Store) -> None:
    conversation = await load_conversation(store, "c")

    assert (conversation.items, conversation.turn, conversation.recorded) == ((), 0, {})
    assert conversation.session is None


async def test_prompt_answer_and_end_are_kept_in_order(store: Store) -> None:
    accepted = await accept(store)
    await say(store, *EVERY_ITEM[1:4])
    ended = await write(
        store,
        lambda c: finish(
            c, MINE, completed(), [ANSWER], turn=2, attempt=3, transcript=[{"raw": 1}]
        ),
    )

    conversation = await load_conversation(store, "c")
    assert conversation.items == (*EVERY_ITEM[:4], ANSWER)
    assert conversation.turn == 2
    assert [accepted.crossing, ended.crossing] == [Crossing.STARTED, Crossing.ENDED]
    assert conversation.session is not None
    record = conversation.session.record
    assert (record.status, record.conversation_id) == (SessionStatus.COMPLETED, "c")
    assert await store.length(Log.TRANSCRIPTS, "s-1") == 1


async def test_what_was_promised_waits_for_the_disk_and_what_can_be_said_again_does_not(
    store: Store,
) -> None:
    accepted, said = await accept(store), await say(store, ANSWER)
    shortened = await write(store, lambda c: replace_context(c, [HELLO], MINE))
    ended = await write(store, lambda c: finish(c, MINE, completed(), turn=2, attempt=1))

    writes = (accepted, said, shortened, ended)
    assert [done.durable for done in writes] == [True, False, True, True]


async def test_the_next_prompt_continues_the_conversation(store: Store) -> None:
    await accept(store)
    await write(store, lambda c: finish(c, MINE, completed(), [ANSWER], turn=1, attempt=1))

    await accept(store, "s-2")

    assert (await load_conversation(store, "c")).items == (HELLO, ANSWER, HELLO)


async def test_a_conversation_has_one_live_session(store: Store) -> None:
    await accept(store)

    with pytest.raises(ConversationBusy, match="s-1 is live"):
        await accept(store, "s-2")
    assert await store.count(Book.SESSIONS, {}) == 1


async def test_of_two_prompts_at_once_one_is_accepted(store: Store) -> None:
    empty = await load_conversation(store, "c")

    await commit_write(store, empty, lambda c: accept_prompt(c, opening("s-1"), [HELLO]))
    with pytest.raises(ConversationBusy):
        await commit_write(store, empty, lambda c: accept_prompt(c, opening("s-2"), [HELLO]))

    assert (await load_conversation(store, "c")).items == (HELLO,)


async def test_a_session_id_is_used_once(store: Store) -> None:
    await accept(store)
    other = await load_conversation(store, "other")

    with pytest.raises(VersionConflict, match="s-1: exists already"):
        await commit_write(store, other, lambda c: accept_prompt(c, opening("s-1"), [HELLO]))


async def test_a_long_conversation_is_read_whole(store: Store) -> None:
    await accept(store)
    many = [UserItem(f"{number}") for number in range(2_345)]

    await say(store, *many)

    assert (await load_conversation(store, "c")).items == (HELLO, *many)


# --- reminders ------------------------------------------------------------------------


async def test_a_reminder_and_its_records_are_one_write(store: Store) -> None:
    await accept(store)

    injected = await say(store, ANSWER, REMINDER)

    conversation = await load_conversation(store, "c")
    assert conversation.recorded == {"no-any": 1, "no-todo": 1}
    assert [(r.rule, r.position, r.attempt) for r in conversation.injections] == [
        ("no-any", 2, 1),
        ("no-todo", 2, 1),
    ]
    kinds = {type(operation) for operation in injected.operations}
    assert {RequireFence, Append, Put} <= kinds


async def test_a_write_that_fails_leaves_neither_reminder_nor_record(store: Store) -> None:
    await accept(store)
    conversation = await load_conversation(store, "c")
    spoilt = append_items(conversation, MINE, [REMINDER], turn=1, attempt=1, at=LATER).plus(
        Put(Book.STATE, "x", encode({}), 7)
    )

    with pytest.raises(VersionConflict):
        await store.commit(spoilt.operations)

    assert await load_conversation(store, "c") == conversation


async def test_a_record_without_its_reminder_does_not_spend_the_rule(store: Store) -> None:
    await accept(store)
    await say(store, REMINDER)
    stray = {"conversationId": "c", "sessionId": "s-0", "rule": "stray", "turn": 1, "attempt": 1}
    await store.put(Book.INJECTIONS, "c/0/stray", {**stray, "position": 0, "recordedAt": START}, 0)

    assert set((await load_conversation(store, "c")).recorded) == {"no-any", "no-todo"}


async def test_compaction_rearms_what_it_drops_and_keeps_what_it_keeps(store: Store) -> None:
    other = ReminderItem(text="other", rules=("no-print",))
    await accept(store)
    await say(store, REMINDER, ANSWER, other)
    summary = SystemItem("what was said")

    with pytest.raises(ConversationBusy):
        await write(store, lambda c: replace_context(c, [summary]))
    await write(store, lambda c: replace_context(c, [summary, other], MINE))

    conversation = await load_conversation(store, "c")
    assert conversation.items == (summary, other)
    assert set(conversation.recorded) == {"no-print"}
    assert await store.count(Book.INJECTIONS, {"conversationId": "c"}) == 1
    await say(store, ANSWER)
    assert (await load_conversation(store, "c")).items == (summary, other, ANSWER)
    assert await store.length(Log.ITEMS, "c") == 7


async def test_an_undo_between_sessions_needs_no_claim(store: Store) -> None:
    await accept(store)
    await write(store, lambda c: finish(c, MINE, completed(), [REMINDER], turn=1, attempt=1))

    await write(store, lambda c: replace_context(c, c.items[:1]))
    undone = await load_conversation(store, "c")
    await write(store, lambda c: replace_context(c, ()))

    assert (undone.items, undone.recorded) == ((HELLO,), {})
    assert (await load_conversation(store, "c")).items == ()


# --- owners ---------------------------------------------------------------------------


def late_append(conversation: Conversation) -> ConversationWrite:
    return append_items(conversation, MINE, [ANSWER], turn=9, attempt=1, at=LATER)


def late_finish(conversation: Conversation) -> ConversationWrite:
    return finish(conversation, MINE, completed(), [ANSWER], turn=9, attempt=1)


def late_compaction(conversation: Conversation) -> ConversationWrite:
    return replace_context(conversation, [], MINE)


def late_state(conversation: Conversation) -> ConversationWrite:
    return keep_state(conversation, "budget", {}, MINE)


@pytest.mark.parametrize("late", [late_append, late_finish, late_compaction, late_state])
@pytest.mark.parametrize("lost_to", ["a recovery", "a newer session"])
@pytest.mark.parametrize("has_read", ["before", "after"])
async def test_a_stalled_owner_writes_nothing_any_more(
    store: Store,
    late: Callable[[Conversation], ConversationWrite],
    lost_to: str,
    has_read: str,
) -> None:
    await accept(store)
    stale = await load_conversation(store, "c")
    lost = OrphanFailed(id="s-1", ended_at=LATER, error="no heartbeat for 91 s")
    await apply_transition(store, lost)
    if lost_to == "a recovery":
        await apply_transition(store, Recover(id="s-1", owner="host-b", at=LATER))
    else:
        await accept(store, "s-2")
    after = await load_conversation(store, "c")

    with pytest.raises(FenceLost):
        await commit_write(store, stale if has_read == "before" else after, late)

    assert await load_conversation(store, "c") == after


async def test_a_session_of_the_same_owner_cannot_write_into_the_next_one(store: Store) -> None:
    await accept(store)
    await write(store, lambda c: finish(c, MINE, completed(), turn=1, attempt=1))
    await accept(store, "s-2")

    with pytest.raises(FenceLost, match="s-1 lost the conversation to session s-2"):
        await say(store, ANSWER)


async def test_a_presumed_death_is_revoked_by_what_the_owner_says(store: Store) -> None:
    await accept(store)
    await apply_transition(store, OrphanFailed(id="s-1", ended_at=LATER, error="lost"))

    said = await say(store, ANSWER)

    assert said.crossing is Crossing.REVIVED
    assert await status_of(store, "s-1") is SessionStatus.RUNNING


async def test_a_session_that_was_presumed_dead_may_end_as_what_it_was(store: Store) -> None:
    await accept(store)
    await apply_transition(store, OrphanFailed(id="s-1", ended_at=LATER, error="lost"))

    await write(store, lambda c: finish(c, MINE, completed(), [ANSWER], turn=1, attempt=1))

    kept = await load_session(store, "s-1")
    assert kept is not None
    assert (kept.record.status, kept.record.error) == (SessionStatus.COMPLETED, None)


@pytest.mark.parametrize(
    "back",
    [
        Revive(id="s-1", fence=OWNER, last_activity_at=LATER),
        Recover(id="s-1", owner="host-b", at=LATER),
    ],
    ids=["revive", "recover"],
)
async def test_nobody_comes_back_into_a_conversation_that_went_on(
    store: Store, back: Revive | Recover
) -> None:
    await accept(store)
    await apply_transition(store, OrphanFailed(id="s-1", ended_at=LATER, error="lost"))
    await accept(store, "s-2")

    with pytest.raises(FenceLost, match="lost conversation c to s-2"):
        await apply_transition(store, back)

    assert await status_of(store, "s-1") is SessionStatus.FAILED


async def test_a_recovery_and_a_new_prompt_at_once_leave_one_live_session(store: Store) -> None:
    await accept(store)
    await apply_transition(store, OrphanFailed(id="s-1", ended_at=LATER, error="lost"))
    seen_dead = await load_conversation(store, "c")
    await apply_transition(store, Recover(id="s-1", owner="host-b", at=LATER))

    with pytest.raises(ConversationBusy):
        await commit_write(store, seen_dead, lambda c: accept_prompt(c, opening("s-2"), [HELLO]))

    assert await store.count(Book.SESSIONS, {"status": "running"}) == 1


async def test_new_output_of_a_recovered_session_counts_as_progress(store: Store) -> None:
    await accept(store)
    await apply_transition(store, Recover(id="s-1", owner="host-b", at=LATER))
    successor = Claim("s-1", Fence("host-b", 2))

    await say(store, UserItem("go on"), claim=successor)
    unmoved = await load_session(store, "s-1")
    await say(store, ANSWER, claim=successor)
    moving = await load_session(store, "s-1")

    assert unmoved is not None
    assert moving is not None
    assert (unmoved.record.recoveries, moving.record.recoveries) == (1, 0)


# --- races with others ----------------------------------------------------------------


async def test_a_cancel_from_elsewhere_wins_and_what_was_said_is_kept(store: Store) -> None:
    await accept(store)
    before = await load_conversation(store, "c")
    await apply_transition(store, Cancel(id="s-1", ended_at=LATER, reason="user"))

    ended = await commit_write(
        store, before, lambda c: finish(c, MINE, completed(), [ANSWER], turn=1, attempt=1)
    )

    assert ended.crossing is None
    assert await status_of(store, "s-1") is SessionStatus.CANCELLED
    assert (await load_conversation(store, "c")).items == (HELLO, ANSWER)


async def test_a_heartbeat_meanwhile_does_not_disturb_the_end(store: Store) -> None:
    await accept(store)
    before = await load_conversation(store, "c")
    beat = HeartbeatTouch(id="s-1", fence=OWNER, last_activity_at=LATER)
    await apply_transition(store, beat)

    ended = await commit_write(
        store, before, lambda c: finish(c, MINE, completed(), [ANSWER], turn=1, attempt=1)
    )

    assert ended.crossing is Crossing.ENDED
    assert (await load_conversation(store, "c")).items == (HELLO, ANSWER)


async def test_a_write_that_is_sent_again_is_applied_once(store: Store) -> None:
    await accept(store)
    before = await load_conversation(store, "c")

    def end(conversation: Conversation) -> ConversationWrite:
        return finish(conversation, MINE, completed(), [ANSWER], turn=1, attempt=1)

    first = await commit_write(store, before, end)
    again = await commit_write(store, before, end)

    assert (first.crossing, again.crossing) == (Crossing.ENDED, None)
    assert again.conversation == first.conversation
    assert (await load_conversation(store, "c")).items == (HELLO, ANSWER)


async def test_a_key_of_the_callers_holds_whatever_is_decided_the_second_time(
    store: Store,
) -> None:
    await accept(store)
    before = await load_conversation(store, "c")
    for text in ("one", "two"):
        item = AssistantItem((TextPart(text),))
        await commit_write(
            store,
            before,
            lambda c, item=item: append_items(c, MINE, [item], turn=1, attempt=1, at=LATER),
            key="s-1/1/2",
        )

    assert (await load_conversation(store, "c")).items == (HELLO, AssistantItem((TextPart("one"),)))


def test_two_different_writes_never_share_a_key() -> None:
    conversation = Conversation(KeptMeta(ConversationMeta(id="c"), 0))
    keys = {
        accept_prompt(conversation, opening(id), [UserItem(text)]).key
        for id in ("s-1", "s-2")
        for text in ("a", "b")
    }

    assert len(keys) == 4


# --- what others keep -----------------------------------------------------------------


async def test_states_of_a_conversation_are_kept_by_name(store: Store) -> None:
    await accept(store)
    await write(store, lambda c: keep_state(c, "stopMessage", {"used": 1}, MINE))
    await write(store, lambda c: keep_state(c, "budget", {"requests": 2}))
    await write(store, lambda c: keep_state(c, "budget", None))
    await write(store, lambda c: finish(c, MINE, completed(), turn=1, attempt=1))

    states = (await load_conversation(store, "c")).kept.meta.states
    assert {name: msgspec.json.decode(state) for name, state in states.items()} == {
        "stopMessage": {"used": 1}
    }


async def test_events_can_be_kept_with_what_they_tell_of(store: Store) -> None:
    await accept(store)
    conversation = await load_conversation(store, "c")
    event = Append(Log.EVENTS, "s-1", (encode({"event": "session.ended"}),), 0)

    await commit_write(
        store,
        conversation,
        lambda c: finish(c, MINE, completed(), turn=1, attempt=1).plus(event),
    )

    assert await store.length(Log.EVENTS, "s-1") == 1


async def test_what_cannot_be_read_is_reported_by_its_place(store: Store) -> None:
    await store.put(Book.CONVERSATIONS, "c", {"id": "c", "turn": "three"}, 0)

    with pytest.raises(StoreError, match=r"c: cannot be read as ConversationMeta"):
        await load_conversation(store, "c")
    with pytest.raises(StoreError):
        await accept(store)
    assert await store.count(Book.SESSIONS, {}) == 0


@pytest.mark.parametrize("entry", [{"kind": "hologram"}, {}, "words", 3])
async def test_an_item_that_cannot_be_read_is_reported_by_its_place(
    entry: object, store: Store
) -> None:
    """Such as one that a newer version has written."""
    await accept(store)
    await store.commit([Append(Log.ITEMS, "c", (encode(entry),), 1)])

    for read in (load_conversation(store, "c"), read_items(store, "c")):
        with pytest.raises(Unreadable, match="item 1 of c cannot be read"):
            await read
    assert await read_items(store, "c", 2) == ()


async def test_a_conversation_that_cannot_be_read_hides_none_of_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("c", "d"):
        begun = msgspec.structs.replace(opening(f"s-{name}"), conversation_id=name)
        await apply_transition(store, begun)
    await store.commit([Append(Log.ITEMS, "c", (encode({}),), 0)])

    assert [found.meta.id for found in await list_conversations(store, 5)] == ["d"]
    assert "a conversation is passed over: item 0 of c cannot be read" in caplog.text

"""Whatever two hosts do to one conversation, in whatever order, its promises hold.

Each host acts on what it has read, however long ago, and under the claim it was once
given, as a host does that was stalled and wakes up.
"""

from dataclasses import dataclass, field

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.messages.conversation import AssistantItem, ReminderItem, TextPart, UserItem
from midstream.messages.errors import FenceLost, RecordError
from midstream.messages.record import Fence, SessionRecord
from midstream.messages.transition import (
    AnyTransition,
    AttachRunning,
    Cancel,
    HeartbeatTouch,
    OrphanFailed,
    Outcome,
    Recover,
    Revive,
    Terminal,
)
from midstream.stores.conversation_draft import Claim
from midstream.stores.conversation_load import Conversation, load_conversation
from midstream.stores.conversations import (
    ConversationBusy,
    accept_prompt,
    append_items,
    commit_write,
    finish,
    replace_context,
)
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition
from midstream.stores.store import Book, Log, Query, Store

AT = "2026-03-01T12:00:00.000Z"
STEPS = st.tuples(
    st.sampled_from(
        [
            "read",
            "read",
            "accept",
            "accept",
            "say",
            "say",
            "remind",
            "compact",
            "finish",
            "beat",
            "lose",
            "lose",
            "revive",
            "recover",
            "cancel",
        ]
    ),
    st.integers(0, 1),
)


@dataclass
class Host:
    """One host: what it has read, and what it believes to own."""

    name: str
    seen: Conversation
    claim: Claim = field(default_factory=lambda: Claim("s-none", Fence("nobody", 1)))


async def act(store: Store, host: Host, step: str, number: int) -> None:
    claim = host.claim
    said = AssistantItem((TextPart(f"{claim.session_id} {claim.fence.token}"),))
    match step:
        case "read":
            host.seen = await load_conversation(store, "c")
        case "accept":
            mine = Claim(f"s-{number}", Fence(host.name, 1))
            begin = AttachRunning(id=mine.session_id, fence=mine.fence, started_at=AT, provider="p")
            await commit_write(
                store, host.seen, lambda c: accept_prompt(c, begin, [UserItem("prompt")])
            )
            host.claim = mine
        case "say" | "remind":
            reminder = ReminderItem(text=str(number), rules=(f"rule-{number % 3}",))
            items = [said, reminder] if step == "remind" else [said]
            await commit_write(
                store,
                host.seen,
                lambda c: append_items(c, claim, items, turn=number, attempt=1, at=AT),
            )
        case "compact":
            await commit_write(
                store, host.seen, lambda c: replace_context(c, c.items[len(c.items) // 2 :], claim)
            )
        case "finish":
            end = Terminal(
                id=claim.session_id,
                fence=claim.fence,
                status=Outcome.COMPLETED,
                ended_at=AT,
                exit_code=0,
                last_activity_at=AT,
            )
            await commit_write(
                store, host.seen, lambda c: finish(c, claim, end, [said], turn=1, attempt=1)
            )
        case _:
            await apply_transition(store, transition_of(step, host))


def transition_of(step: str, host: Host) -> AnyTransition:
    id, fence = host.claim.session_id, host.claim.fence
    match step:
        case "beat":
            return HeartbeatTouch(id=id, fence=fence, last_activity_at=AT)
        case "lose":
            return OrphanFailed(id=id, ended_at=AT, error="no heartbeat")
        case "revive":
            return Revive(id=id, fence=fence, last_activity_at=AT)
        case "recover":
            return Recover(id=id, owner=host.name, at=AT, max_recoveries=2)
        case _:
            return Cancel(id=id, ended_at=AT)


async def sessions(store: Store) -> dict[str, SessionRecord]:
    rows = (await store.find(Book.SESSIONS, Query(limit=1_000))).rows
    return {row.id: row.decode(SessionRecord) for row in rows}


async def check(
    store: Store,
    before: dict[str, SessionRecord],
    length_before: int,
) -> None:
    now = await sessions(store)
    conversation = await load_conversation(store, "c")
    last = conversation.kept.meta.session_id

    live = [record.id for record in now.values() if not record.is_terminal]
    assert live in ([], [last]), "one live session, the one that was accepted last"

    for id, record in before.items():
        if record.is_terminal and not record.presumed_dead:
            assert now[id] == record, "a terminal record never changes"
        fence, fence_now = record.fence, now[id].fence
        assert fence is not None
        assert fence_now is not None
        assert fence_now.token >= fence.token, "fences only grow"

    reminders = {
        rule for item in conversation.items if isinstance(item, ReminderItem) for rule in item.rules
    }
    assert set(conversation.recorded) == reminders, "on record if and only if in the context"
    assert await store.count(Book.INJECTIONS, {}) == len(conversation.injections)

    for item in conversation.items[max(0, length_before - conversation.kept.meta.start) :]:
        if isinstance(item, AssistantItem) and last is not None:
            owner = now[last].fence
            assert owner is not None
            assert item.parts == (TextPart(f"{last} {owner.token}"),), "only the owner speaks"


@given(st.lists(STEPS, max_size=40))
@settings(deadline=None, max_examples=150)
def test_whatever_two_hosts_do_the_promises_of_a_conversation_hold(
    steps: list[tuple[str, int]],
) -> None:
    async def main() -> None:
        store = MemoryStore()
        empty = await load_conversation(store, "c")
        hosts = [Host("host-0", empty), Host("host-1", empty)]
        for number, (step, index) in enumerate(steps):
            before, length = await sessions(store), await store.length(Log.ITEMS, "c")
            host = hosts[index]
            try:
                await act(store, host, step, number)
            except (FenceLost, ConversationBusy, RecordError):
                assert await store.length(Log.ITEMS, "c") == length
                assert await sessions(store) == before
            if step == "recover":
                taken = (await sessions(store)).get(host.claim.session_id)
                if taken is not None and taken.fence and taken.fence.owner == host.name:
                    host.claim = Claim(host.claim.session_id, taken.fence)
            if step == "compact":
                continue  # what is new in the context is not new in the conversation
            await check(store, before, length)

    trio.run(main)

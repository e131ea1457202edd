"""What a host does with sessions: animate, summon, cancel, cost; and what is on record then."""

from pathlib import Path

import msgspec
import pytest
import trio
from hosts import (
    SPEAKING,
    configuration,
    host,
    limited,
    notices_so_far,
    record_of,
    until_it_speaks,
    wall_clock,
)
from trio.testing import MockClock

from midstream.actors.announcer import UnknownSession
from midstream.config import Config, RoleConfig
from midstream.messages.conversation import AssistantItem, SystemItem, UserItem
from midstream.messages.errors import ConfigError, RuntimeStopped
from midstream.messages.events import Text
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.notices import Began, Ended
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.messages.session_cost import SessionCost
from midstream.messages.usage import Usage, UsageSource
from midstream.providers.scripted import ScriptedProvider, answer
from midstream.roles import Identity
from midstream.runtime import open_runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.memory import MemoryStore
from midstream.stores.store import Book
from midstream.testing.world import open_world

HELLO = answer("hello", usage=Usage(10, 5, source=UsageSource.REPORTED))


# --- animate


async def test_a_session_is_on_record_from_its_prompt_to_its_end(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, HELLO, clock=clock) as runtime:
        handle = runtime.animate("hi", metadata={"writId": 7})
        ended = await handle.result()
        kept = await handle.record()
    assert ended.status is SessionStatus.COMPLETED
    assert kept == await record_of(store, handle.session_id)
    assert (kept.provider, kept.exit_code, kept.output) == ("scripted", 0, "hello")
    assert kept.conversation_id == handle.conversation_id
    assert kept.metadata == {"writId": 7}
    assert kept.token_usage is not None
    assert (kept.token_usage.input_tokens, kept.token_usage.output_tokens) == (10, 5)
    assert kept.fence is not None
    assert kept.fence.owner.startswith("host-")


async def test_a_runtime_that_is_over_takes_no_prompt(autojump_clock: MockClock) -> None:
    async with open_world(answer("hello")) as world:
        pass
    with pytest.raises(RuntimeStopped):
        world.runtime.animate("too late")


async def test_handles_come_at_once_and_have_different_ids(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), HELLO, HELLO, clock=wall_clock()) as runtime:
        first, second = runtime.animate("a"), runtime.animate("b")
        assert first.session_id != second.session_id
        assert first.ended is None
        await first.result()
        await second.result()


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ProviderFailure(FailureKind.NETWORK, "reset by peer"), SessionStatus.FAILED),
        (ProviderFailure(FailureKind.TIMEOUT, "nothing came"), SessionStatus.TIMEOUT),
    ],
)
async def test_a_failure_is_on_record_with_its_reason(
    failure: ProviderFailure, status: SessionStatus, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    async with host(store, [failure], clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        assert (await handle.result()).status is status
        record = await record_of(store, handle.session_id)
    assert (record.status, record.error, record.exit_code) == (status, failure.message, 1)
    assert record.termination_tag is None


async def test_a_provider_that_raises_is_on_record_before_the_caller_hears_of_it(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:  # no script: opening raises
        handle = runtime.animate("hi")
        ended = await handle.result()
        record = await record_of(store, handle.session_id)
    assert ended.status is record.status
    assert record.is_terminal
    assert record.error


async def test_the_working_directory_is_told_to_a_new_conversation_alone(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    provider = ScriptedProvider(HELLO, HELLO, HELLO)
    async with host(MemoryStore(), provider=provider, clock=wall_clock()) as runtime:
        first = runtime.animate("a", cwd=tmp_path)
        await first.result()
        await runtime.animate("b", cwd=tmp_path, conversation_id=first.conversation_id).result()
        await runtime.animate("c").result()
    told = SystemItem(f"The working directory is {tmp_path}.")
    assert provider.requests[0].items == (told, UserItem("a"))
    assert provider.requests[1].items[-1] == UserItem("b")
    assert provider.requests[1].items.count(told) == 1
    assert provider.requests[2].items == (UserItem("c"),)
    assert provider.requests[0].cwd == str(tmp_path)


async def test_the_environment_of_the_caller_lies_over_that_of_the_identity(
    autojump_clock: MockClock,
) -> None:
    provider = ScriptedProvider(HELLO)
    async with host(MemoryStore(), provider=provider, clock=wall_clock()) as runtime:
        identity = Identity(system="You are Ada.", environment={"A": "identity", "B": "identity"})
        await runtime.animate("hi", identity=identity, environment={"B": "caller"}).result()
    assert provider.requests[0].environment == {"A": "identity", "B": "caller"}
    assert provider.requests[0].system == "You are Ada."


async def test_without_streaming_there_are_no_chunks(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), HELLO, HELLO, clock=wall_clock()) as runtime:
        silent = runtime.animate("hi", streaming=False)
        assert [chunk async for chunk in silent.chunks] == []
        spoken = runtime.animate("hi")
        assert [chunk async for chunk in spoken.chunks] == [Text(1, "hello")]


async def test_late_subscribers_get_the_history_and_then_what_follows(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), answer("one two three"), clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await handle.result()
        late = [await runtime.follow(handle.session_id) for _ in range(3)]
        for chunks in late:
            assert chunks is not None
            texts = [chunk.text async for chunk in chunks if isinstance(chunk, Text)]
            assert "".join(texts) == "one two three"


async def test_a_session_can_be_followed_from_the_moment_it_was_handed_in(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), answer("one two three"), clock=wall_clock()) as runtime:
        chunks = await runtime.follow(runtime.animate("hi").session_id)
        assert chunks is not None
        texts = [chunk.text async for chunk in chunks if isinstance(chunk, Text)]
        assert "".join(texts) == "one two three"


async def test_a_session_that_is_not_let_in_cannot_be_followed(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), limited(after_s=60), clock=wall_clock()) as runtime:
        await runtime.animate("hi").result()
        assert await runtime.follow(runtime.animate("hi").session_id) is None


async def test_thirty_seconds_after_its_end_a_session_cannot_be_followed_any_more(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), HELLO, clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await handle.result()
        await trio.sleep(29)
        assert await runtime.follow(handle.session_id) is not None
        await trio.sleep(2)
        assert await runtime.follow(handle.session_id) is None
        assert await runtime.follow("ses-unknown") is None


# --- summon


def team(**roles: RoleConfig) -> Config:
    return msgspec.structs.replace(configuration(), roles=roles)


async def test_a_role_brings_its_prompt_model_and_environment(autojump_clock: MockClock) -> None:
    role = RoleConfig(
        system="You review.", model="big", environment={"GIT_AUTHOR_NAME": "Reviewer"}
    )
    provider, store = ScriptedProvider(HELLO), MemoryStore()
    async with host(
        store, provider=provider, clock=wall_clock(), config=team(reviewer=role)
    ) as runtime:
        handle = runtime.summon("look", role="reviewer")
        record = await handle.record()
    request = provider.requests[0]
    assert (request.system, request.model) == ("You review.", "big")
    assert request.environment == {"GIT_AUTHOR_NAME": "Reviewer"}
    assert record.metadata == {"trigger": "summon", "role": "reviewer"}


async def test_a_role_is_resolved_at_each_call(autojump_clock: MockClock, tmp_path: Path) -> None:
    path = tmp_path / "prompt.md"
    path.write_text("first")
    provider = ScriptedProvider(HELLO, HELLO)
    config = team(writer=RoleConfig(system_file=str(path)))
    async with host(MemoryStore(), provider=provider, clock=wall_clock(), config=config) as runtime:
        await runtime.summon("a", role="writer").result()
        path.write_text("second")
        await runtime.summon("b", role="writer").result()
        path.unlink()
        with pytest.raises(ConfigError, match=r"roles\.writer\.system_file"):
            runtime.summon("c", role="writer")
    assert [request.system for request in provider.requests] == ["first", "second"]


@pytest.mark.parametrize("role", [None, "nobody"])
async def test_a_session_without_a_known_role_works(
    role: str | None, autojump_clock: MockClock
) -> None:
    async with host(MemoryStore(), HELLO, clock=wall_clock()) as runtime:
        record = await runtime.summon("hi", role=role).record()
    expected = {"trigger": "summon"} if role is None else {"trigger": "summon", "role": role}
    assert record.metadata == expected


async def test_the_callers_metadata_lies_over_that_of_the_summon(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), HELLO, clock=wall_clock()) as runtime:
        record = await runtime.summon(
            "hi", role="coder", metadata={"trigger": "writ", "writId": 3}
        ).record()
    assert record.metadata == {"trigger": "writ", "role": "coder", "writId": 3}


async def test_a_host_may_keep_its_roles_elsewhere(autojump_clock: MockClock) -> None:
    asked: list[str | None] = []

    def resolve(role: str | None) -> Identity:
        asked.append(role)
        return Identity(system=f"You are {role}.")

    provider = ScriptedProvider(HELLO)
    async with open_runtime(
        configuration(), provider=provider, rules=(), store=MemoryStore(), roles=resolve
    ) as runtime:
        await runtime.summon("hi", role="Ada").result()
    assert asked == ["Ada"]
    assert provider.requests[0].system == "You are Ada."


# --- cancel


async def test_a_cancelled_session_stops_at_once_and_keeps_what_it_said(
    autojump_clock: MockClock,
) -> None:
    store, provider = MemoryStore(), ScriptedProvider(SPEAKING)
    async with host(store, provider=provider, clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await until_it_speaks(runtime, handle.session_id)
        began = trio.current_time()
        record = await runtime.cancel(handle.session_id, "enough")
        assert trio.current_time() - began < 0.1
        assert provider.live == 0
        assert (record.status, record.error) == (SessionStatus.CANCELLED, "enough")
        assert record.output == "I am thinking"
        assert record == await record_of(store, handle.session_id)
        assert (await handle.result()).status is SessionStatus.CANCELLED
        conversation = await load_conversation(store, handle.conversation_id)
    assert any(isinstance(item, AssistantItem) for item in conversation.items)


async def test_cancelling_is_idempotent_and_announced_once(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), SPEAKING, clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await until_it_speaks(runtime, handle.session_id)
        records = [await runtime.cancel(handle.session_id, "first")]
        records += [await runtime.cancel(handle.session_id, "later") for _ in range(3)]
        assert all(record == records[0] for record in records)
        assert [type(n) for n in await notices_so_far(runtime)] == [Began, Ended]


async def test_a_session_that_has_ended_is_returned_as_it_is(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), HELLO, clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        record = await handle.record()
        assert await runtime.cancel(handle.session_id) == record


async def test_cancelling_an_unknown_session_names_it(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), clock=wall_clock()) as runtime:
        with pytest.raises(UnknownSession, match="ses-nowhere"):
            await runtime.cancel("ses-nowhere")


async def test_a_session_cancelled_before_it_began_asks_for_nothing(
    autojump_clock: MockClock,
) -> None:
    provider = ScriptedProvider(HELLO)
    async with host(MemoryStore(), provider=provider, clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        record = await runtime.cancel(handle.session_id, "changed my mind")
        assert record.status is SessionStatus.CANCELLED
        assert provider.requests == []


# --- costs


async def test_costs_are_those_of_the_records_and_unknown_ids_are_left_out(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with host(store, HELLO, clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await handle.result()
        paid = SessionRecord(
            id="ses-paid",
            status=SessionStatus.COMPLETED,
            started_at="2026-01-01T00:00:00.000Z",
            provider="claude-code",
            cost_usd=0.25,
        )
        await store.put(Book.SESSIONS, paid.id, paid, 0)
        costs = await runtime.session_costs([handle.session_id, "ses-paid", "ses-unknown"])
    assert costs == {
        handle.session_id: SessionCost(cost_usd=0.0, input_tokens=10, output_tokens=5),
        "ses-paid": SessionCost(cost_usd=0.25),
    }
    assert msgspec.json.encode(costs["ses-paid"]) == b'{"costUsd":0.25}'


async def test_without_ids_no_cost_is_asked_for(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with host(store, clock=wall_clock()) as runtime:
        assert await runtime.session_costs([]) == {}


# --- what becomes known


async def test_each_crossing_is_told_once_with_the_fields_of_the_reference(
    autojump_clock: MockClock,
) -> None:
    async with host(MemoryStore(), HELLO, clock=wall_clock()) as runtime:
        handle = runtime.summon("hi", role="coder")
        await handle.result()
        began, ended = await notices_so_far(runtime)
    assert began == Began(session_id=handle.session_id, anima="coder", trigger="summon")
    assert isinstance(ended, Ended)
    assert (ended.status, ended.exit_code, ended.error) == (SessionStatus.COMPLETED, 0, None)


async def test_a_listener_follows_from_a_number_on(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), HELLO, HELLO, clock=wall_clock()) as runtime:
        await runtime.animate("a").result()
        await runtime.animate("b").result()
        stream = await runtime.notices(after=3)
        assert (await anext(stream)).sequence == 4

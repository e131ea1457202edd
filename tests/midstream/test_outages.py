"""The store goes away and comes back: nothing is lost, nothing arrives twice, order stays."""

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

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

from midstream.actors.clock import SystemClock
from midstream.messages.conversation import ToolResultItem
from midstream.messages.errors import StoreError
from midstream.messages.notices import Began, Ended, Phase, RecordFailed
from midstream.messages.record import SessionStatus
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import OrphanFailed, Recover
from midstream.providers.scripted import Call, Pause, ScriptedProvider, Step, answer
from midstream.runtime import Runtime, open_runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition
from midstream.stores.sqlite import open_sqlite
from midstream.stores.store import Operation, Receipt
from midstream.tools import Tool

DOWN = StoreError("the store is down")


def slow_answer(text: str, seconds: float = 10) -> list[Step]:
    return [Pause(seconds), *answer(text)]


async def look(place: str) -> str:
    """Look somewhere."""
    await trio.sleep(5)
    return f"nothing in {place}"


def kinds(items: Sequence[object]) -> list[str]:
    return [type(item).__name__ for item in items]


async def test_the_result_of_a_session_is_given_although_the_store_is_down(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    view = store.reopen()
    async with host(view, slow_answer("hello"), clock=clock) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(5)
        view.failure = DOWN
        ended = await handle.result()
        assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "hello")
        assert (await handle.record()).status is SessionStatus.COMPLETED
        assert (await record_of(store, handle.session_id)).status is SessionStatus.RUNNING
        *_, failed = await notices_so_far(runtime)
        assert isinstance(failed, RecordFailed)
        assert (failed.phase, failed.error) == (Phase.UPDATE_ROW, "the store is down")
        view.failure = None
        await trio.sleep(40)
        assert await record_of(store, handle.session_id) == await handle.record()
        told = [type(notice) for notice in await notices_so_far(runtime)]
    assert told == [Began, RecordFailed, Ended]


async def test_a_session_goes_on_through_an_outage_and_its_steps_arrive_in_order(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    view = store.reopen()
    scripts = [answer("first", Call("look", '{"place": "a"}')), slow_answer("done", 3)]
    async with host(view, *scripts, clock=clock) as runtime:
        handle = runtime.animate("hi", tools=[Tool(look)])
        await trio.sleep(2)
        view.failure = DOWN
        assert (await handle.result()).status is SessionStatus.COMPLETED
        view.failure = None
        await trio.sleep(40)
        conversation = await load_conversation(store, handle.conversation_id)
        overview = await runtime.sessions.overview()
    assert kinds(conversation.items) == [
        "UserItem",
        "AssistantItem",
        "ToolResultItem",
        "AssistantItem",
    ]
    assert overview.dead_letters == 0


async def test_a_store_that_is_back_in_the_middle_gets_what_waited_first(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    view = store.reopen()
    scripts = [answer("first", Call("look", '{"place": "a"}')), slow_answer("done", 20)]
    async with host(view, *scripts, clock=clock) as runtime:
        handle = runtime.animate("hi", tools=[Tool(look)])
        await trio.sleep(2)
        view.failure = DOWN
        await trio.sleep(5)  # the results are in the queue now
        view.failure = None
        assert (await handle.result()).status is SessionStatus.COMPLETED
        conversation = await load_conversation(store, handle.conversation_id)
    assert kinds(conversation.items)[1:] == ["AssistantItem", "ToolResultItem", "AssistantItem"]
    assert isinstance(conversation.items[2], ToolResultItem)


async def test_a_prompt_that_cannot_be_recorded_starts_nothing(
    autojump_clock: MockClock,
) -> None:
    store, provider = MemoryStore(), ScriptedProvider(answer("never"))
    view = store.reopen()
    async with host(view, provider=provider, clock=wall_clock()) as runtime:
        view.failure = DOWN
        ended = await runtime.animate("hi").result()
        assert ended.status is SessionStatus.FAILED
        assert "the store is down" in (ended.reason or "")
        assert provider.requests == []
        view.failure = None


class FlakyStore(MemoryStore):
    """A store whose acknowledgement of the next commits gets lost: they are kept all the same."""

    lost_acknowledgements = 0

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        receipt = await super().commit(operations, key=key, durable=durable)
        if key is not None and self.lost_acknowledgements:
            self.lost_acknowledgements -= 1
            raise StoreError("the connection broke")
        return receipt


async def test_what_was_written_but_not_acknowledged_arrives_once(
    autojump_clock: MockClock,
) -> None:
    store = FlakyStore()
    async with host(store, slow_answer("hello"), clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(5)
        store.lost_acknowledgements = 1
        await handle.result()
        await trio.sleep(40)
        conversation = await load_conversation(store, handle.conversation_id)
        assert (await runtime.sessions.overview()).dead_letters == 0
    assert kinds(conversation.items) == ["UserItem", "AssistantItem"]


async def test_a_quota_that_is_found_spent_in_an_outage_pauses_at_once_and_only_once(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    view = store.reopen()
    async with host(view, [Pause(1), *limited()], clock=clock) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(0.5)
        view.failure = DOWN
        await handle.result()
        assert not runtime.is_dispatchable()
        until = (await runtime.status()).paused_until
        view.failure = None
        await trio.sleep(60)
        status = await runtime.status()
    assert (status.paused_until, status.backoff_level) == (until, 0)


async def test_a_step_of_an_owner_that_lost_its_session_never_arrives(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    view = store.reopen()
    async with host(view, slow_answer("mine"), clock=clock) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(5)
        view.failure = DOWN
        await handle.result()
        at = format_timestamp(clock.now_ms())
        await apply_transition(store, OrphanFailed(id=handle.session_id, ended_at=at, error="x"))
        await apply_transition(store, Recover(id=handle.session_id, owner="host-b", at=at))
        view.failure = None
        await trio.sleep(40)
        assert (await record_of(store, handle.session_id)).status is SessionStatus.RUNNING
        assert (await runtime.sessions.overview()).dead_letters == 0
        conversation = await load_conversation(store, handle.conversation_id)
    assert kinds(conversation.items) == ["UserItem"]


async def test_a_session_that_lost_its_fence_is_told_and_puts_nothing_into_the_queue(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), wall_clock()
    async with host(store, slow_answer("mine", 3), clock=clock) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(1)
        at = format_timestamp(clock.now_ms())
        await apply_transition(store, Recover(id=handle.session_id, owner="host-b", at=at))
        ended = await handle.result()
        assert ended.status is SessionStatus.FAILED
        assert (await runtime.sessions.overview()).dead_letters == 0


# --- with files, on a real clock


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(30):
        while not await holds():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.01)


async def test_what_waited_in_files_arrives_at_the_next_boot_and_poison_is_put_aside(
    tmp_path: Path,
) -> None:
    path, queue = tmp_path / ".midstream/midstream.sqlite3", tmp_path / ".midstream/dlq"
    provider = ScriptedProvider(SPEAKING)
    async with (
        await open_sqlite(path) as store,
        open_runtime(
            configuration(), cwd=tmp_path, provider=provider, rules=(), store=store
        ) as runtime,
    ):
        handle = runtime.animate("hi")
        await until_it_speaks(runtime, handle.session_id)
        await store.aclose()  # as a disk does that is gone
        await handle.cancel("enough")
        assert (await handle.result()).status is SessionStatus.CANCELLED
    [letter] = queue.glob("*.json")
    assert json.loads(letter.read_text())["kind"] == "step"
    (queue / "broken.json").write_text("{")
    (queue / "notes.txt").write_text("not ours")
    async with open_runtime(
        configuration(), cwd=tmp_path, provider=ScriptedProvider(), rules=()
    ) as runtime:
        session = runtime.sessions.session

        async def has_arrived() -> bool:
            return (await session(handle.session_id)).status is SessionStatus.CANCELLED

        async def is_aside() -> bool:
            return not await trio.Path(queue / "broken.json").exists()

        await until(has_arrived)
        record = await runtime.sessions.session(handle.session_id)
        assert record.error == "enough"
        [ended] = [n for n in await all_notices(runtime) if isinstance(n, Ended)]
        assert ended.session_id == handle.session_id
        await until(is_aside)
    assert sorted(path.name for path in queue.rglob("*") if path.is_file()) == [
        "broken.json",
        "broken.reason.txt",
        "notes.txt",
    ]
    assert "PoisonEnvelope" in (queue / "rejected/broken.reason.txt").read_text()


async def all_notices(runtime: Runtime) -> list[object]:
    heard: list[object] = []
    stream = await runtime.notices()
    stream.close()
    async for notice in stream:
        heard.append(notice.notice)
    return heard


async def test_a_runtime_that_keeps_everything_in_memory_leaves_no_files(tmp_path: Path) -> None:
    view = MemoryStore()
    async with open_runtime(
        configuration(),
        cwd=tmp_path,
        provider=ScriptedProvider(SPEAKING),
        rules=(),
        store=view,
        clock=SystemClock(),
    ) as runtime:
        handle = runtime.animate("hi")
        await until_it_speaks(runtime, handle.session_id)
        view.failure = DOWN
        await handle.cancel()
        await handle.result()
    assert os.listdir(tmp_path) == []

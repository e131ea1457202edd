"""The store goes away and comes back: nothing is lost, nothing arrives twice, order stays."""

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

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

from midstream.actors import backoff_machine
from midstream.actors.clock import SystemClock
from midstream.actors.ledger import Ledger
from midstream.actors.ledger_messages import LedgerMessage
from midstream.actors.turn import Message, Turn
from midstream.actors.turn_effects import Effect
from midstream.messages.backoff import BackoffSettings
from midstream.messages.conversation import AssistantItem, TextPart, ToolResultItem
from midstream.messages.dispatch import (
    AnyDispatchEvent,
    Decision,
    DispatchStatus,
    QuotaSpent,
    decide,
)
from midstream.messages.envelope import ReportEnvelope
from midstream.messages.errors import StoreError
from midstream.messages.failure import FailureKind
from midstream.messages.notices import Began, Ended, Phase, RecordFailed
from midstream.messages.record import SessionStatus
from midstream.messages.session_reports import RecordReport, ReportedStatus
from midstream.messages.timestamps import format_timestamp
from midstream.messages.transition import DetachedReady, OrphanFailed, Recover
from midstream.messages.work import Detach
from midstream.providers.scripted import Call, Pause, ScriptedProvider, Step, answer
from midstream.runtime import Runtime, open_runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.dlq import MemoryQueue
from midstream.stores.dlq_files import write_envelope
from midstream.stores.memory import MemoryStore
from midstream.stores.sessions import apply_transition
from midstream.stores.sqlite import SqliteStore, open_sqlite
from midstream.stores.state import GUILD_HEARTBEAT_ID, GuildHeartbeat
from midstream.stores.store import (
    Append,
    Book,
    Log,
    Operation,
    Page,
    Query,
    Receipt,
    Stored,
    encode,
)
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


class StumblingStore(MemoryStore):
    """A store that refuses the next steps, and nothing else."""

    refusals = 0

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        if key is not None and self.refusals:
            self.refusals -= 1
            raise DOWN
        return await super().commit(operations, key=key, durable=durable)


async def test_a_step_does_not_overtake_one_that_still_waits(autojump_clock: MockClock) -> None:
    """The store takes the last step again, and has just refused the one before."""
    store = StumblingStore()
    scripts = [answer("first", Call("look", '{"place": "a"}')), slow_answer("done", 3)]
    async with host(store, *scripts, clock=wall_clock()) as runtime:
        handle = runtime.animate("hi", tools=[Tool(look)])
        await trio.sleep(2)
        store.refusals = 3  # the results twice, and once more when they are tried again
        assert (await handle.result()).status is SessionStatus.COMPLETED
        assert (await record_of(store, handle.session_id)).status is SessionStatus.RUNNING
        await trio.sleep(40)
        conversation = await load_conversation(store, handle.conversation_id)
    expected = ["UserItem", "AssistantItem", "ToolResultItem", "AssistantItem"]
    assert kinds(conversation.items) == expected


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


async def test_a_letter_that_stays_when_it_was_written_is_told_of_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its file cannot be removed."""

    async def stays(queue: MemoryQueue, name: str) -> None:
        pass

    monkeypatch.setattr(MemoryQueue, "remove", stays)
    store = MemoryStore()
    view = store.reopen()
    async with host(view, slow_answer("hello"), clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(5)
        view.failure = DOWN
        await handle.result()
        view.failure = None
        await trio.sleep(200)
        assert (await record_of(store, handle.session_id)).status is SessionStatus.COMPLETED
        assert (await runtime.sessions.overview()).dead_letters == 1
        told = [type(notice) for notice in await notices_so_far(runtime)]
    assert told == [Began, RecordFailed, Ended]


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


async def until_it_is_over(runtime: Runtime, session_id: str) -> None:
    async def is_over() -> bool:
        return (await runtime.sessions.session(session_id)).is_terminal

    await until(is_over)


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


async def test_b11_what_waited_arrives_before_anybody_is_judged(tmp_path: Path) -> None:
    """At boot, with another host alive: nobody has time for a search without its letter."""
    path = tmp_path / ".midstream/midstream.sqlite3"
    now = format_timestamp(SystemClock().now_ms())
    long_ago = format_timestamp(SystemClock().now_ms() - 3_600_000)
    async with await open_sqlite(path) as store:
        ready = DetachedReady(
            id="ses-out", started_at=long_ago, provider="cc", last_activity_at=long_ago
        )
        await apply_transition(store, ready)
        lost = msgspec.structs.replace(ready, id="ses-lost")
        await apply_transition(store, lost)
        beat = GuildHeartbeat(id=GUILD_HEARTBEAT_ID, guild_alive_at=now)
        await store.put(Book.STATE, beat.id, beat, 0)
    report = RecordReport(session_id="ses-out", status=ReportedStatus.COMPLETED, exit_code=0)
    write_envelope(tmp_path / ".midstream/dlq", ReportEnvelope(report=report))
    async with open_runtime(
        configuration(), cwd=tmp_path, provider=ScriptedProvider(), rules=()
    ) as runtime:
        await until_it_is_over(runtime, "ses-lost")
        assert (await runtime.sessions.session("ses-lost")).presumed_dead
        record = await runtime.sessions.session("ses-out")
    assert (record.status, record.presumed_dead) == (SessionStatus.COMPLETED, False)


async def test_a_letter_that_meets_a_bug_waits_and_keeps_back_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, now = SqliteStore.get, format_timestamp(SystemClock().now_ms())

    async def poisoned(store: SqliteStore, book: Book, id: str) -> Stored | None:
        if (book, id) == (Book.SESSIONS, "ses-a"):
            raise RuntimeError("a bug")
        return await get(store, book, id)

    async with await open_sqlite(tmp_path / ".midstream/midstream.sqlite3") as store:
        for name in ("ses-a", "ses-b"):
            ready = DetachedReady(id=name, started_at=now, provider="cc", last_activity_at=now)
            await apply_transition(store, ready)
            report = RecordReport(session_id=name, status=ReportedStatus.COMPLETED, exit_code=0)
            write_envelope(tmp_path / ".midstream/dlq", ReportEnvelope(report=report))
    monkeypatch.setattr(SqliteStore, "get", poisoned)
    async with open_runtime(
        configuration(), cwd=tmp_path, provider=ScriptedProvider(), rules=()
    ) as runtime:
        await until_it_is_over(runtime, "ses-b")
    [left] = (tmp_path / ".midstream/dlq").glob("*.json")
    assert left.name.startswith("ses-a")


# --- worse than an outage


class Hanging(MemoryStore):
    """A store that does not answer any more."""

    hangs = False

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        if self.hangs and key is not None:
            await trio.sleep_forever()
        return await super().commit(operations, key=key, durable=durable)


async def test_a_store_that_hangs_is_a_store_that_is_down(autojump_clock: MockClock) -> None:
    store = Hanging()
    async with host(store, slow_answer("hello"), clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(5)
        store.hangs = True
        assert (await handle.result()).status is SessionStatus.COMPLETED
        assert (await runtime.sessions.overview()).dead_letters == 1
        store.hangs = False
        await trio.sleep(40)
        assert (await record_of(store, handle.session_id)).status is SessionStatus.COMPLETED


class Buggy(MemoryStore):
    """A store that crashes whoever uses it, a few times."""

    crashes = 0

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        receipt = await super().commit(operations, key=key, durable=durable)
        if self.crashes and key is not None:
            self.crashes -= 1
            raise RuntimeError("a bug")
        return receipt


@pytest.mark.parametrize("crashes", [1, 2, 3, 1_000])
async def test_a_bug_that_a_step_meets_fails_no_session_and_writes_nothing_twice(
    crashes: int, autojump_clock: MockClock
) -> None:
    """Whether it is met once, or as long as the session lasts: then the step waits in the queue."""
    store = Buggy()
    async with host(store, slow_answer("hello"), clock=wall_clock()) as runtime:
        handle = runtime.animate("hi")
        await trio.sleep(5)
        store.crashes = crashes
        assert (await handle.result()).status is SessionStatus.COMPLETED
        store.crashes = 0
        await trio.sleep(31)
        conversation = await load_conversation(store, handle.conversation_id)
        told = [type(notice) for notice in await notices_so_far(runtime)]
    assert kinds(conversation.items) == ["UserItem", "AssistantItem"]
    assert await record_of(store, handle.session_id) == await handle.record()
    assert [notice for notice in told if notice is not RecordFailed] == [Began, Ended]


class BuggyAt(MemoryStore):
    """A store that crashes whoever makes certain of its calls, when they are done."""

    def __init__(self, calls: range) -> None:
        super().__init__()
        self.calls = 0
        self._crash_at = calls

    def _crash(self) -> None:
        self.calls += 1
        if self.calls - 1 in self._crash_at:
            raise RuntimeError("a bug")

    async def get(self, book: Book, id: str) -> Stored | None:
        found = await super().get(book, id)
        self._crash()
        return found

    async def find(self, book: Book, query: Query) -> Page:
        found = await super().find(book, query)
        self._crash()
        return found

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        receipt = await super().commit(operations, key=key, durable=durable)
        self._crash()
        return receipt


CALLS = range(1, 26)
"""Of the store, in two sessions and the seconds behind them; with the first a runtime begins, or
does not."""


@asynccontextmanager
async def two_sessions(store: MemoryStore, settle_s: float) -> AsyncGenerator[Runtime]:
    """A host with one session that is answered, and one that the provider refuses: both end as
    they should, and as their records say, and everybody pauses."""
    quota = limited(FailureKind.RATE_LIMITED, 600.0)
    async with host(store, slow_answer("hello"), quota, clock=wall_clock()) as runtime:
        first = runtime.animate("hi")
        assert (await first.result()).status is SessionStatus.COMPLETED
        second = runtime.animate("go on", conversation_id=first.conversation_id)
        assert (await second.result()).status is SessionStatus.RATE_LIMITED
        await trio.sleep(settle_s)
        yield runtime
        assert not runtime.is_dispatchable()
    for session in (first, second):
        assert await record_of(store, session.session_id) == await session.record()


@pytest.mark.parametrize("crashes", [1, 2])
@pytest.mark.parametrize("at", CALLS)
async def test_a_crash_of_whoever_uses_the_store_fails_no_session(
    at: int, crashes: int, autojump_clock: MockClock
) -> None:
    store = BuggyAt(range(at, at + crashes))
    async with two_sessions(store, settle_s=31) as runtime:
        assert store.calls > at
        told = [type(notice) for notice in await notices_so_far(runtime)]
    assert set(told) - {RecordFailed} == {Began, Ended}


MESSAGES = range(1, 12)
"""Of the Ledger, in the same two sessions."""


@pytest.mark.parametrize("crashes", [1, 2])
@pytest.mark.parametrize("at", MESSAGES)
async def test_a_crash_of_the_ledger_fails_no_session(
    at: int, crashes: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, handled = Ledger.handle, 0

    async def crash_at_some(ledger: Ledger, message: LedgerMessage) -> None:
        nonlocal handled
        handled += 1
        if handled - 1 in range(at, at + crashes):
            raise RuntimeError("a bug")
        await handle(ledger, message)

    monkeypatch.setattr(Ledger, "handle", crash_at_some)
    async with two_sessions(MemoryStore(), settle_s=20):
        assert handled > at


class Poisoned(MemoryStore):
    """A store with one conversation over which whoever reads it comes upon a bug."""

    async def get(self, book: Book, id: str) -> Stored | None:
        if id == "con-poisoned":
            raise RuntimeError("a bug")
        return await super().get(book, id)


async def test_a_conversation_over_which_the_ledger_fails_costs_nobody_else_however_often(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with host(Poisoned(), slow_answer("hello"), clock=wall_clock()) as runtime:
        other = runtime.animate("hi")
        for _ in range(10):
            poisoned = await runtime.animate("hi", conversation_id="con-poisoned").result()
            assert poisoned.status is SessionStatus.FAILED
            assert "runtime/ledger crashed with RuntimeError: a bug" in (poisoned.reason or "")
        assert (await other.result()).status is SessionStatus.COMPLETED
    assert "in load_conversation" in caplog.text, "the log says where"


async def test_a_conversation_that_cannot_be_read_fails_by_itself_however_often_it_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    """Its last item is of a kind that only a newer version knows."""
    store, id = MemoryStore(), "con-newer"
    answers = slow_answer("hello"), slow_answer("hello")
    async with host(store, *answers, clock=wall_clock()) as runtime:
        await runtime.animate("hi", conversation_id=id).result()
        newer = Append(
            Log.ITEMS, id, (encode({"kind": "hologram"}),), await store.length(Log.ITEMS, id)
        )
        await store.commit([newer])
        other = runtime.animate("hi")
        for _ in range(10):
            ended = await runtime.animate("hi", conversation_id=id).result()
            assert ended.status is SessionStatus.FAILED
            assert f"of {id} cannot be read" in (ended.reason or "")
        assert (await other.result()).status is SessionStatus.COMPLETED


async def test_a_crash_of_the_back_off_machine_loses_no_news_of_the_quota(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[QuotaSpent] = []

    def crash_at_first(
        status: DispatchStatus, event: AnyDispatchEvent, now_ms: int, settings: BackoffSettings
    ) -> Decision:
        if isinstance(event, QuotaSpent):
            heard.append(event)
            if len(heard) < 3:
                raise RuntimeError("a bug")
        return decide(status, event, now_ms, settings)

    monkeypatch.setattr(backoff_machine, "decide", crash_at_first)
    store, quota = MemoryStore(), limited(FailureKind.RATE_LIMITED, 600.0)
    async with host(store, quota, clock=wall_clock()) as runtime:
        assert (await runtime.animate("hi").result()).status is SessionStatus.RATE_LIMITED
        assert not runtime.is_dispatchable()
    assert len(heard) == 3


class Slow(MemoryStore):
    """A store that takes its time."""

    takes_s = 0.0

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        if key is not None:
            await trio.sleep(self.takes_s)
        return await super().commit(operations, key=key, durable=durable)


@pytest.mark.parametrize("takes_s", [1.0, 3.5, 8.0, 50.0])
async def test_a_session_that_crashes_while_a_slow_store_writes_is_ended_on_record(
    takes_s: float, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it still has to say takes longer than anybody waits for it."""
    receive = Turn.receive

    def crash_at_a_detach(turn: Turn, message: Message, now: float) -> list[Effect]:
        if isinstance(message, Detach):
            raise RuntimeError("a bug")
        return receive(turn, message, now)

    monkeypatch.setattr(Turn, "receive", crash_at_a_detach)
    store = Slow()
    first = [Pause(5), *answer("let me look", Call("look", '{"place": "a"}'))]
    async with host(store, first, clock=wall_clock()) as runtime:
        handle = runtime.animate("hi", tools=[Tool(look)])
        await trio.sleep(4)
        store.takes_s = takes_s
        await trio.sleep(1.5)
        await handle.detach()
        assert (await handle.result()).status is SessionStatus.FAILED
        await trio.sleep(20)
        store.takes_s = 0.0
        await trio.sleep(40)
        record = await record_of(store, handle.session_id)
        conversation = await load_conversation(store, handle.conversation_id)
    assert record.status is SessionStatus.FAILED
    told = kinds(conversation.items)
    assert told == ["UserItem", "AssistantItem", "ToolResultItem", "SystemItem"]


# --- any outage, at any time


class Unreliable(MemoryStore):
    """A store that fails at random: before the write, or after it, or for a while."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.failing = True

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        chance = self.random.random() if self.failing else 1.0
        if chance < 0.2:
            raise StoreError("refused")
        receipt = await super().commit(operations, key=key, durable=durable)
        if chance < 0.35:
            raise StoreError("the answer was lost")
        return receipt


@pytest.mark.parametrize("seed", range(25))
async def test_whatever_fails_and_when_the_conversation_is_whole_in_the_end(
    seed: int, autojump_clock: MockClock
) -> None:
    rounds = 6
    random = Random(seed)
    store, clock = Unreliable(random), wall_clock()
    scripts = [
        answer(f"round {number}", Call("look", '{"place": "a"}', f"call-{number}"))
        for number in range(rounds)
    ]
    async with host(store, *scripts, answer("done"), clock=clock, seed=seed) as runtime:
        handle = runtime.animate("hi", tools=[Tool(look)])
        ended = await handle.result()
        store.failing = False
        await trio.sleep(70)
        assert (await runtime.sessions.overview()).dead_letters == 0
        conversation = await load_conversation(store, handle.conversation_id)
        told = await notices_so_far(runtime)
    if ended.status is SessionStatus.FAILED:  # the prompt itself could not be kept
        assert "not recorded" in (ended.reason or "")
        return
    said = [
        part.text
        for item in conversation.items
        if isinstance(item, AssistantItem)
        for part in item.parts
        if isinstance(part, TextPart)
    ]
    assert said == [*(f"round {number}" for number in range(rounds)), "done"]
    results = [item.call_id for item in conversation.items if isinstance(item, ToolResultItem)]
    assert results == [f"call-{number}" for number in range(rounds)]
    assert (await record_of(store, handle.session_id)).status is SessionStatus.COMPLETED
    assert [type(notice) for notice in told if not isinstance(notice, RecordFailed)] == [
        Began,
        Ended,
    ]


class BrokenFor(MemoryStore):
    """A store that cannot write what belongs to one session."""

    session_id = ""

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        if key is not None and self.session_id and key.startswith(self.session_id):
            raise StoreError("a bad page")
        return await super().commit(operations, key=key, durable=durable)


async def test_a_letter_that_cannot_be_written_keeps_nobody_elses_back(
    autojump_clock: MockClock,
) -> None:
    store = BrokenFor()
    async with host(store, slow_answer("one"), slow_answer("two"), clock=wall_clock()) as runtime:
        handles = [runtime.animate("a"), runtime.animate("b")]
        await trio.sleep(5)
        store.failure = DOWN
        for handle in handles:
            await handle.result()
        first, second = sorted(handle.session_id for handle in handles)
        store.failure, store.session_id = None, first
        await trio.sleep(70)
        assert (await record_of(store, first)).status is SessionStatus.RUNNING
        assert (await record_of(store, second)).status is SessionStatus.COMPLETED
        assert (await runtime.sessions.overview()).dead_letters == 1
        store.session_id = ""
        await trio.sleep(40)
        assert (await record_of(store, first)).status is SessionStatus.COMPLETED
        assert (await runtime.sessions.overview()).dead_letters == 0

"""`midstream gateway` is killed with SIGKILL while it works, and started again.

Streams are open, a chain of continuations is under way, a quota is spent, a response goes by
another id, and requests come and go. Clients see their connections break and never an end that
was none. What was on record goes on to hold; what ran is found dead, once.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import trio
from gateway_process import gateway_command, started, words
from gateway_streams import anthropic_stream, chat_stream, responses_stream
from gateway_world import Asked, Reply, ScriptedUpstream
from hosts import configuration, host, notices_so_far
from trio.testing import MockClock

from midstream.actors.clock import SystemClock, TrioClock
from midstream.messages.notices import Ended
from midstream.messages.record import SessionRecord, SessionStatus
from midstream.stores.memory import MemoryStore
from midstream.stores.sqlite import open_sqlite
from midstream.stores.store import MAX_LIMIT, Book, Query, Store, Stored

RULE = """---
condition: 'SECRET-\\d+'
---
Never say that word.
"""
STREAMS: dict[str, Any] = {
    "/v1/messages": anthropic_stream,
    "/v1/chat/completions": chat_stream,
    "/v1/responses": responses_stream,
}
ENDINGS = (b"message_stop", b"[DONE]", b"response.completed", b'finish_reason":"stop')
WORKERS = 4
QUICK_BEFORE_THE_KILL = 3
"""Requests of one worker."""


class Provider:
    """What the upstream answers, by the model that is asked for."""

    def __init__(self) -> None:
        self.was_restarted = False
        self.continued = trio.Event()
        """Set when a continuation was asked for that will not be answered to its end."""
        self.upstream = ScriptedUpstream(choose=self._choose)

    def asked(self, model: str) -> list[Any]:
        return [one.json for one in self.upstream.asked if one.json["model"] == model]

    def _choose(self, asked: Asked) -> Reply:
        path = asked.line.split()[1]
        stream = STREAMS[path]
        match asked.json["model"]:
            case "held":
                return Reply(stream("It goes on and on and on.")[:6], hold=True)
            case "chain" if "Keep on." in repr(asked.json) and not self.was_restarted:
                self.continued.set()
                return Reply(stream("It goes on and on and on.")[:6], hold=True)
            case "spent":
                wait = [("retry-after", "3600")]
                return Reply([b"{}"], 429, "application/json", wait)
            case "cut" if "Never say that word" not in repr(asked.json):
                return Reply(stream("It is SECRET-1.", message_id="resp_first"))
            case "cut":
                return Reply(stream("Better so.", message_id="resp_last"))
            case _:
                return Reply(stream("Quickly done."))


class Client:
    """Clients of one gateway, and what they have seen."""

    def __init__(self, url: str, client: httpx2.AsyncClient) -> None:
        self.url = url
        self._client = client
        self.broken: list[bytes] = []
        """What each stream had said when its connection broke."""
        self.busy = trio.Event()
        """Set when some of the work is done."""

    async def ask(
        self, path: str, model: str, said: str = "Go", *, key: str = "k", **more: Any
    ) -> httpx2.Response:
        name = "input" if path == "/v1/responses" else "messages"
        entry = {"role": "user", "content": said}
        body = {"model": model, "stream": True, name: [entry], **more}
        headers = {"authorization": f"Bearer {key}", "x-session-id": f"of-{model}"}
        return await self._client.post(self.url + path, json=body, headers=headers)

    async def listen(self, path: str, model: str, said: str = "Go") -> None:
        """Read a stream that does not end by itself."""
        name = "input" if path == "/v1/responses" else "messages"
        body = {"model": model, "stream": True, name: [{"role": "user", "content": said}]}
        headers = {"authorization": "Bearer k", "x-session-id": f"of-{model}"}
        asked = self._client.stream("POST", self.url + path, json=body, headers=headers)
        heard = b""
        try:
            async with asked as answer:
                async for data in answer.aiter_raw():
                    heard += data
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            self.broken.append(heard)

    async def work(self) -> None:
        """Ask again and again, until there is nobody."""
        for turn in count():
            try:
                answer = await self.ask("/v1/messages", "quick")
            except httpx2.HTTPError:
                return
            assert words(answer) == "Quickly done."
            if turn == QUICK_BEFORE_THE_KILL:
                self.busy.set()


class Left(NamedTuple):
    """What the killed gateway left in its store."""

    documents: Sequence[tuple[Book, Stored]]
    at_ms: int
    """When it was read."""

    @property
    def untold(self) -> set[str]:
        """The sessions of which it could not say any more what had become of them."""
        ids = [row.id.split("/") for book, row in self.documents if book is Book.STATE]
        return {parts[1] for parts in ids if parts[0] == "untold"}


@asynccontextmanager
async def client_of(process: trio.Process) -> AsyncGenerator[Client]:
    url = await started(process)
    async with httpx2.AsyncClient(timeout=60) as client:
        yield Client(url, client)


async def running(store: Store) -> set[str]:
    page = await store.find(
        Book.SESSIONS, Query({"status": SessionStatus.RUNNING.value}, limit=MAX_LIMIT)
    )
    return {row.id for row in page.rows}


async def until_on_record(store: Store, wanted: int) -> None:
    """Until so many requests are on record as running."""
    with trio.fail_after(30):
        while len(await running(store)) < wanted:  # noqa: ASYNC110 - another process writes it
            await trio.sleep(0.02)


async def work_until_killed(cwd: Path, provider: Provider) -> set[str]:
    """The ids of the requests that ran and would have for long."""
    async with (
        gateway_command(cwd, provider.upstream, "--rules", "rule.md") as process,
        client_of(process) as client,
    ):
        assert (await client.ask("/v1/messages", "spent", key="empty")).status_code == 429
        first = await client.ask("/v1/responses", "cut")
        assert "SECRET" not in first.text
        assert '"id":"resp_first"' in first.text
        async with trio.open_nursery() as nursery:
            for path in STREAMS:
                nursery.start_soon(client.listen, path, "held")
            chain = 'Go <**stopMessage:"Keep on.",2**>'
            nursery.start_soon(client.listen, "/v1/messages", "chain", chain)
            async with await open_sqlite(cwd / ".midstream/midstream.sqlite3") as store:
                await until_on_record(store, len(STREAMS) + 1)
                held = await running(store)
            for _ in range(WORKERS):
                nursery.start_soon(client.work)
            with trio.fail_after(60):
                await provider.continued.wait()
                await client.busy.wait()
            process.kill()
    assert len(client.broken) == len(STREAMS) + 1
    for heard in client.broken:
        assert not any(ending in heard for ending in ENDINGS), heard
    return held


async def go_on(cwd: Path, provider: Provider) -> Left:
    """Start it again, and see what it knows."""
    provider.was_restarted = True
    async with (
        gateway_command(cwd, provider.upstream, "--rules", "rule.md") as process,
        client_of(process) as client,
    ):
        refused = await client.ask("/v1/messages", "spent", key="empty")
        assert refused.status_code == 429
        assert 3000 < int(refused.headers["retry-after"]) <= 3600
        assert len(provider.asked("spent")) == 1
        await client.ask("/v1/responses", "cut", previous_response_id="resp_first")
        assert provider.asked("cut")[2]["previous_response_id"] == "resp_last"
        before = len(provider.asked("chain"))
        assert (await client.ask("/v1/messages", "chain", "And now")).status_code == 200
        assert len(provider.asked("chain")) == before + 2  # one of the two was used
        process.terminate()
        with trio.fail_after(30):
            assert await process.wait() == 0
    async with await open_sqlite(cwd / ".midstream/midstream.sqlite3") as store:
        documents = [
            (book, row)
            for book in (Book.SESSIONS, Book.STATE)
            for row in (await store.find(book, Query(limit=MAX_LIMIT))).rows
        ]
    return Left(documents, SystemClock().now_ms())


async def ends_told(store: Store, clock: TrioClock, seed: int) -> list[str]:
    """The sessions that a host which comes up tells to have ended."""
    async with host(store, clock=clock, config=configuration(), seed=seed) as runtime:
        await trio.sleep(600)
        notices = await notices_so_far(runtime)
    return [one.session_id for one in notices if isinstance(one, Ended)]


async def audit(left: Left, held: set[str]) -> None:
    """What two hosts in turn make of it, in minutes of which nobody waits."""
    store, clock = MemoryStore(), TrioClock(left.at_ms)
    for book, row in left.documents:
        await store.put(book, row.id, row.document, 0)
    ran = await running(store)
    assert held <= ran
    found = await ends_told(store, clock, seed=0)
    assert len(found) == len(set(found))
    assert ran <= set(found)
    assert set(found) - ran <= left.untold  # those that had ended when it was killed
    assert await ends_told(store, clock, seed=1) == []
    for row in (await store.find(Book.SESSIONS, Query(limit=MAX_LIMIT))).rows:
        record = row.decode(SessionRecord)
        assert record.is_terminal, record
        assert record.presumed_dead is (record.id in ran)
        if record.id in ran:
            assert record.status is SessionStatus.FAILED


def test_what_it_has_said_holds_and_what_ran_is_found_dead_once(tmp_path: Path) -> None:
    (tmp_path / "rule.md").write_text(RULE)
    provider = Provider()
    held = trio.run(work_until_killed, tmp_path, provider)
    left = trio.run(go_on, tmp_path, provider)
    trio.run(audit, left, held, clock=MockClock(autojump_threshold=0))

"""The routes for sessions: a real host, a real server, and what a client gets to see."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx2
import msgspec
import pytest
import trio
from process_watch import PATIENCE_S, gone, python

from midstream.actors.clock import ManualClock
from midstream.cli.serve_routes import routes_of
from midstream.config import Config, RulesConfig
from midstream.doors.http import host_app, serve_http
from midstream.doors.session_views import message_view, messages_of
from midstream.messages.errors import StoreError
from midstream.messages.events import Retracted, Text, ToolResult, ToolUse
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.notices import Began, Ended
from midstream.messages.record import SessionStatus
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.messages.transition import PendingPreWrite
from midstream.providers.process_group import CancelHandle
from midstream.providers.scripted import Hang, Pause, Script, ScriptedProvider, Step, answer
from midstream.runtime import Runtime, open_runtime
from midstream.stores.memory import MemoryStore

START_MS = 1_767_225_600_000
START = "2026-01-01T00:00:00.000Z"


@dataclass
class Door:
    """A host behind its HTTP door, and a client in front of it."""

    runtime: Runtime
    store: MemoryStore
    clock: ManualClock
    client: httpx2.AsyncClient

    async def get(self, path: str, **query: Any) -> httpx2.Response:
        return await self.client.get(f"/api/{path}", params=query)

    async def post(self, path: str, body: Any, session: str | None = None) -> httpx2.Response:
        headers = {"content-type": "application/json"}
        if session is not None:
            headers["x-session-id"] = session
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(f"/api/{path}", content=content, headers=headers)

    async def report(self, name: str, session: str = "ses-1", **fields: Any) -> httpx2.Response:
        """A report of a session about itself."""
        needed: dict[str, Any] = {"sessionId": session}
        if name == "running":
            needed |= {"startedAt": START, "provider": "claude-code"}
        elif name == "record":
            needed |= {"status": "completed", "exitCode": 0}
        return await self.post(f"session/{name}", {**needed, **fields}, session)

    async def shown(self, session: str = "ses-1") -> dict[str, Any]:
        response = await self.get("session/show", id=session)
        assert response.status_code == 200, response.text
        return response.json()

    async def stream(self, session: str) -> list[tuple[str, Any]]:
        """All server-sent events of a session, to their end."""
        response = await self.get("animator/session-stream", id=session)
        assert response.headers["content-type"].startswith("text/event-stream")
        told = [block.split("\ndata: ") for block in response.text.strip().split("\n\n")]
        return [(name.removeprefix("event: "), json.loads(data)) for name, data in told]


@asynccontextmanager
async def door(*scripts: Script, store: MemoryStore | None = None) -> AsyncGenerator[Door]:
    store = store or MemoryStore()
    clock = ManualClock(START_MS)
    config = Config(rules=RulesConfig(discover=False, builtin_rules=False))
    with trio.fail_after(PATIENCE_S):
        async with (
            open_runtime(
                config,
                provider=ScriptedProvider(*scripts),
                rules=(),
                store=store,
                clock=clock,
                random=Random(0),
            ) as runtime,
            serve_http(host_app(routes_of(runtime), None), "127.0.0.1", 0) as url,
            httpx2.AsyncClient(base_url=url, trust_env=False) as client,
        ):
            yield Door(runtime, store, clock, client)


SPEAKING: list[Step] = [
    StreamStarted(),
    BlockStarted(0, "text"),
    TextDelta(0, "I am thinking"),
    Hang(),
]


# --- reports


async def test_routes_a_session_reports_from_its_beginning_to_its_end():
    async with door() as host:
        running = await host.report("running", metadata={"role": "smith"}, conversationId="con-1")
        assert running.json() == {"ok": True, "sessionId": "ses-1", "status": "running"}
        host.clock.advance(30)
        beat = await host.report("heartbeat")
        assert beat.json() == {"ok": True, "sessionId": "ses-1", "status": "running"}
        assert (await host.shown())["lastActivityAt"] == "2026-01-01T00:00:30.000Z"
        host.clock.advance(30)
        record = await host.report(
            "record",
            output="Done.",
            costUsd=0.25,
            tokenUsage={"inputTokens": 1, "outputTokens": 2},
            providerSessionId="abc",
            transcript=[{"type": "assistant", "message": {"role": "assistant", "content": "Hi"}}],
        )
        assert record.json() == {"ok": True, "sessionId": "ses-1", "status": "completed"}
        shown = await host.shown()
    assert shown["durationMs"] == 60_000
    assert shown["tokenUsage"] == {"inputTokens": 1, "outputTokens": 2, "source": "reported"}
    assert (shown["output"], shown["costUsd"], shown["metadata"]) == (
        "Done.",
        0.25,
        {"role": "smith"},
    )


async def test_b3_an_end_that_is_reported_twice_is_told_once_and_keeps_the_conversation():
    async with door() as host:
        await host.report("running")
        for output in ("Done.", "Done.", "Again."):
            response = await host.report("record", output=output, providerSessionId="abc")
            assert response.json() == {"ok": True, "sessionId": "ses-1", "status": "completed"}
        shown = await host.shown()
        stream = await host.runtime.notices()
        told = [type((await anext(stream)).notice) for _ in range(2)]
        with trio.move_on_after(0.2) as silence:
            await anext(stream)
    assert told == [Began, Ended]
    assert silence.cancelled_caught, "nothing more is told"
    assert (shown["output"], shown["conversationId"]) == ("Done.", "abc")


async def test_routes_a_heartbeat_of_a_session_that_nobody_knows_is_not_ok():
    async with door() as host:
        response = await host.report("heartbeat", session="ses-9")
        assert response.status_code == 200
        assert response.json()["ok"] is False
        assert "ses-9" in response.json()["error"]


@pytest.mark.parametrize("name", ["running", "heartbeat", "record"])
async def test_b8_every_answer_tells_a_session_that_it_is_over(name: str):
    async with door() as host:
        await host.report("running")
        await host.post("session/cancel", {"id": "ses-1", "reason": "enough"})
        response = await host.report(name)
        assert response.json() == {"ok": True, "sessionId": "ses-1", "status": "cancelled"}
        assert (await host.shown())["error"] == "enough"


async def test_b7_a_session_may_report_that_it_was_cancelled_and_why_it_failed():
    diagnostic = {"exitCode": 3, "stderrExcerpt": "Segfault"}
    async with door() as host:
        await host.report("running")
        await host.report("record", status="cancelled", error="stopped by SIGTERM")
        await host.report(
            "record", "ses-2", status="failed", exitCode=3, terminationDiagnostic=diagnostic
        )
        first, second = await host.shown(), await host.shown("ses-2")
    assert (first["status"], first["error"]) == ("cancelled", "stopped by SIGTERM")
    assert second["terminationDiagnostic"] == diagnostic


async def test_b6_a_report_that_was_not_kept_is_not_ok(monkeypatch: pytest.MonkeyPatch):
    async def down(*args: Any, **more: Any) -> None:
        raise StoreError("the disk is full")

    async with door() as host:
        with monkeypatch.context() as patch:
            patch.setattr(host.store, "commit", down)
            response = await host.report("record")
        assert response.status_code == 503
        assert response.json()["ok"] is False
        assert "the disk is full" in response.json()["error"]


async def test_14_7_a_spent_quota_that_is_reported_pauses_the_host():
    tag = {"kind": "rate-limit", "source": "ndjson-result", "detail": "429"}
    async with door() as host:
        await host.report("running")
        await host.report("record", status="rate-limited", terminationTag=tag)
        status = (await host.get("animator/status")).json()
    assert status["state"] == "paused"
    assert status["pausedUntil"] == "2026-01-01T00:15:00.000Z"
    assert status["dispatchable"] is False


async def test_routes_the_status_of_a_host_that_was_never_paused():
    async with door() as host:
        status = (await host.get("animator/status")).json()
    assert status == {
        "id": "dispatch-status",
        "state": "running",
        "backoffLevel": 0,
        "dispatchable": True,
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "cannot be read"),
        (b"not json", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"sessionId": "ses-1"}', "startedAt"),
        (b'{"sessionId": 3, "startedAt": "x", "provider": "p"}', "sessionId"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
async def test_routes_a_body_that_cannot_be_read_names_the_place(body: bytes, said: str):
    async with door() as host:
        response = await host.post("session/running", body, "ses-1")
        assert response.status_code == 400
        assert said in response.json()["error"]


async def test_routes_a_session_speaks_for_itself_only():
    async with door() as host:
        body = {"sessionId": "ses-1", "startedAt": START, "provider": "p"}
        nameless = await host.post("session/running", body)
        foreign = await host.post("session/running", body, "ses-2")
        assert (nameless.status_code, foreign.status_code) == (400, 403)
        assert "x-session-id" in nameless.json()["error"]
        assert (await host.get("session/show", id="ses-1")).status_code == 404


async def test_routes_a_body_has_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("midstream.doors.requests.BODY_LIMIT_BYTES", 1000)
    async with door() as host:
        response = await host.report("record", output="x" * 2000)
        assert response.status_code == 413


# --- cancel


async def test_routes_a_running_session_is_cancelled_and_its_process_stopped():
    script = "import time; print('ready', flush=True); time.sleep(600)"
    async with door() as host:
        process = await trio.lowlevel.open_process(
            python(script), stdout=-1, start_new_session=True
        )
        handle = CancelHandle.of_leader(process.pid).as_record()
        await host.report("running", cancelHandle=handle)
        response = await host.post("session/cancel", {"id": "ses-1", "reason": "enough"})
        assert (response.json()["status"], response.json()["error"]) == ("cancelled", "enough")
        await gone(process.pid)
        await process.wait()
        assert process.stdout is not None
        await process.stdout.aclose()


async def test_b16_a_handle_that_may_be_anybodys_cancels_the_record_and_hurts_nobody():
    async with door() as host:
        for number, pgid in enumerate((0, 1, -1, 4711)):
            session = f"ses-{number}"
            await host.report("running", session, cancelHandle={"kind": "local-pgid", "pgid": pgid})
            response = await host.post("session/cancel", {"id": session})
            assert response.json()["status"] == "cancelled"


async def test_routes_cancelling_twice_changes_nothing():
    async with door() as host:
        await host.report("running")
        first = await host.post("session/cancel", {"id": "ses-1", "reason": "one"})
        host.clock.advance(10)
        second = await host.post("session/cancel", {"id": "ses-1", "reason": "two"})
        assert first.json() == second.json()


async def test_routes_cancel_of_an_unknown_session_and_without_an_id():
    async with door() as host:
        unknown = await host.post("session/cancel", {"id": "ses-9"})
        assert unknown.status_code == 404
        assert "ses-9" in unknown.json()["error"]
        assert (await host.post("session/cancel", {})).status_code == 400


async def test_routes_a_session_may_not_cancel():
    async with door() as host:
        await host.report("running")
        response = await host.post("session/cancel", {"id": "ses-1"}, session="ses-2")
        assert response.status_code == 403
        assert (await host.shown())["status"] == "running"


async def test_routes_a_session_of_this_host_is_cancelled_too():
    async with door(SPEAKING) as host:
        handle = host.runtime.animate("go")
        async for _ in handle.chunks:
            break
        response = await host.post("session/cancel", {"id": handle.session_id})
        assert response.json()["status"] == "cancelled"
        assert (await handle.result()).status is SessionStatus.CANCELLED


# --- lists


async def reported(host: Door, session: str, **fields: Any) -> None:
    await host.report("running", session, **fields)
    host.clock.advance(60)


async def test_routes_lists_are_newest_first_and_filtered():
    async with door() as host:
        for number in range(3):
            started = f"2026-01-0{number + 1}T12:00:00.000Z"
            await reported(host, f"ses-{number}", startedAt=started, provider=f"p{number}")
        await host.report("record", "ses-1", status="failed", exitCode=1)

        async def ids(path: str, **query: Any) -> list[str]:
            answer = (await host.get(path, **query)).json()
            rows = answer["sessions"] if path == "animator/sessions" else answer
            return [row["id"] for row in rows]

        for path in ("session/list", "animator/sessions"):
            assert await ids(path) == ["ses-2", "ses-1", "ses-0"]
            assert await ids(path, status="failed") == ["ses-1"]
            assert await ids(path, status="running,failed") == ["ses-2", "ses-1", "ses-0"]
            assert await ids(path, status="pending") == []
            assert await ids(path, limit=2) == ["ses-2", "ses-1"]
        assert await ids("session/list", provider="p0") == ["ses-0"]
        assert await ids("session/list", conversationId="con-9") == []
        day = "2026-01-02"
        assert await ids("animator/sessions", **{"from": day}) == ["ses-2", "ses-1"]
        assert await ids("animator/sessions", to=day) == ["ses-1", "ses-0"], "B18: that day too"
        assert await ids("animator/sessions", to="2026-01-02T11:00:00Z") == ["ses-0"]


@pytest.mark.parametrize(("limit", "count"), [("0", 1), ("-3", 1), ("x", 20), ("", 20), ("21", 21)])
async def test_14_20_limits_are_clamped_and_what_is_no_number_is_the_default(
    limit: str, count: int
):
    async with door() as host:
        for number in range(22):
            await host.report("running", f"ses-{number:02}")
        rows = (await host.get("session/list", limit=limit)).json()
        assert len(rows) == count


async def test_routes_a_filter_that_cannot_be_understood_is_an_error():
    async with door() as host:
        status = await host.get("session/list", status="finished")
        instant = await host.get("animator/sessions", **{"from": "yesterday"})
    assert status.status_code == 400
    assert "rate-limited" in status.json()["error"], "it says what there is"
    assert instant.status_code == 400
    assert "yesterday" in instant.json()["error"]


async def test_routes_a_row_has_what_a_page_shows():
    async with door() as host:
        metadata = {"role": "smith", "writId": "w-1", "secretPlan": "x"}
        await host.report("running", metadata=metadata)
        await host.report("record", costUsd=0.5)
        [row] = (await host.get("animator/sessions")).json()["sessions"]
    assert row == {
        "id": "ses-1",
        "status": "completed",
        "provider": "claude-code",
        "startedAt": START,
        "endedAt": START,
        "durationMs": 0,
        "exitCode": 0,
        "costUsd": 0.5,
        "role": "smith",
        "writId": "w-1",
    }


# --- transcripts and streams

ENTRIES = [
    {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text"}]}},
    {"type": "user", "message": {"role": "user", "content": "plain"}},
    {"type": "item.completed", "item": {"id": 1}},
]
MESSAGES = [
    {"role": "assistant", "content": [{"type": "text"}]},
    {"role": "user", "content": [{"type": "text", "text": "plain"}]},
    {"role": "item.completed", "content": [{"type": "item.completed", "item": {"id": 1}}]},
]


async def test_b18_a_transcript_has_roles_whatever_program_wrote_it():
    async with door() as host:
        await host.report("running")
        await host.report("record", transcript=ENTRIES)
        answer = (await host.get("animator/session-transcript", id="ses-1")).json()
    assert answer == {"messages": MESSAGES, "sessionStatus": "completed"}


async def test_routes_a_transcript_of_more_than_one_page_is_whole():
    async with door() as host:
        entries = [{"type": "user", "message": {"content": str(n)}} for n in range(1001)]
        await host.report("record", transcript=entries)
        answer = (await host.get("animator/session-transcript", id="ses-1")).json()
    assert len(answer["messages"]) == 1001


async def test_b18_a_session_that_is_not_over_has_no_transcript_yet():
    async with door() as host:
        await host.runtime.sessions.apply(
            PendingPreWrite(id="ses-0", started_at=START, provider="p", last_activity_at=START)
        )
        await host.report("running")
        for session, status in (("ses-0", "pending"), ("ses-1", "running")):
            answer = (await host.get("animator/session-transcript", id=session)).json()
            assert answer == {"messages": [], "sessionStatus": status}
            assert await host.stream(session) == [("done", {"status": status, "noStream": True})]


async def test_routes_a_transcript_needs_an_id_of_a_session_that_there_is():
    async with door() as host:
        for path in ("session-transcript", "session-stream"):
            assert (await host.get(f"animator/{path}")).status_code == 400
            unknown = await host.get(f"animator/{path}", id="ses-9")
            assert unknown.status_code == 404
            assert "ses-9" in unknown.json()["error"]
        assert (await host.get("session/show")).status_code == 400
        assert (await host.get("session/show", id="ses-9")).status_code == 404


async def test_routes_the_stream_of_a_session_that_is_over():
    async with door() as host:
        await host.report("record", transcript=ENTRIES)
        assert await host.stream("ses-1") == [
            ("transcript", {"messages": MESSAGES}),
            ("done", {"status": "completed"}),
        ]


async def test_routes_the_stream_of_a_session_that_runs_here():
    speaking: Script = [
        StreamStarted(),
        BlockStarted(0, "text"),
        TextDelta(0, "One, "),
        Pause(0.2),
        *answer("two.")[2:],
    ]
    async with door(speaking) as host:
        handle = host.runtime.animate("go")
        async for _ in handle.chunks:
            break
        told = await host.stream(handle.session_id)
    chunks = [data for name, data in told if name == "chunk"]
    assert all(chunk["type"] == "text" for chunk in chunks)
    assert "".join(chunk["text"] for chunk in chunks) == "One, two."
    assert told[-2:] == [
        (
            "transcript",
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "text", "text": "One, two."}]}
                ]
            },
        ),
        ("done", {"status": "completed"}),
    ]


async def test_routes_a_client_that_leaves_a_stream_leaves_the_session_alone():
    async with door(SPEAKING) as host:
        handle = host.runtime.animate("go")
        url = f"/api/animator/session-stream?id={handle.session_id}"
        async with host.client.stream("GET", url) as response:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    break
        assert handle.ended is None
        await handle.cancel()
        await handle.result()


async def test_routes_a_failed_session_of_this_host_is_streamed_to_its_end():
    failing: Script = [ProviderFailure(FailureKind.SERVER, "boom")]
    async with door(failing) as host:
        handle = host.runtime.animate("go")
        await handle.result()
        assert (await host.stream(handle.session_id))[-1] == ("done", {"status": "failed"})


def test_what_stood_of_a_session_is_its_transcript():
    events = [
        Text(1, "void"),
        Retracted(1, "rule"),
        Text(2, "I will "),
        Text(2, "look."),
        ToolUse(2, "c1", "look", "{}"),
        ToolResult("c1", "look", "rain"),
        Text(3, "It rains."),
    ]
    assert messages_of(events) == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I will look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": "{}"},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": "rain",
                    "is_error": False,
                }
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It rains."}]},
    ]


@pytest.mark.parametrize("entry", ["text", 3, None, [], {}, {"message": 3}, {"content": 3}])
def test_whatever_a_transcript_holds_it_can_be_shown(entry: object):
    view = message_view(entry)
    assert isinstance(view["role"], str)
    assert isinstance(view["content"], list)
    msgspec.json.encode(view)

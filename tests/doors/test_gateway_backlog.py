"""Clients that ask faster than their records can be written."""

from collections.abc import Sequence

import httpx2
import pytest
import trio
import trio.testing
from gateway_streams import anthropic_stream
from gateway_world import Reply, ScriptedUpstream, gateway_rules

from midstream.doors import gateway as gateway_module
from midstream.doors.gateway import Gateway, gateway_app
from midstream.doors.gateway_request import Begun, Finished
from midstream.doors.gateway_upstream import Upstream
from midstream.doors.http import serve_http
from midstream.messages.events import AnyEvent


class SlowRecord:
    """Is written when it is let."""

    def __init__(self) -> None:
        self.finishing = trio.Event()
        self.may_finish = trio.Event()

    def note(self, events: Sequence[AnyEvent]) -> None:
        """Nothing is kept."""

    async def finish(self, finished: Finished) -> None:
        self.finishing.set()
        await self.may_finish.wait()


async def test_new_requests_wait_while_too_many_records_are_to_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their answers do not: a client has its own before it is on record."""
    monkeypatch.setattr(gateway_module, "SETTLING_LIMIT", 2)
    upstream = ScriptedUpstream([Reply(anthropic_stream("All is well"))])
    records: list[SlowRecord] = []

    def begin(begun: Begun) -> SlowRecord:
        records.append(SlowRecord())
        return records[-1]

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, upstream.handle, [listener])
        behind = Upstream("up", f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        gateway = Gateway([behind], gateway_rules, begin)
        async with (
            serve_http(gateway_app(gateway), "127.0.0.1", 0) as url,
            httpx2.AsyncClient(timeout=60) as client,
        ):

            async def ask() -> None:
                answer = await client.post(f"{url}/v1/messages", json={"stream": True})
                assert b"message_stop" in answer.content

            with trio.fail_after(60):
                await ask()
                await ask()
                await records[1].finishing.wait()
                async with trio.open_nursery() as asking:
                    asking.start_soon(ask)
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    assert len(upstream.asked) == 2
                    records[0].may_finish.set()
                assert len(upstream.asked) == 3
            for record in records:
                record.may_finish.set()
        await behind.aclose()
        nursery.cancel_scope.cancel()

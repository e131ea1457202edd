"""What has ended is gone at once: no reference cycles are left for the garbage collector.

The collector stops everything while it looks, and the longer, the more there is that nobody
needs. A host with a hundred sessions would abort late for it (`bench/latency.py`).
"""

import gc
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import pytest
import trio
from hosts import host, wall_clock
from msgspec.structs import replace
from tool_loop import rule
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.config import BudgetConfig, Config, RulesConfig
from midstream.messages.events import SessionEnded
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.lifecycle import AnyLifecycleEvent, ChildStopped
from midstream.messages.record import SessionStatus
from midstream.providers.anthropic import AnthropicProvider
from midstream.providers.scripted import Call, Hang, Script, ScriptedProvider, answer
from midstream.rules.rule import RepeatMode, Source
from midstream.runtime import Runtime, open_runtime
from midstream.stores.memory import MemoryStore
from midstream.tools import Tool

TIMES = 10
BOUND = 1
"""Objects that a session or an attempt may leave, on average. While it lives it has some
hundreds."""

CLEAN, DIRTY = answer("all is well"), answer("this is FORBIDDEN, you see")
CALLING = answer("let me see", Call("look", '{"where": "here"}'))
FORBIDDEN = rule("forbidden", "FORBIDDEN", source=Source.TEXT)
CONFIG = Config(
    rules=RulesConfig(
        discover=False,
        builtin_rules=False,
        repeat_mode=RepeatMode.AFTER_GAP,
        repeat_gap=0,
        max_retries_per_rule=TIMES,
        max_retries_per_prompt=TIMES,
    )
)

CUT_TWICE = replace(CONFIG, budget=BudgetConfig(max_restarts=1))
FORBIDDEN_ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    b'data: {"type": "message_start", "message": {"id": "m", "model": "m"}}\n\n'
    b'data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}\n\n'
    b'data: {"type": "content_block_delta", "index": 0, '
    b'"delta": {"type": "text_delta", "text": "FORBIDDEN"}}\n\n'
)
SESSION_TREE = re.compile(r"runtime/sessions/ses-[^/]+")
PATIENCE_S = 30.0


@contextmanager
def no_garbage() -> Generator[None]:
    """Fails if there are more than `TIMES * BOUND` objects at the end that nobody needs."""
    gc.collect()
    gc.disable()
    try:
        yield
        found = gc.collect()
    finally:
        gc.enable()
    assert found <= TIMES * BOUND


async def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing {where}"


LOOK = Tool(look)


async def _run(runtime: Runtime) -> SessionEnded:
    handle = runtime.animate("go", tools=[LOOK])
    assert [chunk async for chunk in handle.chunks]
    return await handle.result()


@pytest.mark.parametrize(
    ("scripts", "status"),
    [
        pytest.param([CLEAN], SessionStatus.COMPLETED, id="answered"),
        pytest.param([DIRTY, CLEAN], SessionStatus.COMPLETED, id="cut and tried again"),
        pytest.param([CALLING, CLEAN], SessionStatus.COMPLETED, id="with a call"),
        pytest.param(
            [[*CLEAN[:3], ProviderFailure(FailureKind.NETWORK, "reset")]],
            SessionStatus.FAILED,
            id="failed",
        ),
    ],
)
async def test_a_session_that_has_ended_leaves_no_garbage(
    scripts: list[Script], status: SessionStatus, autojump_clock: MockClock
) -> None:
    provider = ScriptedProvider(*scripts * (TIMES + 1))
    async with host(
        MemoryStore(), provider=provider, clock=wall_clock(), config=CONFIG, rules=[FORBIDDEN]
    ) as runtime:
        await _run(runtime)  # what is made once is made now
        await trio.sleep(60)
        with no_garbage():
            for _ in range(TIMES):
                assert (await _run(runtime)).status is status
            await trio.sleep(60)  # it may still be closing


async def test_a_session_that_is_interrupted_leaves_no_garbage(
    autojump_clock: MockClock,
) -> None:
    scripts: list[Script] = [[*CLEAN[:3], Hang()]] * TIMES
    async with host(MemoryStore(), *scripts, clock=wall_clock(), config=CONFIG) as runtime:
        with no_garbage():
            for _ in range(TIMES):
                handle = runtime.animate("go")
                async with handle.chunks as chunks:
                    await anext(aiter(chunks))
                    await handle.interrupt()
                assert (await handle.result()).status is SessionStatus.CANCELLED
            await trio.sleep(60)


async def test_an_attempt_that_has_ended_leaves_no_garbage(autojump_clock: MockClock) -> None:
    """While its session goes on."""
    provider = ScriptedProvider(*[DIRTY] * TIMES, [*CLEAN[:3], Hang()])
    async with host(
        MemoryStore(), provider=provider, clock=wall_clock(), config=CONFIG, rules=[FORBIDDEN]
    ) as runtime:
        with no_garbage():
            handle = runtime.animate("go")
            await trio.sleep(60)
            assert handle.ended is None
    assert len(provider.requests) == TIMES + 1


async def test_a_question_that_fails_leaves_no_garbage(autojump_clock: MockClock) -> None:
    async with host(MemoryStore(), clock=wall_clock()) as runtime:
        with no_garbage():
            for _ in range(TIMES):
                assert await runtime.follow("ses-unknown") is None


async def test_a_session_over_http_that_was_cut_leaves_no_garbage() -> None:
    gone = _Departures()
    async with _forbidden_server() as url:
        provider = AnthropicProvider(base_url=url)
        async with open_runtime(
            CUT_TWICE,
            provider=provider,
            rules=[FORBIDDEN],
            store=MemoryStore(),
            on_lifecycle=gone.take,
        ) as runtime:
            await runtime.animate("go").result()
            await gone.wait(1)
            with no_garbage():
                for _ in range(TIMES):
                    ended = await runtime.animate("go").result()
                    assert ended.status is SessionStatus.CAPPED
                await gone.wait(1 + TIMES)


class _Departures:
    """Counts the session trees that are gone."""

    def __init__(self) -> None:
        self._count = 0
        self._news = trio.Event()

    def take(self, event: AnyLifecycleEvent) -> None:
        if isinstance(event, ChildStopped) and SESSION_TREE.fullmatch(event.who):
            self._count += 1
            self._news.set()

    async def wait(self, count: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while self._count < count:
                self._news = trio.Event()
                await self._news.wait()
        await wait_all_tasks_blocked()


@asynccontextmanager
async def _forbidden_server() -> AsyncGenerator[str]:
    """A model on the loopback interface that always says the same, and then no more."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, _say_forbidden, 0, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(serve)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def _say_forbidden(stream: trio.SocketStream) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        request += await stream.receive_some()
    await stream.send_all(FORBIDDEN_ANSWER)
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass

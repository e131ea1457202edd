"""A runtime in a program of asyncio. The calls are those of `midstream.open_runtime`.

    from midstream.embedding import aio

    async def main():
        async with aio.open_runtime() as runtime:
            handle = await runtime.animate("Write a haiku about actors")
            async for chunk in handle.chunks:
                print(chunk)
            print(await handle.result())

    asyncio.run(main())

The runtime itself runs on trio, in a thread of its own. What differs: `animate`, `summon` and
whatever else answers at once there has to be awaited here. Async functions that are given to
it (tools, hooks, interceptors) are functions of asyncio and run in the loop of the host; a
provider that is written for asyncio goes through `from_asyncio`. Cancellation crosses in both
directions: a call that is cancelled here has ended there when it raises, and when a runtime
gives up, the block around it is cancelled and raises why.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

import trio

from midstream import runtime as trio_runtime
from midstream import websocket as trio_websocket
from midstream.assembly import RuleBook
from midstream.config import Config, WebsocketConfig
from midstream.embedding.aio_handle import Handle, Stream
from midstream.embedding.aio_sessions import Sessions
from midstream.embedding.asyncio_functions import crossing
from midstream.embedding.asyncio_provider import AsyncioProvider, CrossingProvider
from midstream.embedding.crossing import BlockingPortal, Call, Hosted, trio_thread
from midstream.embedding.options import (
    AnimateOptions,
    Prompt,
    RecoverOptions,
    RuntimeOptions,
    SessionOptions,
    SummonOptions,
)
from midstream.embedding.streams import Fetched
from midstream.handle import Chunk, SessionHandle
from midstream.messages.conversation import ToolSpec
from midstream.messages.dispatch import DispatchStatus
from midstream.messages.notices import Notice
from midstream.messages.record import SessionRecord
from midstream.messages.rule_counters import RuleCounters
from midstream.messages.session_cost import SessionCost
from midstream.providers.provider import Provider
from midstream.rules.rule import Rule
from midstream.tools import Tool

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Runtime:
    """A running runtime; see `midstream.Runtime`. Made by `open_runtime`."""

    def __init__(
        self,
        portal: BlockingPortal,
        runtime: trio_runtime.Runtime,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config = runtime.config
        self.sessions = Sessions(portal, runtime)
        self.portal = portal
        """The way into the thread of trio, for programs that know their way there."""
        self.in_trio = runtime
        """The runtime itself; it belongs to that thread."""
        self._loop = loop

    @property
    def rules(self) -> RuleBook:
        """What is watched for, and what belongs into the system prompt."""
        return self.in_trio.rules

    @property
    def owner(self) -> str:
        """The name of this host in the fences of its sessions."""
        return self.in_trio.owner

    @property
    def live_sessions(self) -> int:
        """How many sessions run in this runtime."""
        return self.in_trio.live_sessions

    async def animate(self, prompt: Prompt, **options: Unpack[AnimateOptions]) -> Handle:
        """Hand in a prompt; the session that answers it runs on by itself."""
        _cross_tools(options, self._loop)
        return await self._begin(partial(self.in_trio.animate, prompt, **options))

    async def summon(self, prompt: Prompt, **options: Unpack[SummonOptions]) -> Handle:
        """`animate` as a role."""
        _cross_tools(options, self._loop)
        return await self._begin(partial(self.in_trio.summon, prompt, **options))

    async def recover(self, session_id: str, **options: Unpack[RecoverOptions]) -> Handle:
        """Go on with a session whose host was lost, where its record stops."""
        tools = options.get("tools")
        if tools is not None:
            options["tools"] = _crossed_tools(tools, self._loop)
        handle = await self._call(partial(self.in_trio.recover, session_id, **options))
        return Handle(self.portal, handle)

    async def handle(self, session_id: str) -> Handle | None:
        """The session, if it runs in this runtime."""
        handle = await self._call(_soon, partial(self.in_trio.handle, session_id))
        return None if handle is None else Handle(self.portal, handle)

    async def follow(self, session_id: str) -> Stream[Chunk] | None:
        """What the model has said and says in a session of this runtime; None if it is not
        known here, or ended more than half a minute ago."""
        stream = await self._call(self.in_trio.follow, session_id)
        if stream is None:
            return None
        return Stream(self.portal, Fetched(stream.take, stream.aclose))

    async def notices(self, after: int = 0) -> Stream[Notice]:
        """What becomes known of the sessions that this runtime writes. Ends with it."""
        notices = await self._call(self.in_trio.notices, after)

        async def take() -> Sequence[Notice]:
            notice = await anext(notices, None)
            return () if notice is None else (notice,)

        return Stream(self.portal, Fetched(take, partial(_soon, notices.close)))

    async def cancel(self, session_id: str, reason: str | None = None) -> SessionRecord:
        """End a session as cancelled, whichever process it lives in; its record then."""
        return await self._call(self.in_trio.cancel, session_id, reason)

    async def session_costs(self, session_ids: Iterable[str]) -> dict[str, SessionCost]:
        """What these sessions have cost, by id."""
        return await self._call(self.in_trio.session_costs, tuple(session_ids))

    async def status(self) -> DispatchStatus:
        """The shared pause: whether, since when, until when and why nothing may begin."""
        return await self._call(self.in_trio.status)

    async def is_dispatchable(self) -> bool:
        """Whether a session may begin now, as far as this host knows."""
        return await self._call(_soon, self.in_trio.is_dispatchable)

    async def reload_rules(self, rules: Iterable[Rule] | None = None) -> RuleBook:
        """Read the rules again, or take these instead."""
        return await self._call(self.in_trio.reload_rules, rules)

    async def rule_counters(self) -> RuleCounters:
        """What the rules have done in all sessions of this runtime so far."""
        return await self._call(self.in_trio.rule_counters)

    async def complete_path(self, typed: str) -> tuple[str, ...]:
        """What may be meant by the beginning of a reference to a file."""
        return await self._call(self.in_trio.complete_path, typed)

    async def stop_message(self, conversation_id: str) -> dict[str, Any] | None:
        """What the conversation is continued with; None if nothing is set."""
        return await self._call(self.in_trio.stop_message, conversation_id)

    async def _begin(self, begin: Callable[[], SessionHandle]) -> Handle:
        return Handle(self.portal, await self._call(_soon, begin))

    async def _call(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        return await Call(self.portal, function, *args).in_asyncio()


def from_asyncio(provider: AsyncioProvider) -> Provider:
    """A provider that is written for asyncio, for `open_runtime` and `animate`. It runs in the
    loop that runs now."""
    return CrossingProvider(provider, asyncio.get_running_loop())


@asynccontextmanager
async def open_runtime(
    config: Config | Path | str | None = None, **options: Unpack[RuntimeOptions]
) -> AsyncGenerator[Runtime]:
    """Run a runtime for as long as the block lasts; see `midstream.open_runtime`.

    `on_lifecycle` is called in the thread of trio. If the runtime gives up meanwhile, the block
    is cancelled and raises why.
    """
    loop = asyncio.get_running_loop()
    cross = partial(_crossed, loop)
    options["hooks"] = [cross(hook) for hook in options.get("hooks", ())]
    options["interceptors"] = [cross(one) for one in options.get("interceptors", ())]
    with trio_thread() as portal:
        hosted = Hosted(portal, trio_runtime.open_runtime(config, **options))
        async with _stay_in(hosted) as runtime:
            yield Runtime(portal, runtime, loop)


@asynccontextmanager
async def open_websocket(
    runtime: Runtime, config: WebsocketConfig | None = None, *, token: str | None = None
) -> AsyncGenerator[tuple[str, ...]]:
    """Open the websocket door of a runtime for as long as the block lasts; its URLs. See
    `midstream.open_websocket`."""
    opening = trio_websocket.open_websocket(runtime.in_trio, config, token=token)
    async with _stay_in(Hosted(runtime.portal, opening)) as door:
        yield door.urls


@asynccontextmanager
async def _stay_in(hosted: Hosted[T]) -> AsyncGenerator[T]:
    """Stay in a block of trio from a task of asyncio: neither outlives the other."""
    value = await hosted.enter_in_asyncio()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    cancelling = task.cancelling()
    leaving = ended = False

    def on_end() -> None:
        nonlocal ended
        if not leaving:
            ended = True
            task.cancel()

    def on_end_in_trio() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_end)

    hosted.call.on_end(on_end_in_trio)
    told = False
    try:
        yield value
    except asyncio.CancelledError:
        if not ended or task.uncancel() > cancelling:
            raise
        told = True  # the block of trio has ended; why, its call says below
    finally:
        leaving = True
        if ended and not told:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            task.uncancel()
        hosted.leave()
        await hosted.call.in_asyncio()


async def _soon(function: Callable[[], T]) -> T:
    """A function that does not wait, called in the thread of trio."""
    await trio.lowlevel.checkpoint()
    return function()


def _cross_tools(options: SessionOptions, loop: asyncio.AbstractEventLoop) -> None:
    tools = options.get("tools")
    if tools is not None:
        options["tools"] = _crossed_tools(tools, loop)


def _crossed_tools(
    tools: Sequence[Tool | ToolSpec], loop: asyncio.AbstractEventLoop
) -> list[Tool | ToolSpec]:
    by = partial(crossing, loop)
    return [tool.run_by(by) if isinstance(tool, Tool) else tool for tool in tools]


def _crossed(
    loop: asyncio.AbstractEventLoop, function: Callable[[*Ts], Awaitable[T]]
) -> Callable[[*Ts], Awaitable[T]]:
    return crossing(loop, cast("Callable[..., Coroutine[Any, Any, T]]", function))

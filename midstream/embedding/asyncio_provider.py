"""A provider that is written for asyncio, made fit for a runtime on trio.

Each stream is one task in the loop of the host: it opens the stream, reads it, and closes it
there, so that whatever the provider uses (task groups, timeouts) stays in one task. Batches
come over a small queue: the provider is read a little ahead, and no further.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Protocol

import trio

from midstream.embedding.asyncio_functions import InLoop, call_asyncio
from midstream.messages.conversation import ModelRequest
from midstream.messages.stream import AnyStreamMessage
from midstream.providers.provider import StreamBatches

READ_AHEAD = 16
"""Batches that may wait for the runtime."""


class AsyncioProvider(Protocol):
    """What `midstream.Provider` is, with everything async run by asyncio."""

    @property
    def name(self) -> str: ...

    @property
    def format(self) -> str: ...

    @property
    def abort_stops_billing(self) -> bool: ...

    def open(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[AnyStreamMessage]]]: ...

    async def aclose(self) -> None: ...


class CrossingProvider:
    """The provider, for trio. `loop` is the one in which it runs."""

    def __init__(self, provider: AsyncioProvider, loop: asyncio.AbstractEventLoop) -> None:
        self.name = provider.name
        self.format = provider.format
        self.abort_stops_billing = provider.abort_stops_billing
        self._provider = provider
        self._loop = loop

    @asynccontextmanager
    async def open(self, request: ModelRequest) -> AsyncGenerator[StreamBatches]:
        """Start one stream."""
        stream = _Stream(self._loop, self._provider, request)
        try:
            yield stream
        finally:
            await stream.run.stop()

    async def aclose(self) -> None:
        """Let the provider go of what it keeps."""
        await call_asyncio(self._loop, self._provider.aclose)


class _Stream:
    """One stream: read in the loop, iterated over in trio. A deque is safe between threads."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, provider: AsyncioProvider, request: ModelRequest
    ) -> None:
        self._loop = loop
        self._trio = trio.lowlevel.current_trio_token()
        self._waiting: deque[Sequence[AnyStreamMessage]] = deque()
        self._ended = False
        self._news = trio.Event()
        self._room = asyncio.Semaphore(READ_AHEAD)
        self.run = InLoop(loop, partial(self._pump, provider, request))

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> Sequence[AnyStreamMessage]:
        """The next batch. Raises what the provider raises."""
        while not self._waiting and not self._ended:
            self._news = trio.Event()
            # The other thread may have been faster than the new event.
            if not self._waiting and not self._ended:
                await self._news.wait()
        if not self._waiting:
            await self.run.over.wait()
            self.run.result()
            raise StopAsyncIteration
        batch = self._waiting.popleft()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._room.release)
        return batch

    async def _pump(self, provider: AsyncioProvider, request: ModelRequest) -> None:
        try:
            async with provider.open(request) as batches:
                async for batch in batches:
                    await self._room.acquire()
                    self._waiting.append(batch)
                    self._tell()
        finally:
            self._ended = True
            self._tell()

    def _tell(self) -> None:
        with suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(self._on_news)

    def _on_news(self) -> None:
        self._news.set()

"""What every provider is: something that opens one stream for one request.

`StreamMonitor` is the only caller. A provider holds no state of a stream outside the
context that `open` returns, so that cancelling the scope around it ends everything.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from midstream.messages.conversation import ModelRequest
from midstream.messages.failure import ProviderFailure
from midstream.messages.stream import AnyStreamMessage, StreamFailed

StreamBatches = AsyncIterator[Sequence[AnyStreamMessage]]
"""What a stream yields: for each read, the messages that it completed; never empty."""


class Provider(Protocol):
    """A source of streams.

    `format` names the wire format (`anthropic`, `openai_chat`, `openai_responses`): what
    an `OpaquePart` belongs to and what `settle` has to satisfy.
    `abort_stops_billing` says whether closing the connection ends what is charged.
    """

    @property
    def name(self) -> str: ...

    @property
    def format(self) -> str: ...

    @property
    def abort_stops_billing(self) -> bool: ...

    def open(self, request: ModelRequest) -> AbstractAsyncContextManager[StreamBatches]:
        """Start one stream.

        Entering sends the request. Failures are not raised: they come as a last batch
        that ends with `StreamFailed`, also those of the connection and of the status
        line. Leaving the context, by whatever way, closes the connection at once and
        within a bounded time, under cancellation too.
        """
        ...

    async def aclose(self) -> None:
        """Let go of what is kept between streams (idle connections). Streams go on."""
        ...


class ReadyBatches:
    """Batches that are all there already, as what `open` gives."""

    def __init__(self, *batches: Sequence[AnyStreamMessage]) -> None:
        self._batches = list(reversed(batches))

    def __aiter__(self) -> "ReadyBatches":
        return self

    async def __anext__(self) -> Sequence[AnyStreamMessage]:
        if not self._batches:
            raise StopAsyncIteration
        return self._batches.pop()


def refused(failure: ProviderFailure) -> ReadyBatches:
    """A stream that failed before it began."""
    return ReadyBatches([StreamFailed(failure)])

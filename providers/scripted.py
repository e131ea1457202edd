"""The provider `scripted`: streams that a test writes down, step by step.

It keeps the promises of a real provider: a script that ends without a terminal message ends in
a failure, and leaving the context ends the stream. It also counts, so that a test can see how
many streams were live at once and what was asked.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec
import trio

from midstream.messages.conversation import ModelRequest
from midstream.messages.errors import MidstreamError
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    BlockStarted,
    StopReason,
    StreamFailed,
    StreamFinished,
    StreamMessage,
    StreamStarted,
    TextDelta,
    ThinkingDelta,
    ThinkingSigned,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
    UsageReported,
)
from midstream.messages.usage import Usage, UsageSource
from midstream.providers.provider import StreamBatches


class ScriptExhausted(MidstreamError):
    """A stream was asked for that no script was written for."""


class Pause(msgspec.Struct, frozen=True):
    """Nothing comes for `seconds`."""

    seconds: float


class Hang(msgspec.Struct, frozen=True):
    """Nothing comes any more; only leaving ends the stream."""


class SlowStart(msgspec.Struct, frozen=True):
    """Opening the stream takes `seconds`. Only as the first step."""

    seconds: float


class SlowClose(msgspec.Struct, frozen=True):
    """Closing the stream takes `seconds`, under cancellation too. Anywhere in a script."""

    seconds: float


class Raise(msgspec.Struct, frozen=True):
    """The provider's own code fails: `error` is raised where a batch would come."""

    error: Exception


class Leave(msgspec.Struct, frozen=True):
    """The stream ends here without a word, as no provider should."""


Step = (
    AnyStreamMessage
    | Sequence[AnyStreamMessage]
    | ProviderFailure
    | Pause
    | Hang
    | Leave
    | Raise
    | SlowStart
    | SlowClose
)
"""A message is a batch of its own, a sequence of messages is one batch, a failure ends the
stream with it."""

Script = Iterable[Step]


class ScriptedProvider:
    """Plays `scripts` in their order, one for each `open`.

    `requests` are those that were received. `live` streams are open now, and `most_live` were
    at any time. Opening more streams than there are scripts raises ScriptExhausted.
    """

    def __init__(
        self,
        *scripts: Script,
        name: str = "scripted",
        format: str = "anthropic",
        abort_stops_billing: bool = True,
    ) -> None:
        self.name = name
        self.format = format
        self.abort_stops_billing = abort_stops_billing
        self.requests: list[ModelRequest] = []
        self.live = 0
        self.most_live = 0
        self._scripts = [list(script) for script in scripts]

    def add(self, *scripts: Script) -> None:
        """Append scripts for further streams."""
        self._scripts.extend(list(script) for script in scripts)

    @asynccontextmanager
    async def open(self, request: ModelRequest) -> AsyncGenerator[StreamBatches]:
        """Play the next script, whatever is asked."""
        number = len(self.requests)
        self.requests.append(request)
        if number >= len(self._scripts):
            raise ScriptExhausted(f"stream {number + 1} has no script; write one more")
        script = self._scripts[number]
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            if script and isinstance(first := script[0], SlowStart):
                await trio.sleep(first.seconds)
            yield _Performance(script)
        finally:
            slow_s = sum(step.seconds for step in script if isinstance(step, SlowClose))
            if slow_s:
                with trio.CancelScope(shield=True):
                    await trio.sleep(slow_s)
            self.live -= 1

    async def aclose(self) -> None:
        """Nothing is kept between streams."""


class _Performance:
    """One stream, as an iterator of batches."""

    def __init__(self, script: list[Step]) -> None:
        self._steps = iter(script)
        self._over = False

    def __aiter__(self) -> "_Performance":
        return self

    async def __anext__(self) -> Sequence[AnyStreamMessage]:
        await trio.lowlevel.checkpoint()
        while not self._over:
            batch = await self._next_batch()
            if batch:
                self._over = isinstance(batch[-1], StreamFinished | StreamFailed)
                return batch
        raise StopAsyncIteration

    async def _next_batch(self) -> Sequence[AnyStreamMessage]:
        step = next(self._steps, None)
        if step is None:
            message = "the stream ended without its terminal event"
            return [StreamFailed(ProviderFailure(FailureKind.PROTOCOL, message))]
        if isinstance(step, Pause):
            await trio.sleep(step.seconds)
        elif isinstance(step, Hang):
            await trio.sleep_forever()
        elif isinstance(step, Raise):
            raise step.error
        elif isinstance(step, Leave):
            self._over = True
        elif isinstance(step, ProviderFailure):
            return [StreamFailed(step)]
        elif isinstance(step, StreamMessage):
            return [step]
        elif not isinstance(step, SlowStart | SlowClose):
            return step
        return []


class Call(msgspec.Struct, frozen=True):
    """A tool call of an answer; `arguments` is its JSON text."""

    name: str
    arguments: str = "{}"
    call_id: str = "call_1"


def answer(
    *parts: str | Call,
    thinking: str = "",
    stop_reason: StopReason | None = None,
    piece_chars: int = 8,
    usage: Usage | None = None,
) -> list[Step]:
    """The script of a whole, finished answer of texts and calls.

    Each delta is a batch of its own and has `piece_chars` characters. `thinking` comes first,
    signed. The stop reason is TOOL_USE where there is a call, else END_TURN.
    """
    calls = any(isinstance(part, Call) for part in parts)
    reason = stop_reason or (StopReason.TOOL_USE if calls else StopReason.END_TURN)
    steps: list[Step] = [StreamStarted("msg_1", "scripted-model")]
    if thinking:
        steps += _block(0, thinking, piece_chars, thinking=True)
    for index, part in enumerate(parts, start=1 if thinking else 0):
        if isinstance(part, Call):
            steps += _call(index, part, piece_chars)
        else:
            steps += _block(index, part, piece_chars, thinking=False)
    steps.append(UsageReported(usage or Usage(10, 5, source=UsageSource.REPORTED)))
    steps.append(StreamFinished(reason, reason.value))
    return steps


def _block(index: int, text: str, piece_chars: int, *, thinking: bool) -> list[Step]:
    delta = ThinkingDelta if thinking else TextDelta
    steps: list[Step] = [BlockStarted(index, "thinking" if thinking else "text")]
    steps += [delta(index, piece) for piece in _pieces(text, piece_chars)]
    if thinking:
        steps.append(ThinkingSigned(index, "signature"))
    return [*steps, BlockFinished(index)]


def _call(index: int, call: Call, piece_chars: int) -> list[Step]:
    return [
        ToolCallStarted(index, call.call_id, call.name),
        *(ToolArgumentsDelta(index, piece) for piece in _pieces(call.arguments, piece_chars)),
        ToolCallFinished(index, call.call_id, call.name, call.arguments),
    ]


def _pieces(text: str, piece_chars: int) -> list[str]:
    return [text[start : start + piece_chars] for start in range(0, len(text), piece_chars)]

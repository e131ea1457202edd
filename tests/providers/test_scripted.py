"""The scripted provider keeps the promises that tests of its readers build on."""

import pytest
import trio
import trio.testing

from midstream.messages.accumulate import StreamState, accumulate
from midstream.messages.conversation import ModelRequest, UserItem
from midstream.messages.failure import FailureKind, ProviderFailure
from midstream.messages.stream import (
    AnyStreamMessage,
    Ping,
    StopReason,
    StreamFailed,
    StreamStarted,
    TextDelta,
)
from midstream.providers.provider import Provider
from midstream.providers.scripted import (
    Call,
    Hang,
    Pause,
    ScriptedProvider,
    ScriptExhausted,
    SlowClose,
    SlowStart,
    answer,
)

REQUEST = ModelRequest(model="m", items=(UserItem("hello"),))


async def batches_of(provider: Provider) -> list[list[AnyStreamMessage]]:
    async with provider.open(REQUEST) as batches:
        return [list(batch) async for batch in batches]


async def test_steps_come_in_order_one_batch_each(autojump_clock: trio.testing.MockClock):
    text = [TextDelta(0, "a"), TextDelta(0, "b")]
    failure = ProviderFailure(FailureKind.OVERLOADED, "busy")
    provider = ScriptedProvider([SlowStart(1.0), Ping(), Pause(3.0), text, failure, Ping()])
    assert await batches_of(provider) == [[Ping()], text, [StreamFailed(failure)]]
    assert trio.current_time() == 4.0


async def test_each_stream_plays_the_next_script_and_its_request_is_kept():
    provider = ScriptedProvider(answer("one"))
    provider.add(answer("two"))
    texts = [accumulate(m for b in await batches_of(provider) for m in b).text for _ in range(2)]
    assert texts == ["one", "two"]
    assert provider.requests == [REQUEST, REQUEST]
    with pytest.raises(ScriptExhausted, match="stream 3"):
        await batches_of(provider)


async def test_a_script_without_an_end_ends_in_a_failure():
    last = (await batches_of(ScriptedProvider([StreamStarted()])))[-1][-1]
    assert isinstance(last, StreamFailed)
    assert last.failure.kind == FailureKind.PROTOCOL


async def test_an_answer_is_a_whole_stream():
    script = answer("Let me see.", Call("look", '{"at": "it"}'), thinking="Hm.", piece_chars=3)
    transcript = accumulate(
        message for batch in await batches_of(ScriptedProvider(script)) for message in batch
    )
    assert (transcript.text, transcript.thinking) == ("Let me see.", "Hm.")
    assert [(call.name, call.arguments) for call in transcript.calls] == [("look", '{"at": "it"}')]
    assert (transcript.state, transcript.stop_reason) == (StreamState.FINISHED, StopReason.TOOL_USE)


async def test_live_streams_are_counted_until_a_slow_close_is_over(
    autojump_clock: trio.testing.MockClock,
):
    provider = ScriptedProvider([Hang(), SlowClose(2.0)], [Hang()])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batches_of, provider)
        nursery.start_soon(batches_of, provider)
        await trio.testing.wait_all_tasks_blocked()
        assert provider.live == 2
        nursery.cancel_scope.cancel()
    assert trio.current_time() == 2.0
    assert (provider.live, provider.most_live) == (0, 2)

"""A runtime in programs of asyncio and of plain threads: the same answers, and clean ends.

These programs run on the machine's clock, as those of users do; none sleeps for long.
"""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from midstream.actors.cell import DEFAULT_MAILBOX_CAPACITY
from midstream.actors.ledger import Ledger
from midstream.actors.ledger_messages import LedgerMessage
from midstream.config import Config, RulesConfig
from midstream.embedding import aio, sync
from midstream.embedding.asyncio_functions import LoopGone
from midstream.embedding.asyncio_provider import READ_AHEAD
from midstream.handle import SessionHandle
from midstream.messages.conversation import ModelRequest, ToolSpec
from midstream.messages.errors import ConfigError, RuntimeStopped
from midstream.messages.events import Retracted, SessionEnded, Text, ToolResult, ToolWanted
from midstream.messages.record import SessionStatus
from midstream.messages.stream import (
    AnyStreamMessage,
    BlockStarted,
    StopReason,
    StreamFinished,
    StreamStarted,
    TextDelta,
)
from midstream.messages.submission import HookCancel, HookContinue, SubmittedPrompt
from midstream.providers.scripted import Call, Hang, Pause, Script, ScriptedProvider, Step, answer
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.runtime import Runtime
from midstream.session_book import SessionBook
from midstream.stores.conversations import ConversationBusy
from midstream.stores.memory import MemoryStore
from midstream.tools import Tool

CONFIG = Config(rules=RulesConfig(discover=False, builtin_rules=False))
HANGING: list[Step] = [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, "well, "), Hang()]
NO_FOO = Rule(name="no-foo", conditions=("foo",), scope=(ScopeToken(Source.TEXT),), body="No foo.")
LIMIT_S = 20

T = TypeVar("T")


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """A program of asyncio, in its debug mode, which minds what is called from which thread;
    whatever is left behind in it shows up as a warning."""

    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await main()

    result = asyncio.run(limited(), debug=True)
    gc.collect()
    return result


def opened(*scripts: Script, **options: Any) -> Any:
    options.setdefault("provider", ScriptedProvider(*scripts))
    options.setdefault("rules", ())
    return aio.open_runtime(CONFIG, store=MemoryStore(), **options)


def opened_in_threads(*scripts: Script, **options: Any) -> Any:
    options.setdefault("provider", ScriptedProvider(*scripts))
    options.setdefault("rules", ())
    return sync.open_runtime(CONFIG, store=MemoryStore(), **options)


# --- asyncio


def test_a_session_runs_in_a_program_of_asyncio() -> None:
    async def main() -> None:
        async with opened(answer("hello there")) as runtime:
            handle = await runtime.animate("hello")
            chunks = [chunk async for chunk in handle.chunks]
            assert "".join(c.text for c in chunks if isinstance(c, Text)) == "hello there"
            ended = await handle.result()
            assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "hello there")
            events = [event async for event in handle.events()]
            assert isinstance(events[-1].event, SessionEnded)
            record = await runtime.sessions.session(handle.session_id)
            assert record.status is SessionStatus.COMPLETED
            assert (await runtime.sessions.list_sessions()).records[0].id == handle.session_id
            assert await runtime.is_dispatchable()

    run(main)


def test_a_session_can_be_followed_as_soon_as_its_id_is_known() -> None:
    async def main() -> None:
        async with opened(answer("hello there")) as runtime:
            handle = await runtime.animate("hello")
            chunks = await runtime.follow(handle.session_id)
            assert chunks is not None
            said = [chunk.text async for chunk in chunks if isinstance(chunk, Text)]
            assert "".join(said) == "hello there"

    run(main)
    with opened_in_threads(answer("hello there")) as runtime:
        chunks = runtime.follow(runtime.animate("hello").session_id)
        assert chunks is not None
        with chunks:
            assert "".join(c.text for c in chunks if isinstance(c, Text)) == "hello there"


def test_two_runtimes_run_in_one_program_and_leave_nothing_behind() -> None:
    threads = set(threading.enumerate())

    async def weather() -> str:
        """Tell the weather."""
        await asyncio.sleep(0)
        return "rain"

    async def main() -> None:
        many = [answer(f"answer {number}") for number in range(10)]
        async with (
            opened(answer(Call("weather")), answer("it rains")) as one,
            opened(*many) as other,
        ):
            with_tool = await one.animate("hello", tools=[Tool(weather)])
            handles = await asyncio.gather(*[other.animate("hello") for _ in many])
            ended = await asyncio.gather(*[handle.result() for handle in handles])
            assert sorted(end.output for end in ended) == [f"answer {n}" for n in range(10)]
            assert (await with_tool.result()).output == "it rains"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)
    assert set(threading.enumerate()) == threads


def test_a_session_runs_under_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def main() -> None:
        async with opened(HANGING, answer("fine")) as runtime:
            handle = await runtime.animate("hello")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await handle.result()
            await handle.interrupt()
            assert (await handle.result()).status is SessionStatus.CANCELLED
            assert (await (await runtime.animate("again")).result()).output == "fine"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop, debug=True) as runner:
        runner.run(main())


def test_a_rule_cuts_in_a_program_of_asyncio() -> None:
    async def main() -> None:
        breaking = [*HANGING[:-1], TextDelta(0, "foo"), Hang()]
        async with opened(breaking, answer("fine"), rules=[NO_FOO]) as runtime:
            handle = await runtime.animate("hello")
            assert Retracted(1, "no-foo") in [chunk async for chunk in handle.chunks]
            assert (await handle.result()).output == "fine"
            counters = await runtime.rule_counters()
            assert counters.rules["no-foo"].interrupted == 1

    run(main)


def test_errors_are_raised_as_what_they_are(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="no such file"):
            async with aio.open_runtime(tmp_path / "none.toml"):
                pass
        async with opened(HANGING) as runtime:
            handle = await runtime.animate("hello")
            with pytest.raises(ConversationBusy):
                await runtime.animate("more", conversation_id=handle.conversation_id)
        with pytest.raises(RuntimeStopped):
            await runtime.animate("too late")

    run(main)


def test_async_tools_run_in_the_loop_of_the_host() -> None:
    async def main() -> None:
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        seen: list[bool] = []

        async def weather(city: str, days: int = 1) -> dict[str, int]:
            """Tell the weather."""
            await asyncio.sleep(0)
            here = asyncio.get_running_loop() is loop and threading.get_ident() == thread
            seen.append(here)
            return {city: days}

        def clock() -> str:
            """Tell the time."""
            seen.append(threading.get_ident() != thread)
            return "noon"

        script = answer(
            Call("weather", '{"city": "Kyiv", "days": 2}', "c1"), Call("clock", "{}", "c2")
        )
        async with opened(script, answer("done")) as runtime:
            handle = await runtime.animate("hello", tools=[Tool(weather), Tool(clock)])
            results = [c async for c in handle.chunks if isinstance(c, ToolResult)]
            assert {r.call_id: r.content for r in results} == {"c1": '{"Kyiv":2}', "c2": "noon"}
        assert seen == [True, True]

    run(main)


def test_a_tool_of_asyncio_is_cancelled_with_its_session_and_waited_for() -> None:
    async def main() -> None:
        began, noted = asyncio.Event(), list[str]()

        async def slow() -> str:
            """Take for ever."""
            began.set()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.05)  # cleaning up takes its time
                noted.append("cleaned up")
            return "never"

        async with opened(answer(Call("slow"))) as runtime:
            handle = await runtime.animate("hello", tools=[Tool(slow)])
            await began.wait()
            await handle.interrupt()
            assert (await handle.result()).status is SessionStatus.CANCELLED
            assert noted == ["cleaned up"]

    run(main)


def test_a_tool_of_asyncio_that_fails_tells_the_model() -> None:
    async def main() -> None:
        async def broken() -> str:
            """Break."""
            raise ValueError("a broken pipe")

        async with opened(answer(Call("broken")), answer("I see")) as runtime:
            handle = await runtime.animate("hello", tools=[Tool(broken)])
            [result] = [c async for c in handle.chunks if isinstance(c, ToolResult)]
            assert result.is_error
            assert "a broken pipe" in result.content

    run(main)


def test_a_host_answers_calls_itself() -> None:
    async def main() -> None:
        tool = ToolSpec("ask", "Ask somebody.", {"type": "object"})
        async with opened(answer(Call("ask")), answer("thanks")) as runtime:
            handle = await runtime.animate("hello", tools=[tool])
            async for chunk in handle.chunks:
                if isinstance(chunk, ToolWanted):
                    assert await handle.answer(chunk.call_id, "forty-two")
            assert (await handle.result()).output == "thanks"

    run(main)


def test_hooks_of_asyncio_are_asked() -> None:
    async def main() -> None:
        async def no_secrets(prompt: SubmittedPrompt) -> HookContinue | HookCancel:
            await asyncio.sleep(0)
            return HookCancel("a secret") if "secret" in prompt.text else HookContinue()

        async with opened(answer("fine"), hooks=[no_secrets]) as runtime:
            ended = await (await runtime.animate("a secret")).result()
            assert "a secret" in (ended.reason or "")
            assert (await (await runtime.animate("fine")).result()).output == "fine"

    run(main)


def test_who_stops_waiting_loses_nothing_and_stops_nothing() -> None:
    async def main() -> None:
        script: list[Step] = [StreamStarted(), BlockStarted(0, "text")]
        for number in range(60):
            script += [TextDelta(0, f"<{number}>"), Pause(0.005)]
        async with opened([*script, *answer("")[1:]]) as runtime:
            handle = await runtime.animate("hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(handle.result(), 0.02)
            chunks, timeouts, text = handle.chunks, 0, ""
            while True:
                try:
                    chunk = await asyncio.wait_for(anext(chunks), 0.002)
                except TimeoutError:
                    timeouts += 1
                except StopAsyncIteration:
                    break
                else:
                    text += chunk.text if isinstance(chunk, Text) else ""
            assert timeouts > 5
            assert text == "".join(f"<{number}>" for number in range(60))
            assert (await handle.result()).status is SessionStatus.COMPLETED

    run(main)


def test_a_block_that_is_cancelled_ends_its_sessions_on_record() -> None:
    async def main() -> None:
        store = MemoryStore()
        begun = asyncio.Event()

        async def host() -> None:
            async with opened(HANGING, store=store) as runtime:
                await (await runtime.animate("hello")).chunks.__anext__()
                begun.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(host())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with opened(store=store) as runtime:
            [record] = (await runtime.sessions.list_sessions()).records
            assert record.status is SessionStatus.CANCELLED

    def opened(*scripts: Script, store: MemoryStore) -> Any:
        return aio.open_runtime(
            CONFIG, provider=ScriptedProvider(*scripts), rules=(), store=store.reopen()
        )

    run(main)


def test_a_runtime_that_gives_up_cancels_its_block_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Ledger crashes again and again, which is more than supervision forgives."""

    handle, is_mad = Ledger.handle, False

    async def handle_until_mad(ledger: Ledger, message: LedgerMessage) -> None:
        if is_mad:
            raise ZeroDivisionError("the Ledger is mad")
        await handle(ledger, message)

    monkeypatch.setattr(Ledger, "handle", handle_until_mad)

    async def main() -> None:
        left_by = list[str]()

        async def host() -> None:
            nonlocal is_mad
            provider = ScriptedProvider(*[answer("x")] * 50)
            async with aio.open_runtime(
                CONFIG, provider=provider, rules=(), store=MemoryStore()
            ) as runtime:
                is_mad = True
                try:
                    while True:
                        with suppress(RuntimeStopped):
                            await runtime.animate("hello")
                        await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    left_by.append("cancellation")
                    raise

        with pytest.raises(ExceptionGroup) as group:
            await host()
        assert "RestartIntensityExceeded" in repr(group.value)
        assert left_by == ["cancellation"]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # nothing of the cancellation is left

    run(main)


class Talker:
    """A provider of asyncio. `said` counts what was taken from it; `closed` what has ended."""

    name = "talker"
    format = "anthropic"
    abort_stops_billing = True

    def __init__(self, words: int = 3, fails: bool = False, hangs: bool = False) -> None:
        self.said = self.closed = 0
        self._words = words
        self._fails = fails
        self._hangs = hangs

    @asynccontextmanager
    async def open(
        self, request: ModelRequest
    ) -> AsyncGenerator[AsyncIterator[Sequence[AnyStreamMessage]]]:
        async with asyncio.timeout(60), asyncio.TaskGroup():
            try:
                yield self._batches()
            finally:
                await asyncio.sleep(0.01)
                self.closed += 1

    async def _batches(self) -> AsyncGenerator[Sequence[AnyStreamMessage]]:
        yield [StreamStarted(), BlockStarted(0, "text")]
        for number in range(self._words):
            await asyncio.sleep(0)
            self.said += 1
            yield [TextDelta(0, f"<{number}>")]
        if self._fails:
            raise ZeroDivisionError("the provider is mad")
        if self._hangs:
            await asyncio.sleep(3600)
        yield [StreamFinished(StopReason.END_TURN, "end_turn")]

    async def aclose(self) -> None:
        await asyncio.sleep(0)


def test_a_provider_of_asyncio_is_read_in_its_loop() -> None:
    async def main() -> None:
        talker = Talker(words=200)
        async with opened(provider=aio.from_asyncio(talker)) as runtime:
            handle = await runtime.animate("hello")
            ended = await handle.result()
            assert ended.output == "".join(f"<{number}>" for number in range(200))
            assert talker.closed == 1

    run(main)


def test_a_stop_closes_a_provider_of_asyncio() -> None:
    async def main() -> None:
        talker = Talker(words=1, hangs=True)
        async with opened(provider=aio.from_asyncio(talker)) as runtime:
            handle = await runtime.animate("hello")
            async for chunk in handle.chunks:
                if isinstance(chunk, Text):
                    await handle.interrupt()
            assert (await handle.result()).status is SessionStatus.CANCELLED
            assert talker.closed == 1

    run(main)


def test_a_rule_cuts_a_provider_of_asyncio_before_it_has_read_much_further() -> None:
    async def main() -> None:
        talker = Talker(words=100_000)
        stop = Rule(
            name="stop", conditions=("<50>",), scope=(ScopeToken(Source.TEXT),), body="Stop."
        )
        async with opened(provider=aio.from_asyncio(talker), rules=[stop]) as runtime:
            handle = await runtime.animate("hello")
            async for chunk in handle.chunks:
                if isinstance(chunk, Retracted):
                    break
            # Behind the word that it cuts may lie what waits in either thread, and no more.
            assert talker.said <= 50 + READ_AHEAD + 2 * DEFAULT_MAILBOX_CAPACITY
            await handle.cancel()

    run(main)


def test_an_error_of_a_provider_of_asyncio_is_an_attempt_that_is_lost() -> None:
    async def main() -> None:
        async with opened(provider=aio.from_asyncio(Talker(fails=True))) as runtime:
            ended = await (await runtime.animate("hello")).result()
            assert ended.status is not SessionStatus.COMPLETED

    run(main)


def test_a_loop_that_is_closed_is_an_error_and_no_hang() -> None:
    provider: list[Any] = []

    async def make() -> None:
        provider.append(aio.from_asyncio(Talker()))
        await asyncio.sleep(0)

    asyncio.run(make())

    async def ask() -> None:
        with pytest.raises(LoopGone):
            async with provider[0].open(ModelRequest("m", ())):
                pass

    trio.run(ask)


# --- threads


def test_a_session_runs_in_a_program_of_threads() -> None:
    with opened_in_threads(answer("hello there")) as runtime:
        handle = runtime.animate("hello")
        with handle.chunks as chunks:
            said = [chunk.text for chunk in chunks if isinstance(chunk, Text)]
        assert "".join(said) == "hello there"
        assert handle.result(timeout_s=LIMIT_S).output == "hello there"
        assert handle.ended is not None
        assert handle.record(LIMIT_S).status is SessionStatus.COMPLETED
        assert runtime.sessions.session(handle.session_id).id == handle.session_id
    with pytest.raises(RuntimeStopped):
        runtime.animate("too late")


def test_what_waits_has_a_timeout_and_loses_nothing_by_it() -> None:
    script: list[Step] = [StreamStarted(), BlockStarted(0, "text")]
    for number in range(40):
        script += [TextDelta(0, f"<{number}>"), Pause(0.005)]
    with opened_in_threads([*script, *answer("")[1:]], HANGING) as runtime:
        handle = runtime.animate("hello")
        with pytest.raises(TimeoutError):
            handle.result(timeout_s=0.01)
        chunks, timeouts, text = handle.chunks.within(0.002), 0, ""
        while True:
            try:
                chunk = next(chunks)
            except TimeoutError:
                timeouts += 1
            except StopIteration:
                break
            else:
                text += chunk.text if isinstance(chunk, Text) else ""
        assert timeouts > 3
        assert text == "".join(f"<{number}>" for number in range(40))
        handle = runtime.animate("hang")
        with pytest.raises(TimeoutError):
            for _ in handle.chunks.within(0.2):
                pass
        handle.interrupt()
        assert handle.result(LIMIT_S).status is SessionStatus.CANCELLED


def test_many_threads_use_one_runtime() -> None:
    count = 16
    with opened_in_threads(*[answer(f"nr {n}") for n in range(count)]) as runtime:

        def ask(number: int) -> str:
            handle = runtime.animate(f"prompt {number}")
            said = [chunk.text for chunk in handle.chunks if isinstance(chunk, Text)]
            assert "".join(said) == handle.result(LIMIT_S).output
            return handle.result(LIMIT_S).output

        with ThreadPoolExecutor(8) as pool:
            outputs = list(pool.map(ask, range(count)))
        assert sorted(outputs) == sorted(f"nr {n}" for n in range(count))


def test_functions_that_are_not_async_are_tools_of_threads() -> None:
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    with opened_in_threads(answer(Call("weather", '{"city": "Kyiv"}')), answer("done")) as runtime:
        handle = runtime.animate("hello", tools=[Tool(weather)])
        [result] = [chunk for chunk in handle.chunks if isinstance(chunk, ToolResult)]
        assert result.content == "rain in Kyiv"


def test_errors_reach_the_thread_that_has_asked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"), sync.open_runtime(tmp_path / "none"):
        pass
    with opened_in_threads(HANGING) as runtime:
        handle = runtime.animate("hello")
        with pytest.raises(ConversationBusy):
            runtime.animate("more", conversation_id=handle.conversation_id)


def test_an_error_in_the_block_is_raised_and_leaves_no_thread_behind() -> None:
    before = threading.active_count()

    def host() -> None:
        with opened_in_threads(HANGING) as runtime:
            runtime.animate("hello")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        host()
    names = [thread.name for thread in threading.enumerate()]
    assert "midstream" not in names
    assert threading.active_count() <= before + 5  # trio keeps idle worker threads for a while


def test_ctrl_c_ends_a_wait_and_then_the_program() -> None:
    def host() -> None:
        with opened_in_threads(HANGING) as runtime:
            handle = runtime.animate("hello")
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            try:
                handle.result()
            finally:
                timer.join()
                ended.append(handle)

    ended: list[sync.Handle] = []
    with pytest.raises(KeyboardInterrupt):
        host()
    outcome = ended[0].ended
    assert outcome is not None
    assert outcome.status is SessionStatus.CANCELLED


FOR_DOORS = {
    *{"announce", "enter", "leave", "put_on_record"},
    *{"replay", "state_document", "stop_message_book"},
}
"""Calls of a runtime that are made by doors, which run beside it on trio."""

FOR_DOORS_OF_BOOKS = {"apply", "report", "refusal", "is_dispatchable"}


@pytest.mark.parametrize("flavour", [aio, sync], ids=["asyncio", "threads"])
def test_the_calls_are_those_of_a_runtime_on_trio(flavour: Any) -> None:
    def calls(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert calls(Runtime) - calls(flavour.Runtime) == FOR_DOORS
    assert calls(SessionHandle) == calls(flavour.Handle)
    assert calls(SessionBook) - calls(flavour.Sessions) == FOR_DOORS_OF_BOOKS

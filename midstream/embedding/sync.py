"""A runtime in a program of plain threads. The calls are those of `midstream.open_runtime`.

    from midstream.embedding import sync

    with sync.open_runtime() as runtime:
        handle = runtime.animate("Write a haiku about actors")
        for chunk in handle.chunks:
            print(chunk)
        print(handle.result())

The runtime itself runs on trio, in a thread of its own. Any thread may use it and its handles;
one iterator belongs to one thread. What waits takes a `timeout_s`, and raises `TimeoutError`
when that has passed; then nothing was lost, and one may wait again. Functions that are not
async run in worker threads; async ones run in the thread of trio, and are functions of trio.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

import trio

from midstream import runtime as trio_runtime
from midstream import websocket as trio_websocket
from midstream.assembly import RuleBook
from midstream.config import Config, WebsocketConfig
from midstream.embedding.crossing import BlockingPortal, Call, Hosted, trio_thread
from midstream.embedding.options import (
    AnimateOptions,
    Prompt,
    RecoverOptions,
    RuntimeOptions,
    SummonOptions,
)
from midstream.embedding.streams import Fetched
from midstream.embedding.sync_handle import Handle, Stream
from midstream.embedding.sync_sessions import Sessions
from midstream.handle import Chunk, SessionHandle
from midstream.messages.dispatch import DispatchStatus
from midstream.messages.notices import Notice
from midstream.messages.record import SessionRecord
from midstream.messages.rule_counters import RuleCounters
from midstream.messages.session_cost import SessionCost
from midstream.rules.rule import Rule

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Runtime:
    """A running runtime; see `midstream.Runtime`. Made by `open_runtime`.

    When it gives up by itself, whatever waits raises `RuntimeStopped`, and the end of the block
    raises why.
    """

    def __init__(self, portal: BlockingPortal, runtime: trio_runtime.Runtime) -> None:
        self.config = runtime.config
        self.sessions = Sessions(portal, runtime)
        self.portal = portal
        """The way into the thread of trio, for programs that know their way there."""
        self.in_trio = runtime
        """The runtime itself; it belongs to that thread."""

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

    def animate(self, prompt: Prompt, **options: Unpack[AnimateOptions]) -> Handle:
        """Hand in a prompt; the session that answers it runs on by itself."""
        return self._begin(partial(self.in_trio.animate, prompt, **options))

    def summon(self, prompt: Prompt, **options: Unpack[SummonOptions]) -> Handle:
        """`animate` as a role."""
        return self._begin(partial(self.in_trio.summon, prompt, **options))

    def recover(self, session_id: str, **options: Unpack[RecoverOptions]) -> Handle:
        """Go on with a session whose host was lost, where its record stops."""
        handle = self._call(partial(self.in_trio.recover, session_id, **options))
        return Handle(self.portal, handle)

    def handle(self, session_id: str) -> Handle | None:
        """The session, if it runs in this runtime."""
        handle = self._call(_soon, partial(self.in_trio.handle, session_id))
        return None if handle is None else Handle(self.portal, handle)

    def follow(self, session_id: str) -> Stream[Chunk] | None:
        """What the model has said and says in a session of this runtime; None if it is not
        known here, or ended more than half a minute ago."""
        stream = self._call(self.in_trio.follow, session_id)
        if stream is None:
            return None
        return Stream(self.portal, Fetched(stream.take, stream.aclose))

    def notices(self, after: int = 0) -> Stream[Notice]:
        """What becomes known of the sessions that this runtime writes. Ends with it."""
        notices = self._call(self.in_trio.notices, after)

        async def take() -> Sequence[Notice]:
            notice = await anext(notices, None)
            return () if notice is None else (notice,)

        return Stream(self.portal, Fetched(take, partial(_soon, notices.close)))

    def cancel(self, session_id: str, reason: str | None = None) -> SessionRecord:
        """End a session as cancelled, whichever process it lives in; its record then."""
        return self._call(self.in_trio.cancel, session_id, reason)

    def session_costs(self, session_ids: Iterable[str]) -> dict[str, SessionCost]:
        """What these sessions have cost, by id."""
        return self._call(self.in_trio.session_costs, tuple(session_ids))

    def status(self) -> DispatchStatus:
        """The shared pause: whether, since when, until when and why nothing may begin."""
        return self._call(self.in_trio.status)

    def is_dispatchable(self) -> bool:
        """Whether a session may begin now, as far as this host knows."""
        return self._call(_soon, self.in_trio.is_dispatchable)

    def reload_rules(self, rules: Iterable[Rule] | None = None) -> RuleBook:
        """Read the rules again, or take these instead."""
        return self._call(self.in_trio.reload_rules, rules)

    def rule_counters(self) -> RuleCounters:
        """What the rules have done in all sessions of this runtime so far."""
        return self._call(self.in_trio.rule_counters)

    def complete_path(self, typed: str) -> tuple[str, ...]:
        """What may be meant by the beginning of a reference to a file."""
        return self._call(self.in_trio.complete_path, typed)

    def stop_message(self, conversation_id: str) -> dict[str, Any] | None:
        """What the conversation is continued with; None if nothing is set."""
        return self._call(self.in_trio.stop_message, conversation_id)

    def _begin(self, begin: Callable[[], SessionHandle]) -> Handle:
        return Handle(self.portal, self._call(_soon, begin))

    def _call(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        return Call(self.portal, function, *args).in_thread()


@contextmanager
def open_runtime(
    config: Config | Path | str | None = None, **options: Unpack[RuntimeOptions]
) -> Generator[Runtime]:
    """Run a runtime for as long as the block lasts; see `midstream.open_runtime`.

    `on_lifecycle` is called in the thread of trio.
    """
    with trio_thread() as portal:
        hosted = Hosted(portal, trio_runtime.open_runtime(config, **options))
        with _stay_in(hosted) as runtime:
            yield Runtime(portal, runtime)


@contextmanager
def open_websocket(
    runtime: Runtime, config: WebsocketConfig | None = None, *, token: str | None = None
) -> Generator[tuple[str, ...]]:
    """Open the websocket door of a runtime for as long as the block lasts; its URLs. See
    `midstream.open_websocket`."""
    opening = trio_websocket.open_websocket(runtime.in_trio, config, token=token)
    with _stay_in(Hosted(runtime.portal, opening)) as door:
        yield door.urls


@contextmanager
def _stay_in(hosted: Hosted[T]) -> Generator[T]:
    value = hosted.enter_in_thread()
    try:
        yield value
    finally:
        hosted.leave()
        hosted.call.in_thread()


async def _soon(function: Callable[[], T]) -> T:
    """A function that does not wait, called in the thread of trio."""
    await trio.lowlevel.checkpoint()
    return function()

"""Who keeps the books of a runtime: Ledger, Announcer and BackoffMachine, as one group.

A runtime is this group with a Heartbeat and sessions. A program that only wants to look at
sessions, or to cancel one, opens the group alone with `open_session_book`.
"""

from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random  # noqa: TID251 - the one instance of a program that only looks

from midstream.actors.announcer import Announce, Announcer, AnnouncerMessage, Continue
from midstream.actors.backoff_machine import BackoffMachine, BackoffMessage, DispatchView
from midstream.actors.clock import Clock, SystemClock
from midstream.actors.dispatch_gate import DispatchGate
from midstream.actors.event_backlog import EventBacklog
from midstream.actors.event_numbers import EventNumbers
from midstream.actors.event_recorder import MAILBOX_CAPACITY, EventRecorder, RecorderMessage
from midstream.actors.heartbeat import Heartbeat, Unused
from midstream.actors.ledger import Ledger
from midstream.actors.ledger_messages import LedgerMessage
from midstream.actors.live_sessions import LiveSessions
from midstream.actors.replay import Replay
from midstream.actors.state_document import StateDocument
from midstream.actors.subscription import DEFAULT_LIMIT_BYTES
from midstream.assembly import build_dead_letters, build_store
from midstream.config import Config
from midstream.messages.backoff import BackoffSettings
from midstream.messages.enrolment import Enrolment
from midstream.messages.errors import ConfigError
from midstream.messages.event_log import Position
from midstream.messages.events import Retracted
from midstream.providers.cancel_handle import CancelsByHandle
from midstream.session_book import SessionBook
from midstream.stores.dlq import DeadLetterQueue
from midstream.stores.event_log import read_tail, unsettled_attempt
from midstream.stores.store import Store
from midstream.supervisors.child_spec import ActorSpec, ChildSpec, Surroundings
from midstream.supervisors.restart import Intensity
from midstream.supervisors.supervisor import Supervisor, open_supervisor

RUNTIME_INTENSITY = Intensity(max_restarts=5, within_s=10.0)
"""Crashes of the actors of a runtime that it survives."""


class Books:
    """The group, to be put into a tree: `specs` in the order in which they start."""

    def __init__(
        self, store: Store, queue: DeadLetterQueue, clock: Clock, settings: BackoffSettings
    ) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._settings = settings
        self._view = DispatchView()
        self.live = LiveSessions()
        self.ledger: ActorSpec[LedgerMessage] = ActorSpec(
            "ledger",
            lambda: Ledger(store, clock, queue, self.announcer.address, self.machine.address),
        )
        self._backlog = backlog = EventBacklog()
        numbers = EventNumbers()
        self.recorder: ActorSpec[RecorderMessage] = ActorSpec(
            "event_recorder",
            lambda: EventRecorder(self.ledger.address, backlog),
            mailbox_capacity=MAILBOX_CAPACITY,
        )
        self.announcer: ActorSpec[AnnouncerMessage] = ActorSpec(
            "announcer", lambda: Announcer(self.recorder.address, numbers)
        )
        self.machine: ActorSpec[BackoffMessage] = ActorSpec(
            "backoff_machine",
            lambda: BackoffMachine(store, self.ledger.address, clock, settings, self._view),
        )

    @property
    def specs(self) -> list[ChildSpec]:
        return [self.ledger, self.recorder, self.announcer, self.machine]

    def heartbeat(self) -> ActorSpec[Unused]:
        """The Heartbeat, for a host that has sessions."""
        ledger, machine = self.ledger.address, self.machine.address
        return ActorSpec(
            "heartbeat",
            lambda: Heartbeat(self._store, ledger, machine, self._clock, self.live),
        )

    def gate(self, enrolment: Enrolment) -> DispatchGate:
        """What a session of this host has to pass before each request to its provider."""
        session_id, started_at = enrolment.session_id, enrolment.started_at
        machine = self.machine.address
        return DispatchGate(session_id, started_at, self._view, machine, self._clock)

    def state_document(self, id: str) -> StateDocument:
        """A document of the state book."""
        return StateDocument(self._store, self.ledger.address, id)

    def replay(
        self,
        session_id: str,
        after: int = 0,
        epoch: int | None = None,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> Replay:
        """The events of a session behind a place, live or from the log."""
        announcer = self.announcer.address
        return Replay(
            announcer,
            self._store,
            session_id,
            after,
            epoch,
            limit_bytes,
            unwritten=self._backlog,
        )

    async def continue_events(self, session_id: str, epoch: int) -> None:
        """Number the events of a session that this host has taken over behind those that
        its log holds, and take back what the lost host had shown of an attempt. Raises
        `StoreError`."""
        last = (await read_tail(self._store, session_id)).last
        attempt = await unsettled_attempt(self._store, session_id)
        position = Position(epoch, last.last if last is not None else 0)
        await self.announcer.address.tell(Continue(session_id, position))
        if attempt is not None:
            lost = Retracted(attempt, "its host was lost")
            await self.announcer.address.tell(Announce(session_id, (lost,)))

    def session_book(self, stoppers: Iterable[CancelsByHandle] = ()) -> SessionBook:
        """The book of sessions, to be used while the group runs."""
        return SessionBook(
            store=self._store,
            queue=self._queue,
            ledger=self.ledger.address,
            machine=self.machine.address,
            view=self._view,
            live=self.live,
            clock=self._clock,
            settings=self._settings,
            stoppers=stoppers,
        )


@asynccontextmanager
async def open_session_book(
    config: Config,
    cwd: Path,
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    stoppers: Iterable[CancelsByHandle] = (),
) -> AsyncGenerator[SessionBook]:
    """Open the book of the sessions of any runtime with this configuration, living or not.

    Starts no sessions, beats for none and looks for no dead. Raises `ConfigError` if there
    is no store yet, and `StoreError` if it cannot be opened.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        if store is None:
            require_store(config, cwd)
            store = await stack.enter_async_context(await build_store(config.store, cwd))
        queue = build_dead_letters(config.store, cwd, store)
        books = Books(store, queue, clock, config.rate_limit.backoff)
        tree = Supervisor("books", books.specs, intensity=RUNTIME_INTENSITY)
        await stack.enter_async_context(open_supervisor(tree, Surroundings(Random())))
        yield books.session_book(stoppers)


def require_store(config: Config, cwd: Path) -> None:
    """Raises `ConfigError` if the store of this configuration was never written."""
    path = cwd / config.store.path
    if config.store.path != ":memory:" and not path.exists():
        problem = f"there is no store at {path}, so there are no sessions"
        mend = "run a session first, go to the directory where one was run, or pass --config"
        raise ConfigError("configuration", "store.path", problem, mend)

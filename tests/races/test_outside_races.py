"""Sessions outside, which report about themselves, against cancel, silence and hosts that go.

Nobody here owns such a session: whatever reaches a host last, of what it says, what others
decide, and its silence, its end is on record once and told once, no report that was taken is
lost, and a mark of death is taken back by whoever lives (invariants 4, 8, 10 and 12;
spec/animator.md B6 to B9).
"""

import math
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from hosts import configuration
from scenes import a_host
from test_host_races import GONE, SHORT, seldom_looks

from midstream.actors.funnel import LATE_NEWS_MS
from midstream.messages.errors import MidstreamError, StoreError
from midstream.messages.notices import Ended
from midstream.messages.record import SessionStatus
from midstream.messages.session_reports import (
    AnyReport,
    HeartbeatReport,
    RecordReport,
    ReportAnswer,
    ReportedStatus,
    RunningReport,
)
from midstream.messages.timestamps import format_timestamp, parse_timestamp
from midstream.providers.scripted import ScriptedProvider
from midstream.runtime import Runtime
from midstream.stores.store import Operation, Receipt
from midstream.testing.faults import FaultyStore, JumpingClock
from midstream.testing.invariants import InvariantBroken
from midstream.testing.race import Race

BEAT_EVERY_S = 30.0
AGAIN_S = 5.0
"""Seconds at most until a report that was not taken is sent again."""

KEPT_S = 36.0
"""Seconds after which a host has kept what it was told, also if its store was away."""

JUDGED_S = 260.0
"""Seconds behind all reports in which a host finds who is silent, and tells what is untold."""

SILENT = "no heartbeat"
"""How the error of a presumed end begins."""

MOOD = "mood"
MOODS = ("well", "well", "lost", "refused", "slow")


class Moody(FaultyStore):
    """In one run of two its connection is bad as well: of what it is given, more is lost, or is
    done and not answered, or takes its time."""

    is_moody = False

    def reopen(self) -> FaultyStore:
        again = Moody(self._contents)
        again.is_moody = self.is_moody
        return again

    async def commit(
        self, operations: Sequence[Operation], *, key: str | None = None, durable: bool = True
    ) -> Receipt:
        choices = self.choices if self.is_moody else None
        mood = choices.one_of(MOOD, MOODS) if choices is not None else "well"
        if mood == "slow":
            await trio.sleep(0.5)
        if mood == "refused":
            raise StoreError("injected: the connection is bad")
        receipt = await super().commit(operations, key=key, durable=durable)
        if mood == "lost":
            raise StoreError("injected: the connection is bad, and it was committed")
        return receipt


class Guild:
    """The hosts that are up."""

    def __init__(self) -> None:
        self.up: list[Runtime] = []
        self.goes = trio.Event()
        """Set, and replaced, when one of them is about to go."""
        self.killed_at: dict[Runtime, float] = {}

    def announce_departure(self) -> None:
        self.goes.set()
        self.goes = trio.Event()


class Outside:
    """A session outside, with the process that watches over it and reports."""

    def __init__(self, race: Race, number: int, clock: JumpingClock, guild: Guild) -> None:
        self.id = f"out-{number}"
        self.ended: RecordReport | None = None
        """Its own end, once it was taken."""
        self.answer: ReportAnswer | None = None
        """What was answered to that."""
        self._asked: list[tuple[Runtime, float]] = []
        self._race = race
        self._clock = clock
        self._guild = guild

    async def live(self) -> None:
        """From its beginning to its end, or until it is killed."""
        race = self._race
        await trio.sleep(race.seconds(20.0))
        started_at = format_timestamp(self._clock.now_ms())
        running = RunningReport(session_id=self.id, started_at=started_at, provider="outside")
        answer = await self._tell(running) if race.pick(4) else None
        for _ in range(race.pick(5)):
            await trio.sleep(race.one_of((BEAT_EVERY_S, BEAT_EVERY_S, 100.0)))
            answer = await self._say(HeartbeatReport(session_id=self.id))
            if self._is_told_to_stop(answer):
                break
        if race.pick(4) == 3:
            race.note(self.id, "!! is killed, with who watches over it")
            return
        status = race.one_of((*ReportedStatus, *[ReportedStatus.RATE_LIMITED] * 3))
        if self._is_told_to_stop(answer):
            status = ReportedStatus.CANCELLED
        if race.pick(2):
            with trio.move_on_after(100.0):
                await self._guild.goes.wait()
        report = RecordReport(session_id=self.id, status=status, exit_code=0)
        self.answer, self.ended = await self._tell(report), report
        if race.pick(3) == 2:
            await trio.sleep(race.seconds(AGAIN_S))
            again = await self._tell(report)
            if again.status is not self.answer.status:
                raise InvariantBroken(4, f"{self.answer} was answered, then {again}")

    async def _tell(self, report: AnyReport) -> ReportAnswer:
        """Until somebody has taken it."""
        while True:
            answer = await self._say(report)
            if answer is not None and answer.ok:
                return answer
            await trio.sleep(self._race.seconds(AGAIN_S) + 0.1)

    async def _say(self, report: AnyReport) -> ReportAnswer | None:
        """Once; None if nobody is there."""
        if not self._guild.up:
            return None
        host = self._race.one_of(tuple(self._guild.up))
        answer = await host.sessions.report(report)
        self._asked.append((host, trio.current_time()))
        self._race.note(self.id, f"{type(report).__name__} is answered {answer}")
        return answer

    def was_with_the_dead(self, tellers: Sequence[tuple[Runtime, float]]) -> bool:
        """Whether a host that it has told something, or that has told of it, was killed before
        long. What that had not kept yet, such as a pause, is gone."""
        killed_at = self._guild.killed_at
        knew = (*self._asked, *tellers)
        return any(killed_at.get(host, math.inf) < at_s + KEPT_S for host, at_s in knew)

    @staticmethod
    def _is_told_to_stop(answer: ReportAnswer | None) -> bool:
        status = answer.status if answer is not None else None
        return status is not None and status.is_terminal


class Ends:
    """What the hosts of a run have made known of ends: real ones, and presumed ones, which may
    be taken back."""

    def __init__(self) -> None:
        self.real: Counter[str] = Counter()
        self.presumed: Counter[str] = Counter()
        self.told_ms: dict[str, int] = {}
        """When the real ones were told first."""
        self.tellers: dict[str, list[tuple[Runtime, float]]] = defaultdict(list)
        """Who has told them, and when."""
        self.may_be_repeated = False
        """Whether somebody who told of an end may not have come to keep that."""

    async def follow(self, runtime: Runtime) -> None:
        """To the end of the host."""
        async for each in await runtime.notices():
            if isinstance(notice := each.notice, Ended):
                name, is_presumed = notice.session_id, (notice.error or "").startswith(SILENT)
                (self.presumed if is_presumed else self.real)[name] += 1
                if not is_presumed:
                    self.tellers[name].append((runtime, trio.current_time()))
                    self.told_ms.setdefault(name, runtime.clock.now_ms())

    def is_news(self, race: Race, session_id: str) -> bool:
        """Whether the end was told in time for what it says of the quota."""
        ended_ms = parse_timestamp(race.records[session_id].ended_at) or 0
        return self.told_ms[session_id] - ended_ms <= LATE_NEWS_MS

    def check(self, race: Race, session_id: str) -> None:
        """An end that stands was told, and a real one was told once."""
        record = race.records.get(session_id)
        if record is None or not record.is_terminal:
            told = not self.real[session_id]
        elif record.presumed_dead:
            told = bool(self.presumed[session_id]) and not self.real[session_id]
        else:
            may_be_repeated = self.may_be_repeated or "ledger" in race.faults.crashing
            real, presumed = self.real[session_id], self.presumed[session_id]
            told = real == 1 or bool(real and may_be_repeated)
            # It has failed, as everybody was told when that was presumed.
            told = told or bool(presumed and record.status is SessionStatus.FAILED)
        if not told:
            times = f"{self.real[session_id]} and {self.presumed[session_id]} times"
            raise InvariantBroken(4, f"told {times}, and on record is {record}")


@pytest.mark.races(seeds=500)
async def test_sessions_outside_against_cancel_silence_and_hosts_that_go(race: Race) -> None:
    with seldom_looks():
        await report_to_hosts(race)


@pytest.mark.races(seeds=500, store=True, crashing=("ledger", "heartbeat"), most_crashes=2)
async def test_sessions_outside_while_everything_goes_wrong(race: Race) -> None:
    with seldom_looks():
        await report_to_hosts(race)


async def report_to_hosts(race: Race) -> None:
    store, clock, config = Moody(), race.clock(), configuration(**SHORT)
    store.is_moody = race.faults.store and bool(race.pick(2))
    race.entrust(store)
    guild, ends, stays, done = Guild(), Ends(), trio.Event(), trio.Event()
    outside = [Outside(race, number, clock, guild) for number in range(3)]
    last = store.reopen()

    @asynccontextmanager
    async def is_up(view: FaultyStore, number: int) -> AsyncGenerator[Runtime]:
        async with (
            trio.open_nursery() as nursery,
            a_host(race, view, ScriptedProvider(), clock, number, config) as runtime,
        ):
            nursery.start_soon(ends.follow, runtime)
            guild.up.append(runtime)
            yield runtime
            guild.up.remove(runtime)

    async def come_and_go(first: int) -> None:
        for number in (first, first + 1):
            view = store.reopen()
            async with is_up(view, number) as runtime:
                beats = BEAT_EVERY_S * (1 + race.pick(4))
                await trio.sleep(race.one_of((40.0 + race.seconds(100.0), beats)))
                guild.announce_departure()
                await trio.sleep(race.seconds(1.0))
                if race.pick(4) == 3:
                    race.note(f"host {number}", "!! is killed")
                    ends.may_be_repeated = True
                    guild.killed_at[runtime] = trio.current_time()
                    view.failure = GONE
            await trio.sleep(race.one_of((0.0, 0.0, race.seconds(120.0))))

    async def stay() -> None:
        await trio.sleep(300.0)
        async with is_up(last, 5):
            stays.set()
            await done.wait()

    async def cancel() -> None:
        await trio.sleep(race.seconds(200.0))
        if not guild.up:
            return
        try:
            await race.one_of(tuple(guild.up)).cancel(race.one_of(outside).id, "from elsewhere")
        except MidstreamError as error:
            race.note("cancel", f"refused: {error}")

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as busy:
            busy.start_soon(come_and_go, 1)
            busy.start_soon(come_and_go, 3)
            busy.start_soon(cancel)
            busy.start_soon(cancel)
            for each in outside:
                busy.start_soon(each.live)
            nursery.start_soon(stay)
        await stays.wait()
        last.choices = None
        await trio.sleep(JUDGED_S)
        done.set()
    for each in outside:
        ends.check(race, each.id)
        check_end(race, each, ends)


def check_end(race: Race, session: Outside, ends: Ends) -> None:
    """What it has said of its end is on record, or somebody was faster; else it was found."""
    record, own, answer = race.records.get(session.id), session.ended, session.answer
    if own is None or answer is None:
        if record is not None and not record.is_terminal:
            raise InvariantBroken(12, f"{session.id} is {record.status}, and silent")
        return
    if record is None or record.presumed_dead or record.status is not answer.status:
        raise InvariantBroken(4, f"{answer} was answered, and on record is {record}")
    if record.status not in (own.status.value, SessionStatus.CANCELLED):
        raise InvariantBroken(4, f"{session.id} has said {own.status}, and is {record.status}")
    # A spent quota is true whoever has ended the session first (14.7).
    was_first = record.status is SessionStatus.RATE_LIMITED
    is_heard = ends.is_news(race, session.id) if was_first else not race.faults.store
    is_spent = own.status is ReportedStatus.RATE_LIMITED
    if session.was_with_the_dead(ends.tellers[session.id]):
        return
    if is_spent and is_heard and session.id not in race.pause.blamed:
        raise InvariantBroken(8, f"{session.id} has no quota left, and nobody pauses")

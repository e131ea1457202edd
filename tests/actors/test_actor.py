"""What an actor may rely on, and what those who send to it may rely on."""

from collections.abc import Callable

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from midstream.actors.actor import Actor
from midstream.actors.dead_letters import DeadLetters
from midstream.actors.errors import MailboxFull
from midstream.actors.open_actor import open_actor
from midstream.messages.lifecycle import (
    AnyExit,
    Crashed,
    DeadLetter,
    EndedNormally,
    LetterReason,
    ShutDown,
)


class Note(msgspec.Struct, frozen=True):
    text: str


class Work(msgspec.Struct, frozen=True):
    takes_s: float


class Fail(msgspec.Struct, frozen=True):
    error: str = "as told"


class End(msgspec.Struct, frozen=True):
    pass


Mail = Note | Work | Fail | End


class Scribe(Actor[Mail]):
    """Writes down what happens to it."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.reasons: list[AnyExit] = []

    async def started(self) -> None:
        self.log.append("started")

    async def handle(self, message: Mail) -> None:
        match message:
            case Note(text):
                self.log.append(text)
            case Work(takes_s):
                self.log.append("work")
                await trio.sleep(takes_s)
                self.log.append("worked")
            case Fail(error):
                raise ValueError(error)
            case End():
                self.end()

    async def stopped(self, reason: AnyExit) -> None:
        self.log.append("stopped")
        self.reasons.append(reason)


class BatchScribe(Actor[Mail]):
    def __init__(self) -> None:
        self.batches: list[tuple[Mail, ...]] = []

    async def handle_batch(self, messages: tuple[Mail, ...]) -> None:
        self.batches.append(messages)
        for message in messages:
            if isinstance(message, Fail):
                raise ValueError(message.error)


def letters_of(letters: DeadLetters) -> list[tuple[object, LetterReason]]:
    return [(letter.message, letter.reason) for letter in letters.recent()]


async def test_started_runs_before_the_first_message_and_stopped_after_the_last() -> None:
    scribe = Scribe()
    async with open_actor(scribe) as address:
        await address.tell(Note("one"))
        await wait_all_tasks_blocked()
    assert scribe.log == ["started", "one", "stopped"]
    assert scribe.reasons == [ShutDown()]


async def test_messages_are_handled_one_at_a_time_in_the_order_of_their_arrival(
    autojump_clock: MockClock,
) -> None:
    scribe = Scribe()
    async with open_actor(scribe) as address:
        await address.tell(Work(1))
        await address.tell(Note("next"))
        await trio.sleep(2)
    assert scribe.log == ["started", "work", "worked", "next", "stopped"]


async def test_tell_waits_while_the_mailbox_is_full(autojump_clock: MockClock) -> None:
    async with open_actor(Scribe(), mailbox_capacity=1) as address:
        await address.tell(Work(10))
        await wait_all_tasks_blocked()
        await address.tell(Note("fits"))
        began = trio.current_time()
        await address.tell(Note("waits"))
        assert trio.current_time() - began == pytest.approx(10)


async def test_a_tell_that_is_cancelled_has_sent_nothing(autojump_clock: MockClock) -> None:
    scribe = Scribe()
    async with open_actor(scribe, mailbox_capacity=1) as address:
        await address.tell(Work(10))
        await wait_all_tasks_blocked()
        await address.tell(Note("fits"))
        with trio.move_on_after(5) as scope:
            await address.tell(Note("never sent"))
        assert scope.cancelled_caught
        await trio.sleep(60)
    assert scribe.log == ["started", "work", "worked", "fits", "stopped"]


async def test_tell_nowait_raises_mailbox_full_and_sends_nothing(
    autojump_clock: MockClock,
) -> None:
    scribe = Scribe()
    async with open_actor(scribe, mailbox_capacity=2) as address:
        await address.tell(Work(1))
        await wait_all_tasks_blocked()
        address.tell_nowait(Note("one"))
        address.tell_nowait(Note("two"))
        with pytest.raises(MailboxFull, match=r"the mailbox of actor is full \(2 messages\)"):
            address.tell_nowait(Note("three"))
        await trio.sleep(2)
    assert scribe.log == ["started", "work", "worked", "one", "two", "stopped"]


async def test_a_burst_comes_as_one_batch() -> None:
    scribe = BatchScribe()
    async with open_actor(scribe) as address:
        for n in range(5):
            address.tell_nowait(Note(str(n)))
        await wait_all_tasks_blocked()
    assert scribe.batches == [tuple(Note(str(n)) for n in range(5))]


async def test_a_batch_is_never_larger_than_the_mailbox_and_keeps_the_order() -> None:
    scribe = BatchScribe()
    async with open_actor(scribe, mailbox_capacity=3) as address, trio.open_nursery() as nursery:
        for n in range(20):
            try:
                address.tell_nowait(Note(str(n)))
            except MailboxFull:
                nursery.start_soon(address.tell, Note("waited"))
        await wait_all_tasks_blocked()
    assert [len(batch) for batch in scribe.batches] == [3, 3, 3, 3, 3, 3, 2]
    told = [message for batch in scribe.batches for message in batch]
    assert told == [Note("0"), Note("1"), Note("2"), Note("3")] + [Note("waited")] * 16


async def test_a_crash_in_handle_sends_the_message_to_the_dead_letters_with_the_traceback() -> None:
    letters = DeadLetters()
    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="as told"), flatten_subgroups=True):
        async with open_actor(Scribe(), who="scribe", dead_letters=letters) as address:
            await address.tell(Note("fine"))
            await address.tell(Fail())
            await trio.sleep_forever()
    (letter,) = letters.recent()
    assert letter == DeadLetter(
        who="scribe",
        number=1,
        incarnation=1,
        message=Fail(),
        reason=LetterReason.CRASHED,
        error="ValueError: as told",
        traceback=letter.traceback,
    )
    assert "raise ValueError(error)\nValueError: as told" in letter.traceback


async def test_a_crash_in_handle_batch_sends_the_whole_batch_and_no_more_to_the_dead_letters() -> (
    None
):
    letters = DeadLetters()
    with pytest.RaisesGroup(ValueError, flatten_subgroups=True):
        async with (
            open_actor(BatchScribe(), mailbox_capacity=3, dead_letters=letters) as address,
            trio.open_nursery() as nursery,
        ):
            for message in (Note("in hand"), Fail(), Note("in hand too"), Note("unread")):
                nursery.start_soon(address.tell, message)
                await wait_all_tasks_blocked()
            await trio.sleep_forever()
    assert set(letters_of(letters)) >= {(Fail(), LetterReason.CRASHED)}


async def test_a_crash_gives_stopped_its_report() -> None:
    scribe = Scribe()
    with pytest.RaisesGroup(ValueError, flatten_subgroups=True):
        async with open_actor(scribe) as address:
            await address.tell(Fail("boom"))
            await trio.sleep_forever()
    (reason,) = scribe.reasons
    assert isinstance(reason, Crashed)
    assert reason.error == "ValueError: boom"


async def test_a_crash_tells_what_it_has_lost_before_it_cleans_up() -> None:
    class Loser(BatchScribe):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[object] = []

        def lost(self, messages: tuple[Mail, ...]) -> None:
            self.told.append(messages)

        async def stopped(self, reason: AnyExit) -> None:
            self.told.append("stopped")

    loser = Loser()
    with pytest.RaisesGroup(ValueError, flatten_subgroups=True):
        async with open_actor(loser) as address:
            for message in (Fail(), Note("in hand")):
                address.tell_nowait(message)
            await trio.sleep_forever()
    assert loser.told == [(Fail(), Note("in hand")), "stopped"]


async def test_end_finishes_what_is_in_hand_and_reads_no_more() -> None:
    scribe, letters = Scribe(), DeadLetters()
    async with open_actor(scribe, dead_letters=letters) as address:
        await address.tell(End())
        address.tell_nowait(Note("unread"))
        await wait_all_tasks_blocked()
        assert scribe.log == ["started", "stopped"]
    assert scribe.reasons == [EndedNormally()]
    assert letters_of(letters) == [(Note("unread"), LetterReason.UNREAD)]


class DrainingScribe(Scribe):
    drains = True


class DrainingBatchScribe(BatchScribe):
    drains = True


@pytest.mark.parametrize("scribe", [DrainingScribe(), DrainingBatchScribe()])
async def test_an_actor_that_drains_handles_what_waits_before_it_is_stopped_for_good(
    scribe: DrainingScribe | DrainingBatchScribe, autojump_clock: MockClock
) -> None:
    letters = DeadLetters()
    async with open_actor(scribe, dead_letters=letters) as address:
        await address.tell(Work(3.0))
        await wait_all_tasks_blocked()
        for text in ("one", "two"):
            address.tell_nowait(Note(text))
    assert letters_of(letters) == []
    if isinstance(scribe, BatchScribe):
        assert scribe.batches == [(Work(3.0),), (Note("one"), Note("two"))]
    else:
        assert scribe.log == ["started", "work", "worked", "one", "two", "stopped"]
        assert scribe.reasons == [ShutDown()]


async def test_an_actor_that_drains_and_ends_by_itself_reads_no_more() -> None:
    scribe, letters = DrainingScribe(), DeadLetters()
    async with open_actor(scribe, dead_letters=letters) as address:
        address.tell_nowait(End())
        address.tell_nowait(Note("unread"))
        await wait_all_tasks_blocked()
    assert scribe.reasons == [EndedNormally()]
    assert letters_of(letters) == [(Note("unread"), LetterReason.UNREAD)]


async def test_end_from_a_spawned_task_wakes_an_idle_actor(autojump_clock: MockClock) -> None:
    class Sleeper(Scribe):
        async def started(self) -> None:
            self.spawn(self.end_later)

        async def end_later(self) -> None:
            await trio.sleep(3)
            self.end()

    sleeper = Sleeper()
    async with open_actor(sleeper):
        await trio.sleep(2.9)
        assert sleeper.log == []
        await trio.sleep(0.2)
        assert sleeper.reasons == [EndedNormally()]


async def test_mail_to_an_actor_that_has_ended_is_a_dead_letter_and_no_error() -> None:
    letters = DeadLetters()
    async with open_actor(Scribe(), dead_letters=letters) as address:
        pass
    await address.tell(Note("late"))
    address.tell_nowait(Note("later"))
    assert letters_of(letters) == [
        (Note("late"), LetterReason.ENDED),
        (Note("later"), LetterReason.ENDED),
    ]


async def test_whoever_waits_for_room_is_released_when_the_actor_ends(
    autojump_clock: MockClock,
) -> None:
    letters = DeadLetters()
    async with open_actor(Scribe(), mailbox_capacity=1, dead_letters=letters) as address:
        await address.tell(Work(1))
        await wait_all_tasks_blocked()
        address.tell_nowait(End())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(address.tell, Note("first to wait"))
            await wait_all_tasks_blocked()
            nursery.start_soon(address.tell, Note("second to wait"))
            await wait_all_tasks_blocked()
            assert address.statistics().senders_waiting == 2
    assert letters_of(letters) == [
        (Note("first to wait"), LetterReason.UNREAD),
        (Note("second to wait"), LetterReason.UNREAD),
    ]


async def test_the_end_can_be_awaited(autojump_clock: MockClock) -> None:
    async with open_actor(Scribe()) as address:
        await address.tell(Work(1))
        await address.tell(End())
        assert await address.wait_ended() == EndedNormally()
    assert trio.current_time() == pytest.approx(1)


class Spawner(Actor[Mail]):
    """Spawns what it is given, and writes down what becomes of it."""

    def __init__(self, *tasks: "Callable[[Spawner], object]") -> None:
        self.log: list[str] = []
        self._tasks = tasks

    async def started(self) -> None:
        for task in self._tasks:
            task(self)

    async def forever(self, name: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.log.append(f"{name} over")

    async def fail_in(self, delay_s: float) -> None:
        await trio.sleep(delay_s)
        raise KeyError("spawned")

    async def handle(self, message: Mail) -> None:
        await trio.sleep_forever()

    async def stopped(self, reason: AnyExit) -> None:
        self.log.append(f"stopped {type(reason).__name__}")


async def test_spawned_tasks_are_over_before_stopped_runs() -> None:
    spawner = Spawner(lambda a: a.spawn(a.forever, "pump"))
    async with open_actor(spawner):
        await wait_all_tasks_blocked()
        assert spawner.log == []
    assert spawner.log == ["pump over", "stopped ShutDown"]


async def test_the_crash_of_a_spawned_task_is_the_crash_of_the_actor(
    autojump_clock: MockClock,
) -> None:
    letters = DeadLetters()
    spawner = Spawner(lambda a: a.spawn(a.forever, "pump"), lambda a: a.spawn(a.fail_in, 1))
    with pytest.RaisesGroup(KeyError, flatten_subgroups=True):
        async with open_actor(spawner, dead_letters=letters) as address:
            await address.tell(Note("in hand"))
            await trio.sleep_forever()
    assert spawner.log == ["pump over", "stopped Crashed"]
    (letter,) = letters.recent()
    assert (letter.message, letter.reason) == (Note("in hand"), LetterReason.CRASHED)
    assert letter.error == "KeyError: 'spawned'"


async def test_a_failed_started_is_not_followed_by_stopped() -> None:
    class Stillborn(Scribe):
        async def started(self) -> None:
            raise OSError("no such store")

    stillborn = Stillborn()
    with pytest.RaisesGroup(OSError, flatten_subgroups=True):
        async with open_actor(stillborn):
            pytest.fail("the block must not begin")
    assert stillborn.log == []


async def test_stopped_is_shielded_from_cancellation(autojump_clock: MockClock) -> None:
    class Careful(Scribe):
        async def stopped(self, reason: AnyExit) -> None:
            await trio.sleep(2)
            await super().stopped(reason)

    careful, letters = Careful(), DeadLetters()
    with trio.move_on_after(1) as scope:
        async with open_actor(careful, dead_letters=letters) as address:
            await address.tell(Work(50))
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(3)
    assert careful.log == ["started", "work", "stopped"]
    assert careful.reasons == [ShutDown(cut=True)]
    assert letters_of(letters) == [(Work(50), LetterReason.CUT)]


async def test_stopped_is_bounded_and_what_exceeds_its_time_counts_as_a_crash(
    autojump_clock: MockClock,
) -> None:
    class Slow(Scribe):
        async def stopped(self, reason: AnyExit) -> None:
            await trio.sleep_forever()

    with pytest.RaisesGroup(trio.TooSlowError, flatten_subgroups=True):
        async with open_actor(Slow(), cleanup_s=2):
            pass
    assert trio.current_time() == pytest.approx(2)


async def test_a_crash_and_a_failed_clean_up_are_both_reported() -> None:
    class Wreck(Scribe):
        async def stopped(self, reason: AnyExit) -> None:
            raise OSError("second")

    with pytest.RaisesGroup(ValueError, OSError, flatten_subgroups=True):
        async with open_actor(Wreck()) as address:
            await address.tell(Fail("first"))
            await trio.sleep_forever()


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
async def test_leaving_the_program_is_no_crash_and_passes_through(
    leaving: type[BaseException],
) -> None:
    class Leaver(Scribe):
        async def handle(self, message: Mail) -> None:
            raise leaving

    leaver, letters = Leaver(), DeadLetters()
    with pytest.RaisesGroup(leaving, flatten_subgroups=True):
        async with open_actor(leaver, dead_letters=letters) as address:
            await address.tell(Note("in hand"))
            await trio.sleep_forever()
    assert leaver.reasons == [ShutDown(cut=True)]
    assert letters_of(letters) == [(Note("in hand"), LetterReason.CUT)]


async def test_a_crash_during_cancellation_is_told_and_the_cancellation_passes_through(
    autojump_clock: MockClock,
) -> None:
    class Stubborn(Scribe):
        async def started(self) -> None:
            self.spawn(trio.sleep_forever)

        async def handle(self, message: Mail) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("while being cancelled")

    stubborn, letters = Stubborn(), DeadLetters()
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True), trio.move_on_after(1) as scope:
        async with open_actor(stubborn, dead_letters=letters) as address:
            await address.tell(Note("in hand"))
            await trio.sleep_forever()
    assert scope.cancelled_caught
    (reason,) = stubborn.reasons
    assert isinstance(reason, Crashed)
    assert reason.error == "RuntimeError: while being cancelled"
    assert letters_of(letters) == [(Note("in hand"), LetterReason.CRASHED)]


async def test_an_actor_that_has_decided_to_end_ends_normally_even_if_it_is_stopped_then(
    autojump_clock: MockClock,
) -> None:
    class Finisher(Scribe):
        async def handle(self, message: Mail) -> None:
            self.end()
            await trio.sleep(5)

    finisher = Finisher()
    async with open_actor(finisher) as address:
        await address.tell(Note("last"))
        await wait_all_tasks_blocked()
    assert trio.current_time() == 5
    assert finisher.reasons == [EndedNormally()]


async def test_an_actor_without_a_handler_says_so() -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(NotImplementedError, match="Actor handles no messages"),
        flatten_subgroups=True,
    ):
        async with open_actor(Actor[Mail]()) as address:
            await address.tell(Note("hello"))
            await trio.sleep_forever()


def test_an_actor_that_does_not_run_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="Scribe does not run"):
        _ = Scribe().address


async def test_addresses_of_one_actor_are_equal() -> None:
    scribe = Scribe()
    async with open_actor(scribe) as address, open_actor(Scribe()) as other:
        assert scribe.address == address
        assert hash(scribe.address) == hash(address)
        assert scribe.address != other


async def test_statistics_tell_what_waits_and_what_was_done(autojump_clock: MockClock) -> None:
    async with open_actor(Scribe(), who="scribe", mailbox_capacity=4) as address:
        await address.tell(Note("done"))
        await address.tell(Work(1))
        await wait_all_tasks_blocked()
        address.tell_nowait(Note("waits"))
        now = address.statistics()
        assert (now.who, now.alive, now.ended, now.incarnation) == ("scribe", True, False, 1)
        assert (now.handled, now.mailbox_depth, now.mailbox_capacity) == (1, 1, 4)
    after = address.statistics()
    assert (after.alive, after.ended, after.handled, after.crashes) == (False, True, 2, 0)

"""Plant bugs in a copy of the program, and see after how many seeds a scenario finds each.

    python tests/planted.py              all of them
    python tests/planted.py fence        those whose name has "fence" in it
    python tests/planted.py --list       what there is, and what is known of it

A bug is one small edit, as somebody could make it. Only the scenarios that are explored run, no
test that was written for a guard. What has found a bug, and with which seed, stands in `FOUND`;
`HARMLESS` says of others why nothing can go wrong by them alone. The rest was tried and not found
yet, or was not tried to the end. Exit status 1 if a bug of `FOUND` is not found any more, and 2
if the place of one is not where the list says.
"""

# ruff: noqa: E501 - guards are quoted as they stand

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

from guards import MUTANTS, Mutant
from mutants import Copy, misplaced_in

ABORT = ("test_abort_races", "test_tool_races", "test_chain_races")
HOSTS = ("test_host_races", "test_outside_races")
REPLAY = ("test_replay_races", "test_wire_races")
GATEWAY = ("test_gateway_races",)
AREAS = {
    1: (*ABORT, *HOSTS),
    2: ABORT,
    3: ABORT,
    4: (*ABORT, *HOSTS),
    5: ABORT,
    6: ("test_tool_races", "test_abort_races", "test_host_races"),
    7: (*ABORT, *HOSTS),
    8: HOSTS,
    10: (*ABORT, *HOSTS),
    11: REPLAY,
    12: HOSTS,
    13: ("test_tool_races",),
}
"""The scenarios that can find what breaks an invariant."""

DEADLINE_S = 2_400
WORKERS = 2


GUARDS = {mutant.name: mutant for mutant in MUTANTS}


def planted(name: str, invariant: int, file: str, old: str, new: str) -> Mutant:
    return Mutant(name, invariant, file, old, new, AREAS[invariant])


def guarded(name: str) -> Mutant:
    """The bug is that this guard is missing."""
    guard = GUARDS[name]
    assert guard.invariant is not None
    is_gateway = guard.file.startswith("doors/gateway")
    return replace(guard, tests=GATEWAY if is_gateway else AREAS[guard.invariant])


BUGS = (
    # 1
    guarded("the retry does not wait for the stream to settle"),
    guarded("the retry does not wait for its delay"),
    guarded("a lost attempt is repeated while its stream is open"),
    planted(
        "a stream that is told to close counts as closed",
        1,
        "actors/turn_abort.py",
        "turn.phase = Settling(attempt, frozenset({Wait.SETTLED}), then)\n    return [Abort(attempt), _timers(turn, attempt)]",
        "turn.phase = Settling(attempt, frozenset({Wait.SETTLED}), then)\n    return [Abort(attempt), *when_settled(turn, turn.phase, Wait.SETTLED)]",
    ),
    guarded("an abort does not close the stream"),
    guarded("the end of an earlier reader closes the next stream"),
    guarded("a busy conversation takes another prompt"),
    guarded("a conversation is accepted by two hosts"),
    guarded("a stream that does not settle counts as settled"),
    guarded("a stream is said to be closed while it is open"),
    # 2
    guarded("the fence of batches is dropped"),
    guarded("the fence of the stream's end is dropped"),
    guarded("the fence of the settled stream is dropped"),
    guarded("the fence of the retry timer is dropped"),
    guarded("the matcher does not fence batches"),
    planted(
        "the batch that breaks a rule is published",
        2,
        "actors/turn_abort.py",
        "    events: list[AnyEvent] = [\n        RuleTriggered(attempt, verdict, latency_us",
        "    events: list[AnyEvent] = [\n        *said(attempt, batch.messages)\n    ]\n    events += [\n        RuleTriggered(attempt, verdict, latency_us",
    ),
    planted(
        "what comes behind a cut is published",
        2,
        "actors/turn.py",
        "            case WatchedEnd(attempt), Settling(live) as phase if attempt == live:",
        "            case WatchedBatch(), Settling():\n                from midstream.actors.turn_events import said\n                return [Publish(tuple(said(message.attempt, message.messages)))]\n            case WatchedEnd(attempt), Settling(live) as phase if attempt == live:",
    ),
    planted(
        "a verdict of a cut attempt cuts again",
        2,
        "actors/turn.py",
        "case WatchedBatch(attempt=attempt), Streaming(live) if attempt == live:",
        "case WatchedBatch(attempt=attempt), (Streaming(live) | Settling(live)) if attempt == live:",
    ),
    guarded("the matcher goes on behind a cut"),
    planted(
        "a cut answer is kept all the same",
        2,
        "actors/turn_abort.py",
        "    if turn.settings.context_mode is ContextMode.KEEP:",
        "    if True:",
    ),
    planted(
        "a retracted attempt stays when the session ends",
        2,
        "actors/turn_state.py",
        "        if self.attempt.is_void:\n",
        "        if False:\n",
    ),
    planted(
        "a lost attempt is not retracted",
        2,
        "actors/turn_abort.py",
        "events = (AttemptLost(attempt, lost.reason), Retracted(attempt, lost.reason))",
        "events = (AttemptLost(attempt, lost.reason),)",
    ),
    planted(
        "a restarted matcher lets everything pass",
        2,
        "actors/rule_matcher.py",
        "                case StreamBatch():\n                    pass",
        "                case StreamBatch(attempt) if not self._attempt:\n                    await self._session.pass_on(\n                        WatchedBatch(attempt, message.messages, (), message.arrived_at, None)\n                    )\n                case StreamBatch():\n                    pass",
    ),
    planted(
        "a crash of the matcher costs the watch and not the attempt",
        2,
        "actors/turn_abort.py",
        "        case Streaming(attempt) if lost.crashed or is_restart:",
        "        case Streaming(attempt) if lost.crashed and lost.held_stream:",
    ),
    guarded("what was retracted stays in the conversation"),
    guarded("the gateway reads on behind a cut"),
    guarded("the gateway sends the words that break a rule"),
    # 3
    guarded("a stop leaves a retry that waits"),
    guarded("a stop is forgotten while something is written"),
    planted(
        "a stop is forgotten once something is written",
        3,
        "actors/turn.py",
        "    if stop is not None:\n        return effects + finish(turn, stop, ())\n",
        "",
    ),
    planted(
        "a stop before the calls is forgotten",
        3,
        "actors/turn.py",
        "if isinstance(then, RunNext) and stop is not None:",
        "if False:",
    ),
    planted(
        "a stop while calls run is forgotten when they have returned",
        3,
        "actors/turn_tool_round.py",
        "    if phase.stop is not None:\n        return finish",
        "    if False:\n        return finish",
    ),
    guarded("a stop is not known to who opens streams"),
    guarded("a stop waits its turn in the mailbox"),
    guarded("an aborted order to start is carried out"),
    guarded("a timer that was forgotten goes off"),
    guarded("a stop is forgotten while calls run"),
    guarded("a stop leaves a prompt that is made ready"),
    guarded("a stop leaves the calls that run"),
    # 4
    guarded("a stream without its terminal event is finished"),
    guarded("a terminal record changes"),
    planted(
        "the terminal record is lost when the store is down",
        4,
        "actors/step_writer.py",
        "            return await self._set_aside(envelope, error)\n\n    async def _commit_twice",
        "            if isinstance(envelope.recording, FinishSession):\n                ended = ending(envelope.enrolment, envelope.recording.ended, envelope.at)\n                return reduce(self._records.get(session_id), ended)\n            return await self._set_aside(envelope, error)\n\n    async def _commit_twice",
    ),
    planted(
        "the outcome is told before it is on record",
        4,
        "actors/turn_record.py",
        "    return write(turn, recording, EndNow(end))",
        "    return [*write(turn, recording, EndNow(end)), Publish((end,))]",
    ),
    planted(
        "the outcome that was announced is not the one on record",
        4,
        "actors/turn.py",
        "ended = then.ended if record is None else as_recorded(then.ended, record)",
        "ended = then.ended",
    ),
    guarded("a session that goes says nothing"),
    guarded("a session that crashes leaves its orders to helpers"),
    planted(
        "to leave is to stop",
        4,
        "actors/turn_stop.py",
        '    if turn.continuing.follow_up is None:\n        return []\n    reason = "the client has gone"',
        '    reason = "the client has gone"',
    ),
    planted(
        "to leave is to cancel",
        4,
        "midstream/handle.py",
        "            await self._session.tell(Detach())",
        "            await self._session.tell(Cancel(None))\n            self._stop.set()",
    ),
    guarded("timers that have crashed are not set again"),
    guarded("the session does not know when its timers crash"),
    guarded("an end is announced before it is on record"),
    guarded("what is announced is not what is on record"),
    # 5
    planted(
        "a reminder leaves no record in the store",
        5,
        "stores/conversation_draft.py",
        "        self.add(Put(Book.INJECTIONS, record.id, encode(record), 0))\n",
        "",
    ),
    guarded("a reminder leaves no record"),
    guarded("what was reminded of is not remembered"),
    planted(
        "a rule counts as reminded of before its reminder is delivered",
        5,
        "actors/turn_reminders.py",
        "            attempt.deferred.append(verdict)",
        "            attempt.deferred.append(verdict)\n            turn.recorded[verdict.rule] = turn.ordinal",
    ),
    planted(
        "a rule counts as reminded of when it cuts",
        5,
        "actors/turn_abort.py",
        "    turn.attempt.is_void = True\n    aborted_at",
        "    turn.attempt.is_void = True\n    turn.recorded.update({each.rule: turn.ordinal for each in violations})\n    aborted_at",
    ),
    guarded("a rule repeats although it was reminded of"),
    guarded("a reminder on its way is ordered again"),
    guarded("a lost reservation is kept for ever"),
    planted(
        "a deferred reminder outlives its attempt",
        5,
        "actors/turn_attempt.py",
        "    turn.attempt = Attempt(number, Accumulator(turn.settings.format))",
        "    deferred = turn.attempt.deferred\n    turn.attempt = Attempt(number, Accumulator(turn.settings.format), deferred)",
    ),
    planted(
        "a deferred reminder is lost",
        5,
        "actors/turn_reply.py",
        "        return append(turn, (*items, *deferred_reminder(turn)))",
        "        return append(turn, items)",
    ),
    # 6
    guarded("half a call is kept"),
    guarded("a call that never ran has no result"),
    guarded("history is not healed"),
    guarded("a forbidden call runs when its rule is spent"),
    guarded("calls that went with their runner are waited for"),
    guarded("a stop is not told to the next runner"),
    guarded("a runner reports calls as lost that it has"),
    guarded("a runner reports calls as lost that it has reported"),
    guarded("a session that goes leaves calls without results"),
    planted(
        "a call that had returned counts as interrupted",
        6,
        "actors/turn_tool_round.py",
        "    running = replace(phase, outcomes={**phase.outcomes, **known})",
        "    if phase.stop is not None:\n        known = {call.call_id: ToolOutcome(ToolState.NOT_STARTED) for call in calls}\n    running = replace(phase, outcomes={**phase.outcomes, **known})",
    ),
    guarded("thinking is sent unsigned"),
    # 7
    guarded("what starts by itself costs nothing"),
    guarded("a follow-up costs nothing"),
    guarded("a recovery costs nothing"),
    planted(
        "a crash does not count against the budget",
        7,
        "actors/turn_abort.py",
        "    if (spent := turn.draw_on_budget()) is not None:\n        items = turn.broken_off(partial, Ending.FAILED)",
        "    if then.violations and (spent := turn.draw_on_budget()) is not None:\n        items = turn.broken_off(partial, Ending.FAILED)",
    ),
    guarded("what ends by budget is reported as completed"),
    guarded("a chain goes on when the client has gone"),
    planted(
        "a continuation is counted behind its sending",
        7,
        "actors/turn_follow_up.py",
        "return told + append(turn, items, stop_message=turn.continuing.state)",
        "return told + append(turn, items)",
    ),
    planted(
        "a continuation is refunded that was sent",
        7,
        "actors/turn_continuation.py",
        "if self.state is None or self.follow_up is None or self.follow_up.may_have_reached:",
        "if self.state is None or self.follow_up is None:",
    ),
    planted(
        "a follow-up that fails is not given back",
        7,
        "actors/turn_continuation.py",
        "        state = refund(state, follow_up.reservation)\n    return replace(continuing, state=state, follow_up=None), verdict",
        "        pass\n    return replace(continuing, state=state, follow_up=None), verdict",
    ),
    planted(
        "one more continuation than was asked for",
        7,
        "messages/stop_message.py",
        "return max(0, (self.max_repeats or 0) - self.used) if self.is_armed else 0",
        "return max(0, (self.max_repeats or 0) - self.used + 1) if self.is_armed else 0",
    ),
    guarded("tokens are not held against the budget"),
    guarded("time is not held against the budget"),
    guarded("rounds of calls have no bound"),
    guarded("a recovery begins whatever it costs"),
    guarded("a follow-up is not counted against N"),
    guarded("a retry of the gateway costs nothing"),
    guarded("a follow-up of the gateway costs nothing"),
    guarded("a follow-up that is repeated by the gateway costs nothing"),
    # 8
    guarded("a window that is open lets sessions in"),
    guarded("an open window shrinks"),
    guarded("a straggler ends the pause"),
    guarded("any number of sessions probe"),
    planted(
        "a probe that ends keeps its place",
        8,
        "messages/dispatch.py",
        "    left = tuple(probe for probe in status.probes if probe != session_id)",
        "    left = status.probes",
    ),
    planted(
        "an attempt does not ask whether everybody is paused",
        8,
        "actors/stream_monitor.py",
        "                await self._pass_gate(start.attempt)",
        "                await trio.lowlevel.checkpoint()",
    ),
    planted(
        "the machine decides on a status that is old",
        8,
        "actors/backoff_machine.py",
        "                    await self._reload()\n                    continue",
        "                    pass",
    ),
    guarded("a probe that is refused opens no longer window"),
    guarded("a window ends before the provider wants to be asked"),
    guarded("what ends in an open window closes it"),
    guarded("a running session asks in an open window"),
    guarded("the gateway asks in an open window"),
    guarded("a refusal is heard of when its client has read it"),
    guarded("the pause is not told again when the BackoffMachine crashes"),
    # 10
    guarded("a step has no key"),
    guarded("a write under way is lost with the session"),
    guarded("what the store could not take is dropped"),
    guarded("a step overtakes one that waits in the queue"),
    planted(
        "a letter stays in the queue when it has arrived",
        10,
        "actors/dead_letter_office.py",
        "        await self._queue.remove(name)\n",
        "",
    ),
    planted(
        "letters arrive under another key",
        10,
        "actors/step_writer.py",
        "write = await commit_write(self._store, known, decide, key=envelope.key)",
        "write = await commit_write(self._store, known, decide, key=f'{envelope.key}@{trio.current_time()}')",
    ),
    planted(
        "the letters of two drains are delivered at once",
        10,
        "actors/dead_letter_office.py",
        "        async with self._in_use:\n            try:\n                names",
        "        if True:\n            try:\n                names",
    ),
    guarded("anybody writes to a session"),
    guarded("a takeover does not raise the token"),
    planted(
        "a stalled owner writes under any fence",
        10,
        "stores/conversations.py",
        "    if kept.record.fence != claim.fence:",
        "    if False:",
    ),
    planted(
        "a session is taken over that is not presumed dead",
        10,
        "actors/ledger.py",
        "    if not record.presumed_dead:",
        "    if False:",
    ),
    guarded("a mark of death is for ever"),
    planted(
        "who beats is marked as dead all the same",
        10,
        "actors/heartbeat.py",
        "last_ms = parse_timestamp(record.last_activity_at)\n    if",
        "last_ms = parse_timestamp(record.started_at)\n    if",
    ),
    planted(
        "a boot forgets since when it listens",
        10,
        "actors/heartbeat.py",
        "    silent_ms = now_ms - max(last_ms, listening_since_ms)",
        "    silent_ms = now_ms - last_ms",
    ),
    guarded("a letter overtakes an earlier one of its session"),
    guarded("what was written before is told again"),
    guarded("what was told is forgotten where some of it was taken out meanwhile"),
    guarded("an answer of the store that is lost is not asked for again"),
    guarded("a write whose answer was lost counts as somebody else's"),
    guarded("a spent quota is not heard of when its end is told late"),
    guarded("what may be taken out is told by nobody"),
    guarded("an end is told to an Announcer that has ended"),
    guarded("what a host that goes has taken out is told by nobody"),
    guarded("the pause is kept at the first try or not at all"),
    guarded("what is not kept of the pause goes with the machine"),
    guarded("a continuation counts as sent before there is a place for it"),
    guarded("a replay loses patience with a log that is still being written"),
    guarded("a question that fails by a bug is asked once"),
    guarded("a conversation is not asked for again when the Ledger crashes"),
    guarded("a step is not written again when the Ledger crashes"),
    guarded("what was told stays where one of it is out already"),
    guarded("what was told is forgotten before it is out"),
    # 11
    planted(
        "a reader is told of a gap where the log is on its way",
        11,
        "actors/replay.py",
        "        if self._patience <= 0:\n            raise self._gap(ring.after)",
        "        if ring:\n            raise self._gap(ring.after)",
    ),
    planted(
        "a replay begins one event too early",
        11,
        "actors/event_channel.py",
        "event for event in self._ring if event.sequence > after",
        "event for event in self._ring if event.sequence >= after",
    ),
    planted(
        "a replay begins one event too late",
        11,
        "actors/event_channel.py",
        "event for event in self._ring if event.sequence > after",
        "event for event in self._ring if event.sequence > after + 1",
    ),
    guarded("a ring lets go of what it says that it has"),
    guarded("what a crashed Announcer had in hand leaves no hole"),
    planted(
        "numbers begin anew when the Announcer has crashed",
        11,
        "actors/announcer.py",
        "        self._numbers.advance(session_id, channel.position, ended=channel.ended)\n",
        "",
    ),
    planted(
        "who has heard what is not on record is not told so",
        11,
        "actors/replay.py",
        "return Start(Position(kept.epoch, seam), reset=True)",
        "return Start(Position(kept.epoch, seam))",
    ),
    planted(
        "a place that an earlier host has named counts for the next",
        11,
        "actors/replay.py",
        "            if epoch is not None and epoch < newest.epoch:\n                return await self._after_takeover(after, epoch)\n",
        "",
    ),
    planted(
        "a host that takes over numbers events from the beginning",
        11,
        "midstream/books.py",
        "Position(epoch, last.last if last is not None else 0)",
        "Position(epoch, 0)",
    ),
    planted(
        "what a lost host had shown of an attempt stays",
        11,
        "midstream/books.py",
        "        if attempt is not None:\n            lost = Retracted",
        "        if attempt is None:\n            lost = Retracted",
    ),
    guarded("an outcome is lost with the Announcer"),
    guarded("a session is unknown when the Announcer has crashed"),
    guarded("events are lost with the recorder"),
    planted(
        "events count as kept that are not",
        11,
        "actors/event_recorder.py",
        "        if kept is None:\n            return AGAIN_S",
        "        if kept is None:\n            for session_id, block in blocks.items():\n                self._backlog.kept(session_id, block)\n            return AGAIN_S",
    ),
    guarded("a replay guesses"),
    guarded("numbers of another epoch count as known"),
    guarded("a hole of the log is skipped"),
    guarded("a block is appended to the log twice"),
    guarded("a block that is sent again is appended without a look"),
    guarded("the recorder leaves unwritten what waits when it is closed"),
    # 12
    guarded("recoveries are not counted"),
    guarded("no recovery is one too many"),
    guarded("a session that lives is taken over"),
    # 13
    planted(
        "calls go on when the session is stopped",
        13,
        "actors/open_calls.py",
        "            case Stage.RUNNING:\n                return self._cut(key, Stage.STOPPED)",
        "            case Stage.RUNNING:\n                return self._close(key, ToolOutcome(ToolState.UNKNOWN))",
    ),
    planted(
        "a deadline of a call is not kept",
        13,
        "actors/open_calls.py",
        "        if stage is Stage.RUNNING:\n            return self._cut(key, Stage.OVERDUE)",
        "        if stage is Stage.RUNNING:\n            return []",
    ),
)

FOUND = {
    "the retry does not wait for the stream to settle": ("test_a_stop_against_abort_and_retry", 1),
    "the retry does not wait for its delay": ("test_a_stop_against_abort_and_retry", 1),
    "a lost attempt is repeated while its stream is open": (
        "test_a_restart_that_is_heard_of_when_the_next_stream_is_open",
        59,
    ),
    "a stream that is told to close counts as closed": (
        "test_a_stop_against_abort_and_retry_while_actors_crash",
        5,
    ),
    "an abort does not close the stream": (
        "test_the_retry_waits_for_a_late_settle_and_for_the_delay",
        0,
    ),
    "the end of an earlier reader closes the next stream": (
        "test_a_restart_that_is_heard_of_when_the_next_stream_is_open",
        59,
    ),
    "a busy conversation takes another prompt": (
        "test_the_next_prompt_of_a_conversation_that_was_stopped",
        5,
    ),
    "a conversation is accepted by two hosts": ("test_a_chain_while_everything_goes_wrong", 1),
    "the fence of batches is dropped": (
        "test_two_conversations_of_one_runtime_do_not_share_a_chain",
        5,
    ),
    "the fence of the stream's end is dropped": (
        "test_the_end_of_a_stream_that_is_heard_of_in_a_later_attempt",
        10,
    ),
    "the fence of the settled stream is dropped": (
        "test_the_end_of_a_stream_that_is_heard_of_in_a_later_attempt",
        193,
    ),
    "the fence of the retry timer is dropped": (
        "test_a_second_verdict_before_the_first_abort_has_landed",
        138,
    ),
    "the batch that breaks a rule is published": ("test_a_stop_against_abort_and_retry", 1),
    "what comes behind a cut is published": (
        "test_the_end_of_a_stream_that_is_heard_of_in_a_later_attempt",
        5,
    ),
    "a verdict of a cut attempt cuts again": (
        "test_the_end_of_a_stream_that_is_heard_of_in_a_later_attempt",
        5,
    ),
    "a cut answer is kept all the same": ("test_a_stop_against_abort_and_retry", 1),
    "a retracted attempt stays when the session ends": ("test_a_stop_against_abort_and_retry", 1),
    "a lost attempt is not retracted": (
        "test_a_stop_against_abort_and_retry_while_actors_crash",
        4,
    ),
    "a crash of the matcher costs the watch and not the attempt": (
        "test_the_end_of_a_stream_that_is_heard_of_in_a_later_attempt",
        2,
    ),
    "a stop leaves a retry that waits": ("test_a_stop_against_abort_and_retry", 1),
    "a stop is forgotten while something is written": ("test_a_stop_against_abort_and_retry", 6),
    "a stop is forgotten once something is written": ("test_a_stop_against_abort_and_retry", 6),
    "a stop before the calls is forgotten": (
        "test_calls_that_the_host_answers_against_stop_and_deadline",
        203,
    ),
    "a stop while calls run is forgotten when they have returned": (
        "test_calls_against_abort_and_stop",
        5,
    ),
    "a stop is not known to who opens streams": (
        "test_the_end_of_a_stream_that_is_heard_of_in_a_later_attempt",
        19,
    ),
    "a stop waits its turn in the mailbox": ("test_a_stop_against_abort_and_retry", 6),
    "a stream without its terminal event is finished": (
        "test_abort_and_retry_while_everything_goes_wrong",
        2,
    ),
    "a terminal record changes": ("test_a_cancel_on_record_against_the_end_of_the_session", 1),
    "the terminal record is lost when the store is down": (
        "test_abort_and_retry_while_everything_goes_wrong",
        5,
    ),
    "the outcome is told before it is on record": (
        "test_a_stop_against_abort_and_retry_while_actors_crash",
        4,
    ),
    "the outcome that was announced is not the one on record": (
        "test_a_cancel_on_record_against_the_end_of_the_session",
        1,
    ),
    "a session that crashes leaves its orders to helpers": (
        "test_a_stop_against_abort_and_retry_while_actors_crash",
        111,
    ),
    "a session that goes says nothing": (
        "test_a_stop_against_abort_and_retry_while_actors_crash",
        4,
    ),
    "to leave is to stop": ("test_a_chain_against_disconnect_stop_and_quota", 1),
    "to leave is to cancel": ("test_a_chain_against_disconnect_stop_and_quota", 1),
    "a reminder leaves no record in the store": ("test_a_stop_against_abort_and_retry", 1),
    "what was reminded of is not remembered": ("test_a_stop_against_abort_and_retry", 1),
    "a rule counts as reminded of before its reminder is delivered": (
        "test_a_deferred_reminder_against_abort_and_stop",
        14,
    ),
    "a rule repeats although it was reminded of": ("test_calls_while_everything_goes_wrong", 2),
    "a reminder on its way is ordered again": ("test_calls_while_everything_goes_wrong", 7),
    "a lost reservation is kept for ever": ("test_calls_while_everything_goes_wrong", 22),
    "a deferred reminder outlives its attempt": (
        "test_a_deferred_reminder_against_abort_and_stop",
        21,
    ),
    "a deferred reminder is lost": ("test_a_deferred_reminder_against_abort_and_stop", 16),
    "a call that never ran has no result": ("test_calls_while_everything_goes_wrong", 3),
    "history is not healed": ("test_a_session_that_is_taken_over_again_and_again", 4),
    "a forbidden call runs when its rule is spent": (
        "test_calls_while_everything_goes_wrong",
        5,
    ),
    "calls that went with their runner are waited for": (
        "test_calls_while_everything_goes_wrong",
        4,
    ),
    "a runner reports calls as lost that it has": (
        "test_calls_that_the_host_answers_against_stop_and_deadline",
        95,
    ),
    "a session that goes leaves calls without results": (
        "test_calls_while_everything_goes_wrong",
        95,
    ),
    "a write under way is lost with the session": (
        "test_calls_while_everything_goes_wrong",
        95,
    ),
    "a call that had returned counts as interrupted": ("test_calls_against_abort_and_stop", 5),
    "what starts by itself costs nothing": ("test_calls_against_abort_and_stop", 0),
    "a follow-up costs nothing": ("test_calls_and_a_chain_within_all_limits", 8),
    "a recovery costs nothing": ("test_a_session_that_is_taken_over_again_and_again", 19),
    "a crash does not count against the budget": (
        "test_abort_and_retry_while_everything_goes_wrong",
        15,
    ),
    "what ends by budget is reported as completed": ("test_calls_against_abort_and_stop", 0),
    "a continuation is counted behind its sending": ("test_calls_and_a_chain_within_all_limits", 2),
    "a continuation is refunded that was sent": ("test_calls_and_a_chain_within_all_limits", 3),
    "a follow-up that fails is not given back": (
        "test_a_chain_against_disconnect_stop_and_quota",
        5,
    ),
    "one more continuation than was asked for": ("test_a_chain_while_everything_goes_wrong", 24),
    "a window that is open lets sessions in": (
        "test_the_pause_against_dispatches_stragglers_and_restarts",
        0,
    ),
    "an open window shrinks": ("test_the_pause_against_dispatches_stragglers_and_restarts", 2),
    "a straggler ends the pause": ("test_the_pause_against_dispatches_stragglers_and_restarts", 7),
    "any number of sessions probe": (
        "test_the_pause_against_dispatches_stragglers_and_restarts",
        0,
    ),
    "a probe that ends keeps its place": (
        "test_the_pause_against_dispatches_stragglers_and_restarts",
        11,
    ),
    "an attempt does not ask whether everybody is paused": ("test_sessions_whose_books_crash", 2),
    "the machine decides on a status that is old": (
        "test_the_pause_against_dispatches_stragglers_and_restarts",
        2,
    ),
    "a step has no key": ("test_abort_and_retry_while_everything_goes_wrong", 47),
    "what the store could not take is dropped": (
        "test_abort_and_retry_while_everything_goes_wrong",
        1,
    ),
    "a step overtakes one that waits in the queue": ("test_calls_while_everything_goes_wrong", 4),
    "letters arrive under another key": ("test_abort_and_retry_while_everything_goes_wrong", 47),
    "a takeover does not raise the token": (
        "test_two_hosts_against_cancel_stall_and_recovery",
        2,
    ),
    "a session is taken over that is not presumed dead": (
        "test_two_hosts_against_cancel_stall_and_recovery",
        1,
    ),
    "a mark of death is for ever": (
        "test_a_host_that_beats_is_not_taken_for_dead_by_one_that_boots",
        2,
    ),
    "who beats is marked as dead all the same": (
        "test_a_host_that_beats_is_not_taken_for_dead_by_one_that_boots",
        1,
    ),
    "a boot forgets since when it listens": (
        "test_the_pause_against_dispatches_stragglers_and_restarts",
        5,
    ),
    "a replay begins one event too early": (
        "test_readers_who_come_and_go_against_the_ring_and_the_log",
        5,
    ),
    "a replay begins one event too late": ("test_listeners_while_the_announcer_crashes", 0),
    "a ring lets go of what it says that it has": (
        "test_readers_who_come_and_go_against_the_ring_and_the_log",
        1,
    ),
    "what a crashed Announcer had in hand leaves no hole": (
        "test_listeners_while_the_announcer_crashes",
        19,
    ),
    "numbers begin anew when the Announcer has crashed": (
        "test_listeners_while_the_announcer_crashes",
        0,
    ),
    "who has heard what is not on record is not told so": (
        "test_followers_of_a_session_whose_hosts_die",
        1,
    ),
    "a place that an earlier host has named counts for the next": (
        "test_followers_of_a_session_whose_hosts_die",
        1,
    ),
    "a host that takes over numbers events from the beginning": (
        "test_followers_of_a_session_whose_hosts_die",
        1,
    ),
    "what a lost host had shown of an attempt stays": (
        "test_followers_of_a_session_whose_hosts_die",
        1,
    ),
    "an outcome is lost with the Announcer": ("test_listeners_while_the_announcer_crashes", 67),
    "a session is unknown when the Announcer has crashed": (
        "test_listeners_while_the_announcer_crashes",
        12,
    ),
    "events are lost with the recorder": (
        "test_readers_who_come_and_go_against_the_ring_and_the_log",
        7,
    ),
    "events count as kept that are not": (
        "test_readers_who_come_and_go_against_the_ring_and_the_log",
        1,
    ),
    "recoveries are not counted": ("test_two_hosts_against_cancel_stall_and_recovery", 2),
    "no recovery is one too many": ("test_a_session_that_is_taken_over_again_and_again", 11),
    "a stream is said to be closed while it is open": (
        "test_the_retry_waits_for_a_late_settle_and_for_the_delay",
        0,
    ),
    "what was retracted stays in the conversation": ("test_a_stop_against_abort_and_retry", 1),
    "a stream that does not settle counts as settled": (
        "test_calls_and_a_chain_within_all_limits",
        6,
    ),
    "the gateway reads on behind a cut": (
        "test_a_client_that_may_vanish_before_an_upstream_that_does_anything",
        47,
    ),
    "the gateway sends the words that break a rule": (
        "test_a_client_that_may_vanish_before_an_upstream_that_does_anything",
        0,
    ),
    "a stop leaves a prompt that is made ready": ("test_a_stop_against_abort_and_retry", 2),
    "a stop is forgotten while calls run": ("test_calls_against_abort_and_stop", 5),
    "timers that have crashed are not set again": (
        "test_a_second_verdict_before_the_first_abort_has_landed",
        4,
    ),
    "the session does not know when its timers crash": (
        "test_a_second_verdict_before_the_first_abort_has_landed",
        4,
    ),
    "an end is announced before it is on record": (
        "test_a_stop_against_abort_and_retry_while_actors_crash",
        4,
    ),
    "what is announced is not what is on record": (
        "test_a_cancel_on_record_against_the_end_of_the_session",
        1,
    ),
    "thinking is sent unsigned": ("test_calls_and_a_chain_within_all_limits", 2),
    "a stop leaves the calls that run": (
        "test_calls_that_the_host_answers_against_stop_and_deadline",
        20,
    ),
    "time is not held against the budget": ("test_calls_and_a_chain_within_all_limits", 1),
    "rounds of calls have no bound": ("test_calls_and_a_chain_within_all_limits", 59),
    "a recovery begins whatever it costs": (
        "test_a_session_that_is_taken_over_again_and_again",
        19,
    ),
    "a follow-up is not counted against N": ("test_calls_and_a_chain_within_all_limits", 2),
    "a retry of the gateway costs nothing": (
        "test_a_client_that_may_vanish_before_an_upstream_that_does_anything",
        12,
    ),
    "a follow-up of the gateway costs nothing": (
        "test_a_client_that_may_vanish_before_an_upstream_that_does_anything",
        14,
    ),
    "a follow-up that is repeated by the gateway costs nothing": (
        "test_a_client_that_may_vanish_before_an_upstream_that_does_anything",
        14,
    ),
    "a probe that is refused opens no longer window": (
        "test_the_pause_against_dispatches_stragglers_and_restarts",
        0,
    ),
    "a window ends before the provider wants to be asked": (
        "test_the_pause_against_dispatches_stragglers_and_restarts",
        1,
    ),
    "what ends in an open window closes it": (
        "test_the_pause_against_dispatches_stragglers_and_restarts",
        23,
    ),
    "a running session asks in an open window": ("test_sessions_whose_books_crash", 2),
    "tokens are not held against the budget": ("test_calls_and_a_chain_within_all_limits", 127),
    "the gateway asks in an open window": (
        "test_clients_of_one_gateway_whose_keys_run_out_of_quota",
        0,
    ),
    "a refusal is heard of when its client has read it": (
        "test_clients_of_one_gateway_whose_keys_run_out_of_quota",
        73,
    ),
    "a letter overtakes an earlier one of its session": (
        "test_calls_while_everything_goes_wrong",
        4,
    ),
    "a replay guesses": ("test_readers_who_come_and_go_against_the_ring_and_the_log", 1),
    "numbers of another epoch count as known": ("test_followers_of_a_session_whose_hosts_die", 1),
    "a hole of the log is skipped": (
        "test_a_client_whose_connection_breaks_while_events_are_lost",
        19,
    ),
    "a block is appended to the log twice": (
        "test_readers_who_come_and_go_against_the_ring_and_the_log",
        2,
    ),
    "a block that is sent again is appended without a look": (
        "test_readers_who_come_and_go_against_the_ring_and_the_log",
        2,
    ),
    "the recorder leaves unwritten what waits when it is closed": (
        "test_followers_of_a_session_whose_hosts_die",
        27,
    ),
    "a session that lives is taken over": ("test_two_hosts_against_cancel_stall_and_recovery", 1),
    "what was written before is told again": (
        "test_a_stop_against_abort_and_retry_while_actors_crash",
        44,
    ),
    "what was told is forgotten where some of it was taken out meanwhile": (
        "test_a_chain_while_everything_goes_wrong",
        161,
    ),
    "a replay loses patience with a log that is still being written": (
        "test_readers_who_come_and_go_against_the_ring_and_the_log",
        81,
    ),
    "a spent quota is not heard of when its end is told late": (
        "test_sessions_outside_while_everything_goes_wrong",
        16,
    ),
    "what may be taken out is told by nobody": (
        "test_sessions_outside_while_everything_goes_wrong",
        23,
    ),
    "an end is told to an Announcer that has ended": (
        "test_sessions_outside_while_everything_goes_wrong",
        37,
    ),
    "what a host that goes has taken out is told by nobody": (
        "test_sessions_outside_while_everything_goes_wrong",
        37,
    ),
    "a reader is told of a gap where the log is on its way": (
        "test_readers_who_come_and_go_while_the_log_is_on_its_way",
        0,
    ),
    "a continuation counts as sent before there is a place for it": (
        "test_requests_of_one_session_at_two_gateways_share_its_sends",
        60,
    ),
    "a question that fails by a bug is asked once": ("test_sessions_whose_store_has_bugs", 2),
    "a conversation is not asked for again when the Ledger crashes": (
        "test_sessions_whose_books_crash",
        7,
    ),
    "a step is not written again when the Ledger crashes": (
        "test_sessions_whose_books_crash",
        0,
    ),
    "the pause is not told again when the BackoffMachine crashes": (
        "test_sessions_whose_books_crash",
        198,
    ),
    "what was told stays where one of it is out already": (
        "test_a_chain_while_everything_goes_wrong",
        9,
    ),
    "what was told is forgotten before it is out": (
        "test_a_chain_while_everything_goes_wrong",
        12,
    ),
    "calls go on when the session is stopped": ("test_calls_against_abort_and_stop", 5),
    "a deadline of a call is not kept": ("test_calls_while_everything_goes_wrong", 13),
}
"""Which scenario has found a bug, and with which seed, when it was tried last."""

HARMLESS = {
    "the matcher does not fence batches": "the turn has a fence of its own",
    "the matcher goes on behind a cut": "the turn passes nothing on behind a cut",
    "a restarted matcher lets everything pass": "the session hears of the crash before it hears from the restarted matcher",
    "an aborted order to start is carried out": "the scope of an aborted attempt is cancelled before it is entered",
    "a timer that was forgotten goes off": "the turn looks at the attempt of each timer",
    "a chain goes on when the client has gone": "the latch of the session keeps the follow-up from being asked for (stop_latch.py)",
    "a reminder leaves no record": "the store has the record, and what is in memory is read by nobody before it is read again",
    "a rule counts as reminded of when it cuts": "no attempt follows a cut without its reminder",
    "a stop is not told to the next runner": "the calls that it runs are for nothing, and the session ends behind them as it would have",
    "a runner reports calls as lost that it has reported": "the session keeps the first report of a call, and the second is behind it",
    "half a call is kept": "what cannot be sent is left out once more when it is kept (sendable_parts)",
    "a letter stays in the queue when it has arrived": "its key makes the second delivery none",
    "the letters of two drains are delivered at once": "their keys make the second delivery none",
    "an answer of the store that is lost is not asked for again": "what is on record and was not told is told late, and the pause hears of it then",
    "a write whose answer was lost counts as somebody else's": "likewise",
    "the pause is kept at the first try or not at all": "what is not kept then is kept at the next look, or when the machine goes",
    "a stalled owner writes under any fence": "the store looks at the fence itself, with each write (RequireFence)",
    "anybody writes to a session": "the claim and the fence in the store are looked at as well",
}
"""Why nothing goes wrong by these edits alone. Their guards have tests of their own (guards.py)."""


def find(copy: Copy, bug: Mutant, seeds: int) -> tuple[str, str]:
    """The scenario that finds it and the seed; or why none did."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy.place / "package"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        with copy.broken(bug):
            done = subprocess.run(
                [sys.executable, "-P", "-c", EXPLORER, str(seeds), *bug.tests],
                cwd=copy.place / "tests/races",
                env=environment,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            )
    except subprocess.TimeoutExpired:
        return "", f"not found in {DEADLINE_S} s"
    if done.returncode:
        return "", done.stderr[-300:]
    where, _, why = done.stdout.strip().partition("\t")
    return where, why or f"not found in {seeds} seeds"


EXPLORER = """
import importlib, sys
sys.path[:0] = [".", "../midstream", "../doors", ".."]
from midstream.testing.choices import Choices
from midstream.testing.explore import root_of, run_once
from midstream.testing.races_plugin import faults_of

def scenarios(modules):
    for name in modules:
        for each in vars(importlib.import_module(name)).values():
            for mark in getattr(each, "pytestmark", []):
                if mark.name == "races":
                    yield each, faults_of(mark)

def explore(seeds, modules):
    found = list(scenarios(modules))
    for first in range(0, seeds, 10):
        for scenario, faults in found:
            async def one(race):
                await scenario(race=race)
            for seed in range(first, first + 10):
                run = run_once(one, Choices(seed), faults)
                if run.error is not None:
                    root = root_of(run.error)
                    return f"{scenario.__name__} seed {seed}\t{type(root).__name__}: {root}"
    return ""

print(explore(int(sys.argv[1]), sys.argv[2:]).replace("\\n", " ")[:300])
"""
"""Explores scenarios side by side, ten seeds of each at a time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="only bugs whose name has this in it")
    parser.add_argument("--seeds", type=int, default=500, help="of each scenario")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [bug for bug in BUGS if re.search(arguments.part, bug.name)]
    misplaced = [problem for bug in BUGS if (problem := misplaced_in(bug))]
    for problem in misplaced:
        print(problem, file=sys.stderr)
    if misplaced:
        return 2
    if arguments.list:
        for bug in chosen:
            where = FOUND.get(bug.name)
            known = "{}, seed {}".format(*where) if where else HARMLESS.get(bug.name, "not seen")
            print(f"{bug.invariant:2}  {bug.name}: {known}")
        return 0
    began = time.monotonic()
    waiting: SimpleQueue[Mutant] = SimpleQueue()
    for bug in chosen:
        waiting.put(bug)
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="midstream-planted-") as place:

        def work(copy: Copy) -> None:
            while True:
                try:
                    bug = waiting.get_nowait()
                except Empty:
                    return
                at = time.monotonic()
                where, why = find(copy, bug, arguments.seeds)
                if not where and bug.name in FOUND:
                    missed.append(bug.name)
                verdict = "found   " if where else "MISSED  " if bug.name in FOUND else "not seen"
                print(
                    f"{verdict} {bug.invariant:2}  {bug.name}"
                    f"  ({time.monotonic() - at:.0f} s)\n           {where}: {why}",
                    flush=True,
                )

        copies = [Copy(Path(place) / str(number)) for number in range(WORKERS)]
        threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    took_s = time.monotonic() - began
    print(f"{len(chosen)} bugs in {took_s:.0f} s; missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The guards of the invariants, and how each is broken: what `tests/mutants.py` goes through.

A mutant is one edit that takes one guard away, or puts it in the wrong place. `tests` are those
that are to notice, the nearest first; each is a file, or one test of it.
"""

# ruff: noqa: E501 - guards are quoted as they stand

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` stands once in `file`; `new` takes its place. `invariant` is the number in
    architecture.md of the one that the guard is for; None for a promise of a door."""

    name: str
    invariant: int | None
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


TURN = (
    "tests/races/test_guards.py",
    "tests/actors/test_turn.py",
    "tests/actors/test_turn_calls.py",
    "tests/actors/test_turn_continuation.py",
    "tests/races/test_models.py",
)
ABORT = ("tests/races/test_abort_races.py",)
STOPS = ("tests/races/test_guards.py", "tests/midstream/test_races.py", *ABORT)
RECORD = ("tests/messages/test_record.py", "tests/stores/test_conversations.py")
PAUSE = ("tests/messages/test_dispatch.py",)
REPLAY = ("tests/midstream/test_replay.py", "tests/races/test_replay_races.py")
MATCHING = ("tests/rules/test_cut_independence.py", "tests/rules/test_automaton.py")


MUTANTS = (
    # 1: one live stream
    Mutant(
        "the retry does not wait for the stream to settle",
        1,
        "actors/turn_abort.py",
        "turn.phase = Settling(attempt, frozenset(Wait), _after_cut(violations))",
        "turn.phase = Settling(attempt, frozenset({Wait.DELAY}), _after_cut(violations))",
        TURN,
    ),
    Mutant(
        "the retry does not wait for its delay",
        1,
        "actors/turn_abort.py",
        "turn.phase = Settling(attempt, frozenset(Wait), _after_cut(violations))",
        "turn.phase = Settling(attempt, frozenset({Wait.SETTLED}), _after_cut(violations))",
        TURN,
    ),
    Mutant(
        "a lost attempt is repeated while its stream is open",
        1,
        "actors/turn_abort.py",
        "settling = Settling(attempt, frozenset(Wait), Retry(()))",
        "settling = Settling(attempt, frozenset({Wait.DELAY}), Retry(()))",
        TURN,
    ),
    Mutant(
        "an abort does not close the stream",
        1,
        "actors/abort_latch.py",
        "            self._scope.cancel()",
        "            pass",
        STOPS,
    ),
    Mutant(
        "a busy conversation takes another prompt",
        1,
        "midstream/launcher.py",
        "if live is not None and live.ended is None:",
        "if False:",
        ("tests/races/test_guards.py",),
    ),
    # 2: nothing of an attempt that is over
    Mutant(
        "the fence of batches is dropped",
        2,
        "actors/turn.py",
        "case WatchedBatch(attempt=attempt), Streaming(live) if attempt == live:",
        "case WatchedBatch(attempt=attempt), Streaming(live):",
        TURN,
    ),
    Mutant(
        "the fence of the stream's end is dropped",
        2,
        "actors/turn.py",
        "case WatchedEnd(attempt), Streaming(live) if attempt == live:",
        "case WatchedEnd(attempt), Streaming(live):",
        TURN,
    ),
    Mutant(
        "the fence of the settled stream is dropped",
        2,
        "actors/turn.py",
        "case WatchedEnd(attempt), Settling(live) as phase if attempt == live:",
        "case WatchedEnd(attempt), Settling(live) as phase:",
        TURN,
    ),
    Mutant(
        "the fence of the retry timer is dropped",
        2,
        "actors/turn.py",
        "case RetryDue(attempt), Settling(live) as phase if attempt == live:",
        "case RetryDue(attempt), Settling(live) as phase:",
        TURN,
    ),
    Mutant(
        "the fence of tool results is dropped",
        2,
        "actors/turn.py",
        "case ToolSettled(attempt=attempt), RunningCalls(live) as phase if attempt == live:",
        "case ToolSettled(attempt=attempt), RunningCalls(live) as phase:",
        TURN,
    ),
    Mutant(
        "the matcher does not fence batches",
        2,
        "actors/rule_matcher.py",
        "case StreamBatch(attempt) if attempt == self._attempt:",
        "case StreamBatch(attempt):",
        ("tests/races/test_guards.py",),
    ),
    Mutant(
        "the matcher goes on behind a cut",
        2,
        "actors/rule_matcher.py",
        "            self._attempt = 0\n",
        "",
        ("tests/races/test_guards.py",),
    ),
    Mutant(
        "a verdict that cuts waits for the session",
        2,
        "actors/rule_matcher.py",
        "            self._aborts.abort(batch.attempt)\n",
        "",
        ("tests/races/test_guards.py",),
    ),
    Mutant(
        "an abort before the beginning is forgotten",
        2,
        "actors/abort_latch.py",
        "        self.abort(self._aborted)\n",
        "",
        ("tests/races/test_guards.py",),
    ),
    Mutant(
        "the abort is told before it is done",
        2,
        "actors/turn_abort.py",
        """        Abort(attempt),
        _timers(turn, attempt, delay_s),
        Publish(tuple(events)),
""",
        """        Publish(tuple(events)),
        _timers(turn, attempt, delay_s),
        Abort(attempt),
""",
        TURN,
    ),
    # 3: a stop is an epoch
    Mutant(
        "a stop leaves a retry that waits",
        3,
        "actors/turn_stop.py",
        "case Settling(_, _, Retry() | FollowUpFailed()) as settling:",
        "case Settling(_, _, FollowUpFailed()) as settling:",
        TURN,
    ),
    Mutant(
        "a stop is forgotten while something is written",
        3,
        "actors/turn_stop.py",
        "turn.phase = replace(writing, stop=conclusion)",
        "pass",
        TURN,
    ),
    Mutant(
        "a stop waits its turn in the mailbox",
        3,
        "actors/session.py",
        "return sorted(messages, key=_urgency)",
        "return list(messages)",
        STOPS,
    ),
    Mutant(
        "a stop is not known to who opens streams",
        3,
        "actors/stream_monitor.py",
        "return not (self._aborts.is_aborted(attempt) or self._stop.is_set)",
        "return not self._aborts.is_aborted(attempt)",
        ("tests/races/test_guards.py",),
    ),
    Mutant(
        "an aborted order to start is carried out",
        3,
        "actors/stream_monitor.py",
        "return not (self._aborts.is_aborted(attempt) or self._stop.is_set)",
        "return not self._stop.is_set",
        ("tests/races/test_guards.py",),
    ),
    Mutant(
        "a timer that was forgotten goes off",
        3,
        "actors/retry_scheduler.py",
        "        self._timers.cancel()\n",
        "",
        ("tests/races/test_guards.py",),
    ),
    # 4: one outcome
    Mutant(
        "a second outcome counts",
        4,
        "actors/outcome.py",
        "if self._outcome is None:",
        "if True:",
        ("tests/races/test_guards.py",),
    ),
    Mutant(
        "a stream without its terminal event is finished",
        4,
        "actors/turn_reply.py",
        "if partial.state is StreamState.FINISHED:",
        "if partial.failure is None:",
        TURN,
    ),
    Mutant(
        "a terminal record changes",
        4,
        "messages/reducer.py",
        "if existing is not None and existing.is_terminal:",
        "if existing is not None and existing.presumed_dead:",
        RECORD,
    ),
    Mutant(
        "a session that goes says nothing",
        4,
        "actors/session.py",
        "last = self._turn.abandon(why, trio.current_time(), crashed=crashed)",
        "last = None",
        STOPS,
    ),
    # 5: once
    Mutant(
        "a reminder leaves no record",
        5,
        "stores/conversation_draft.py",
        "        self.conversation = replace(self.conversation, injections=injections)",
        "        self.conversation = replace(self.conversation, injections=self.conversation.injections)",
        RECORD,
    ),
    Mutant(
        "a rule repeats although it was reminded of",
        5,
        "rules/policy.py",
        "case RepeatMode.ONCE:\n            return f",
        "case RepeatMode.ONCE:\n            return None and f",
        ("tests/midstream/test_races.py",),
    ),
    Mutant(
        "a reminder on its way is ordered again",
        5,
        "rules/policy.py",
        "if rule.name in reserved:",
        "if False:",
        ("tests/midstream/test_races.py", "tests/midstream/test_tool_loop.py"),
    ),
    Mutant(
        "a lost reservation is kept for ever",
        5,
        "rules/policy.py",
        "return PolicyState(recorded=recorded, interrupts=state.interrupts)",
        "return PolicyState(recorded, state.reserved, state.interrupts)",
        ("tests/races/test_guards.py", "tests/midstream/test_races.py"),
    ),
    # 6: valid contexts
    Mutant(
        "half a call is kept",
        6,
        "messages/settle.py",
        "if b.complete or isinstance(b.part, TextPart)]",
        "if b.complete or isinstance(b.part, TextPart | ToolCallPart)]",
        ("tests/messages/test_settle.py",),
    ),
    Mutant(
        "a call that never ran has no result",
        6,
        "messages/settle.py",
        "if known is not None or ending is not Ending.FINISHED:",
        "if known is not None:",
        ("tests/messages/test_settle.py",),
    ),
    Mutant(
        "history is not healed",
        6,
        "messages/settle.py",
        "results = [self.results.get(call.call_id) or _result(call, unknown) for call in self.calls]",
        "results = [self.results[call.call_id] for call in self.calls if call.call_id in self.results]",
        ("tests/messages/test_settle.py",),
    ),
    Mutant(
        "a forbidden call runs when its rule is spent",
        6,
        "actors/turn_reminders.py",
        "if verdict.interrupts and verdict.call_id and turn.settings.runs_tools:",
        "if False:",
        TURN,
    ),
    # 7: bounded by budget
    Mutant(
        "what starts by itself costs nothing",
        7,
        "actors/turn_state.py",
        "        if (spent := self.spent()) is None:\n            self.spending.restarts += 1",
        "        if (spent := self.spent()) is None:\n            pass",
        TURN,
    ),
    Mutant(
        "what ends by budget is reported as completed",
        7,
        "actors/turn_abort.py",
        "return finish(turn, Conclusion(SessionStatus.CAPPED, spent), items)",
        "return finish(turn, Conclusion(SessionStatus.COMPLETED, spent), items)",
        TURN,
    ),
    Mutant(
        "a chain goes on when the client has gone",
        7,
        "actors/turn_stop.py",
        "replace(turn.continuing, is_connected=False)",
        "replace(turn.continuing, is_connected=True)",
        TURN,
    ),
    # 8: the pause
    Mutant(
        "a window that is open lets sessions in",
        8,
        "messages/dispatch.py",
        "    if not is_dispatchable(status, now_ms):\n        return Decision(status, (Refused",
        "    if False:\n        return Decision(status, (Refused",
        PAUSE,
    ),
    Mutant(
        "an open window shrinks",
        8,
        "messages/dispatch.py",
        "if event.retry_after_ms is None or (until_ms is not None and asked_ms <= until_ms):",
        "if event.retry_after_ms is None:",
        PAUSE,
    ),
    Mutant(
        "a straggler ends the pause",
        8,
        "messages/dispatch.py",
        "return started_ms is not None and started_ms > since_ms",
        "return True",
        PAUSE,
    ),
    Mutant(
        "any number of sessions probe",
        8,
        "messages/dispatch.py",
        "if limit and len(status.probes) >= limit:",
        "if False:",
        PAUSE,
    ),
    # 9: matching
    Mutant(
        "the end of a passage is not decided",
        9,
        "rules/passage_watch.py",
        "self._matched |= at_end - self._lineup.searched",
        "pass",
        MATCHING,
    ),
    Mutant(
        "what has passed is not searched",
        9,
        "rules/passage_watch.py",
        'if before and self._feed_search(number, "".join(before), findings):',
        "if False:",
        MATCHING,
    ),
    # 10: what was acknowledged
    Mutant(
        "a step has no key",
        10,
        "stores/conversations.py",
        "key=key or write.key, durable=write.durable",
        "key=None, durable=write.durable",
        ("tests/midstream/test_outages.py", "tests/stores/test_conversations.py"),
    ),
    Mutant(
        "what the store could not take is dropped",
        10,
        "actors/step_writer.py",
        "            await self._office.put(envelope)\n",
        "            pass\n",
        ("tests/midstream/test_outages.py",),
    ),
    Mutant(
        "a step overtakes one that waits in the queue",
        10,
        "actors/step_writer.py",
        """        if self._office.keeps_back(session_id):
            earlier""",
        """        if False:
            earlier""",
        ("tests/midstream/test_outages.py",),
    ),
    Mutant(
        "anybody writes to a session",
        10,
        "messages/reducer.py",
        "if existing.fence is None or existing.fence == transition.fence:",
        "if True:",
        RECORD,
    ),
    Mutant(
        "a takeover does not raise the token",
        10,
        "messages/reducer.py",
        "token = existing.fence.token + 1 if",
        "token = existing.fence.token if",
        RECORD,
    ),
    Mutant(
        "the store does not check the fence",
        10,
        "stores/memory.py",
        "if fence != operation.token:",
        "if False:",
        ("tests/stores/test_memory.py",),
    ),
    Mutant(
        "a mark of death is for ever",
        10,
        "messages/reducer.py",
        "        presumed_dead=True,",
        "        presumed_dead=False,",
        RECORD,
    ),
    Mutant(
        "who beats is marked as dead all the same",
        10,
        "actors/ledger.py",
        "            except VersionConflict:\n                request.reply.send(False)\n                return",
        "            except VersionConflict:\n                request.reply.send(True)\n                return",
        (
            "tests/midstream/test_signs_of_life.py",
            "tests/actors/test_heartbeat.py",
            "tests/races/test_guards.py",
        ),
    ),
    # 11: bounds
    Mutant(
        "a mailbox has no bound",
        11,
        "actors/mailbox.py",
        "trio.open_memory_channel[T | None](capacity)",
        "trio.open_memory_channel[T | None](2**60)",
        ("tests/actors/test_mailbox.py",),
    ),
    Mutant(
        "a slow subscriber is never told",
        11,
        "actors/subscription.py",
        "        if self._bytes > self._limit_bytes:\n",
        "        if False:\n",
        ("tests/actors/test_subscription.py",),
    ),
    Mutant(
        "a replay guesses",
        11,
        "actors/event_channel.py",
        "        if not known:\n",
        "        if False:\n",
        ("tests/actors/test_subscription.py", "tests/midstream/test_replay.py"),
    ),
    Mutant(
        "what a crashed Announcer had in hand leaves no hole",
        11,
        "actors/announcer.py",
        "                    self._numbers.lose(session_id, events)",
        "                    pass",
        REPLAY,
    ),
    Mutant(
        "what was told before a crash is a hole too",
        11,
        "actors/announcer.py",
        "            if any(message is handled for handled in self._handled):",
        "            if False:",
        REPLAY,
    ),
    Mutant(
        "an outcome is lost with the Announcer",
        11,
        "actors/announcer.py",
        "            self._announce(session_id, () if end is None else (end,))",
        "            self._announce(session_id, ())",
        REPLAY,
    ),
    Mutant(
        "a session is unknown when the Announcer has crashed",
        11,
        "actors/announcer.py",
        " or request.session_id in self._numbers",
        "",
        REPLAY,
    ),
    Mutant(
        "events are lost with the recorder",
        11,
        "actors/event_recorder.py",
        "                self._backlog.add(message.events)",
        "                pass",
        REPLAY,
    ),
    Mutant(
        "a ring lets go of what it says that it has",
        11,
        "actors/event_channel.py",
        "known = first - 1 <= after <= self.last and",
        "known = after <= self.last and",
        REPLAY,
    ),
    # 12: recovery
    Mutant(
        "recoveries are not counted",
        12,
        "messages/reducer.py",
        "recoveries=existing.recoveries + 1)",
        "recoveries=existing.recoveries)",
        RECORD,
    ),
    Mutant(
        "no recovery is one too many",
        12,
        "messages/reducer.py",
        "if existing.recoveries < change.max_recoveries:",
        "if True:",
        RECORD,
    ),
    # 13: children
    Mutant(
        "a child is not killed with its group",
        13,
        "providers/child_process.py",
        "            os.killpg(self._process.pid, number)",
        "            os.kill(self._process.pid, 0)",
        ("tests/providers/test_child_process.py",),
    ),
)


RETRY_DELAY = (
    "tests/races/test_abort_races.py::test_the_retry_waits_for_a_late_settle_and_for_the_delay"
)
STOP_AND_RETRY = "tests/races/test_abort_races.py::test_a_stop_against_abort_and_retry"
LISTENERS = "tests/races/test_replay_races.py::test_listeners_while_the_announcer_crashes"
FOUND_BY_SEEDS = {
    "an abort does not close the stream": RETRY_DELAY,
    "the retry does not wait for its delay": RETRY_DELAY,
    "the retry does not wait for the stream to settle": STOP_AND_RETRY,
    "a session is unknown when the Announcer has crashed": LISTENERS,
}
"""Mutants that a scenario finds within `EXPLORED_SEEDS` seeds, without any other test."""

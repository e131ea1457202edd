"""Break each guard of an invariant in a copy of the program, and see that some test fails.

    python tests/mutants.py              all mutants
    python tests/mutants.py fence        those whose name has "fence" in it
    python tests/mutants.py --explore    those that a scenario finds by its seeds alone
    python tests/mutants.py --list       what there is

A mutant is one edit that takes one guard away. It is killed when a test of its list fails,
and survives when all pass: then a guard is not tested, or is none. The copies are made once,
each is mended before the next mutant. Exit status 1 if any survives, or no longer applies.
"""

# ruff: noqa: E501 - guards are quoted as they stand

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("actors", "doors", "messages", "providers", "rules", "stores", "supervisors")
WORKERS = 2
DEADLINE_S = 300
"""Seconds for tests that take some ten on a machine that does nothing else. A mutant that hangs is
found."""

SEEDS = 60
EXPLORED_SEEDS = 500

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


@dataclass(frozen=True)
class Mutant:
    """`old` stands once in `file`; `new` takes its place. It is found by `tests`, and, with a name in
    `FOUND_BY_SEEDS`, by that scenario alone."""

    name: str
    invariant: int
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


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


class Copy:
    """A copy of the program, with its tests, that mutants are made in."""

    def __init__(self, place: Path) -> None:
        self.place = place
        ignore = shutil.ignore_patterns("__pycache__", ".venv", ".git", "build", "*.egg-info")
        shutil.copytree(ROOT / "midstream", place / "package/midstream", ignore=ignore)
        for room in ROOMS:
            shutil.copytree(ROOT / room, place / "package/midstream" / room, ignore=ignore)
        shutil.copytree(ROOT / "tests", place / "tests", ignore=ignore)
        for name in ("pyproject.toml", "README.md", "docs", "examples"):
            if (ROOT / name).exists():
                (place / name).symlink_to(ROOT / name)

    def file_of(self, mutant: Mutant) -> Path:
        inside = mutant.file.removeprefix("midstream/")
        return self.place / "package/midstream" / inside

    def test(self, tests: tuple[str, ...], seeds: int) -> tuple[int, str]:
        """Run these tests. Returns pytest's exit status and what it said at the end."""
        environment = {**os.environ, "PYTHONPATH": str(self.place / "package")}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, "--races-seeds", str(seeds), "--races-shrinks", "0", *tests],
                cwd=self.place,
                env=environment,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            )
        except subprocess.TimeoutExpired:
            return 1, f"no end within {DEADLINE_S} s"
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return done.returncode, lines[0] if lines else done.stdout[-300:]

    def judge(self, mutant: Mutant, *, explore: bool) -> tuple[bool, str]:
        """Whether the mutant is killed, and by what; with `explore`, by its scenario."""
        path = self.file_of(mutant)
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return False, f"does not apply: {mutant.file} has the guard {text.count(mutant.old)}×"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            tests = (FOUND_BY_SEEDS[mutant.name],) if explore else mutant.tests
            # Name by name, so that the first list to fail ends it.
            for test in tests:
                status, said = self.test((test,), EXPLORED_SEEDS if explore else SEEDS)
                if status == 1:
                    return True, said
                if status != 0:
                    return False, f"pytest ended with {status}: {said}"
        finally:
            path.write_text(text, encoding="utf-8")
        return False, "every test passes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="only mutants with this in their name")
    parser.add_argument("--explore", action="store_true", help="by the seeds of scenarios alone")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.part in mutant.name]
    if arguments.explore:
        chosen = [mutant for mutant in chosen if mutant.name in FOUND_BY_SEEDS]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.invariant:2}  {mutant.name}")
        return 0
    began = time.monotonic()
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in chosen:
        waiting.put(mutant)
    survivors: list[str] = []
    with tempfile.TemporaryDirectory(prefix="midstream-mutants-") as place:

        def work(copy: Copy) -> None:
            while not waiting.empty():
                try:
                    mutant = waiting.get_nowait()
                except queue.Empty:
                    return
                killed, why = copy.judge(mutant, explore=arguments.explore)
                if not killed:
                    survivors.append(mutant.name)
                verdict = "killed  " if killed else "SURVIVES"
                print(
                    f"{verdict} {mutant.invariant:2}  {mutant.name}\n             {why}", flush=True
                )

        copies = [Copy(Path(place) / str(number)) for number in range(WORKERS)]
        threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    took_s = time.monotonic() - began
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed in {took_s:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

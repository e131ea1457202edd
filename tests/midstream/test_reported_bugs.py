"""What users of other systems met, as whole-runtime tests, each named after its row of
spec/ttsr.md section 6."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from midstream.config import Config, RulesConfig
from midstream.messages.conversation import AssistantItem, ReminderItem, ToolResultItem
from midstream.messages.events import ReminderInjected, Retracted, RuleTriggered, ToolUse
from midstream.messages.record import SessionStatus
from midstream.messages.stream import BlockStarted, StreamStarted, TextDelta
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.providers.scripted import Call, Hang, Pause, Script, SlowClose, Step, answer
from midstream.rules.rule import Action, InterruptMode, RepeatMode, Rule, ScopeToken, Source
from midstream.rules.rule_set import RuleSet
from midstream.stores.conversation_load import load_conversation
from midstream.stores.conversations import commit_write, replace_context
from midstream.testing.world import ObservedSession, open_world

PROSE = (ScopeToken(Source.TEXT),)
WRITES_TS = (ScopeToken(Source.TOOL, "write", "*.ts"),)


def rule(condition: str, *scope: ScopeToken, name: str = "r", **fields: Any) -> Rule:
    body = f"Not {name}."
    return Rule(name=name, conditions=(condition,), scope=scope or PROSE, body=body, **fields)


def says(text: str, *after: Step) -> Script:
    return [StreamStarted(), BlockStarted(0, "text"), TextDelta(0, text), *(after or (Hang(),))]


def verdicts(session: ObservedSession) -> list[Verdict]:
    return [e.event.verdict for e in session.events if isinstance(e.event, RuleTriggered)]


async def test_b1_disabled_rules_do_not_interrupt(autojump_clock: MockClock) -> None:
    config = Config(rules=RulesConfig(discover=False, enabled=False))
    async with open_world(answer("foo"), rules=[rule("foo")], config=config) as world:
        session = world.animate("hello")
        assert (await session.result()).output == "foo"
        assert not verdicts(session)


async def test_b5_text_of_one_attempt_never_meets_that_of_the_next(
    autojump_clock: MockClock,
) -> None:
    config = Config(rules=RulesConfig(discover=False, repeat_mode=RepeatMode.ALWAYS))
    rules = [rule("foo"), rule("IDDEN", name="split")]
    scripts = [says("FORB foo"), answer("IDDEN"[:3]), answer("DEN")]
    async with open_world(*scripts, rules=rules, config=config) as world:
        first = world.animate("hello", conversation_id="con-1")
        await first.result()
        second = world.animate("more", conversation_id="con-1")
        await second.result()
        assert [v.rule for v in verdicts(first) + verdicts(second)] == ["r"]


async def test_b7_one_violation_gives_one_event(autojump_clock: MockClock) -> None:
    call = Call("write", '{"path": "a.ts", "content": "let a: any; let b: any"}')
    quiet = rule(r":\s*any\b", *WRITES_TS, interrupt_mode=InterruptMode.NEVER)
    async with open_world(answer(call), rules=[quiet]) as world:
        session = world.animate("hello")
        await session.result()
        assert len(verdicts(session)) == 1


async def test_b8_a_sibling_of_the_call_that_broke_the_rule_is_not_blamed(
    autojump_clock: MockClock,
) -> None:
    good = Call("write", '{"path": "ok.ts", "content": "let a: number"}', "call_good")
    bad = Call("write", '{"path": "bad.ts", "content": "let b: any;"}', "call_bad")
    async with open_world(
        answer(good, bad), answer("sorry"), rules=[rule(r":\s*any\b", *WRITES_TS)]
    ) as world:
        session = world.animate("hello")
        await session.result()
        [verdict] = verdicts(session)
        assert (verdict.call_id, verdict.path) == ("call_bad", "bad.ts")


async def test_b9_a_successful_interrupt_is_no_error(autojump_clock: MockClock) -> None:
    async with open_world(says("foo"), answer("fine"), rules=[rule("foo")]) as world:
        ended = await world.animate("hello").result()
        assert (ended.status, ended.failure, ended.reason) == (
            SessionStatus.COMPLETED,
            None,
            None,
        )


async def test_b10_what_was_shown_of_a_cut_attempt_is_retracted_once(
    autojump_clock: MockClock,
) -> None:
    async with open_world(
        says("all is well. ", TextDelta(0, "foo"), Hang()), answer("fine"), rules=[rule("foo")]
    ) as world:
        session = world.animate("hello")
        await session.result()
        retracted = [e.event for e in session.events if isinstance(e.event, Retracted)]
        assert [event.attempt for event in retracted] == [1]


def test_b12_a_source_that_no_rule_listens_to_is_not_even_kept() -> None:
    rule_set = RuleSet([rule("foo", *WRITES_TS)])
    lineup = rule_set.lineup(Source.TEXT)
    assert (lineup.rules, lineup.groups) == ((), ())


async def test_b16_the_result_waits_for_the_whole_recovery(autojump_clock: MockClock) -> None:
    async with open_world(
        says("foo"), [Pause(30.0), *answer("late but fine")], rules=[rule("foo")]
    ) as world:
        began = trio.current_time()
        assert (await world.animate("hello").result()).output == "late but fine"
        assert trio.current_time() - began >= 30.0


@pytest.mark.parametrize("stop_after_s", [0.0, 0.01, 0.05, 0.2, 1.0, 5.0])
async def test_b17_whoever_waits_for_the_result_never_waits_for_ever(
    stop_after_s: float, autojump_clock: MockClock
) -> None:
    scripts = [says("foo"), [Pause(0.5), *says("foo")], says("slow", Hang())]
    config = Config(rules=RulesConfig(discover=False, repeat_mode=RepeatMode.ALWAYS))
    async with open_world(*scripts, rules=[rule("foo")], config=config) as world:
        session = world.animate("hello")
        await trio.sleep(stop_after_s)
        await session.interrupt()
        with trio.fail_after(30.0):
            assert (await session.result()).status is SessionStatus.CANCELLED


async def test_b19_a_stream_that_settles_late_does_not_end_the_run_silently(
    autojump_clock: MockClock,
) -> None:
    late = says("foo", SlowClose(3.0), Hang())
    async with open_world(late, answer("fine"), rules=[rule("foo")]) as world:
        ended = await world.animate("hello").result()
        assert (ended.status, ended.output) == (SessionStatus.COMPLETED, "fine")


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 0.049])
async def test_b18_a_stop_in_the_window_leaves_no_flag_that_hides_later_reminders(
    wait_s: float, autojump_clock: MockClock
) -> None:
    scripts = [says("foo"), says("foo"), answer("fine")]
    async with open_world(*scripts, rules=[rule("foo")]) as world:
        first = world.animate("hello", conversation_id="con-1")
        async for event in first.handle.events():
            if isinstance(event.event, Retracted):
                break
        await trio.sleep(wait_s)
        await first.interrupt()
        await first.result()
        second = world.animate("again", conversation_id="con-1")
        await second.result()
        assert [v.action for v in verdicts(second)] == [VerdictAction.INTERRUPT]
        assert any(isinstance(e.event, ReminderInjected) for e in second.events)


async def test_b20_a_rule_that_matched_in_a_cut_attempt_is_not_spent(
    autojump_clock: MockClock,
) -> None:
    quiet = rule("well", name="quiet", interrupt_mode=InterruptMode.NEVER)
    scripts = [says("well, ", TextDelta(0, "foo"), Hang()), answer("well again"), answer("ok")]
    async with open_world(*scripts, rules=[rule("foo"), quiet]) as world:
        session = world.animate("hello")
        await session.result()
        assert [(v.rule, v.action) for v in verdicts(session)] == [
            ("quiet", VerdictAction.DEFER),
            ("r", VerdictAction.INTERRUPT),
            ("quiet", VerdictAction.DEFER),
        ]


async def test_b23_edited_rules_count_for_the_next_prompt_and_records_stay(
    autojump_clock: MockClock,
) -> None:
    scripts = [says("foo"), answer("fine"), answer("foo bar"), answer("fine")]
    async with open_world(*scripts, rules=[rule("foo", name="old")]) as world:
        await world.animate("hello", conversation_id="con-1").result()
        edited = [rule("foo", name="old"), rule("bar", name="new")]
        rulebook = await world.runtime.reload_rules(edited)
        assert rulebook is world.runtime.rules
        session = world.animate("more", conversation_id="con-1")
        assert (await session.result()).attempts == 2
        said = {v.rule: v.action for v in verdicts(session)}
        assert said == {"old": VerdictAction.SUPPRESSED, "new": VerdictAction.INTERRUPT}


async def test_b23_a_session_that_runs_keeps_the_rules_of_its_start(
    autojump_clock: MockClock,
) -> None:
    late: Script = [StreamStarted(), BlockStarted(0, "text"), Pause(5), *answer("foo")[2:]]
    async with open_world(late, answer("fine"), rules=[rule("foo")]) as world:
        session = world.animate("hello")
        await trio.sleep(1)
        await world.runtime.reload_rules([])
        assert (await session.result()).attempts == 2
        assert (await world.runtime.reload_rules()).rule_set.rules == ()


async def test_b27_an_edit_is_judged_by_what_it_introduces_alone(
    autojump_clock: MockClock,
) -> None:
    """Neither what it replaces nor the rest of the file counts."""
    arguments = '{"file_path": "a.ts", "old_string": "x as any", "new_string": "x"}'
    scope = ScopeToken(Source.TOOL, "edit", "*.ts")
    async with open_world(answer(Call("Edit", arguments)), rules=[rule("as any", scope)]) as world:
        session = world.animate("hello")
        await session.result()
        assert not verdicts(session)


async def test_r1_a_compaction_that_removes_the_reminder_arms_the_rule_again(
    autojump_clock: MockClock,
) -> None:
    scripts = [says("foo"), answer("fine"), says("foo"), answer("fine again")]
    async with open_world(*scripts, rules=[rule("foo")]) as world:
        await world.animate("hello", conversation_id="con-1").result()
        conversation = await load_conversation(world.store, "con-1")
        kept = [item for item in conversation.items if not isinstance(item, ReminderItem)]
        await commit_write(world.store, conversation, lambda c: replace_context(c, kept))
        again = world.animate("more", conversation_id="con-1")
        assert (await again.result()).attempts == 2


async def test_r2_repeat_mode_and_gap_may_be_set_for_each_rule(autojump_clock: MockClock) -> None:
    often = rule("foo", name="often", repeat_mode=RepeatMode.ALWAYS)
    seldom = rule("bar", name="seldom")
    scripts = [says("foo bar"), says("foo bar"), answer("fine")]
    async with open_world(*scripts, rules=[often, seldom]) as world:
        session = world.animate("hello")
        await session.result()
        injected = [e.event.rules for e in session.events if isinstance(e.event, ReminderInjected)]
        assert injected == [("often", "seldom"), ("often",)]


async def test_r4_what_was_undone_arms_the_rule_again_and_the_rest_keeps_its_age(
    autojump_clock: MockClock,
) -> None:
    """Records go with the items that they stand for: whoever takes a conversation back to an
    earlier place takes the later reminders back, and no other."""
    rules = [rule("foo", name="early"), rule("bar", name="late")]
    scripts = [says("foo"), answer("one"), says("bar"), answer("two")]
    async with open_world(*scripts, says("foo bar"), answer("three"), rules=rules) as world:
        await world.animate("a", conversation_id="con-1").result()
        before = await load_conversation(world.store, "con-1")
        await world.animate("b", conversation_id="con-1").result()
        conversation = await load_conversation(world.store, "con-1")
        assert set(conversation.recorded) == {"early", "late"}
        await commit_write(world.store, conversation, lambda c: replace_context(c, before.items))
        undone = await load_conversation(world.store, "con-1")
        assert undone.recorded == before.recorded
        again = world.animate("c", conversation_id="con-1")
        assert (await again.result()).attempts == 2
        assert [v.rule for v in verdicts(again) if v.action is VerdictAction.INTERRUPT] == ["late"]


async def test_r6_one_noisy_rule_is_capped_and_the_others_still_interrupt(
    autojump_clock: MockClock,
) -> None:
    noisy = rule("foo", name="noisy", repeat_mode=RepeatMode.ALWAYS, max_retries=1)
    other = rule("bar", name="other")
    scripts = [says("foo"), says("foo ", TextDelta(0, "bar"), Hang()), answer("foo at last")]
    async with open_world(*scripts, rules=[noisy, other]) as world:
        session = world.animate("hello")
        ended = await session.result()
        assert [(v.rule, v.action) for v in verdicts(session)] == [
            ("noisy", VerdictAction.INTERRUPT),
            ("noisy", VerdictAction.EXHAUSTED),
            ("other", VerdictAction.INTERRUPT),
            ("noisy", VerdictAction.EXHAUSTED),
        ]
        assert (ended.status, ended.output) == (SessionStatus.CAPPED, "foo at last")


async def test_p1_a_cut_call_leaves_no_dangling_call_in_the_context(
    autojump_clock: MockClock,
) -> None:
    """The world checks every request with a strict validator; this makes it meet one."""
    call = Call("write", '{"path": "a.ts", "content": "let a: any; and more"}')
    async with open_world(
        answer("I will write it.", call), answer("ok"), rules=[rule(r":\s*any\b", *WRITES_TS)]
    ) as world:
        await world.animate("hello").result()
        kinds = [type(item) for item in world.provider.requests[1].items]
        assert ToolResultItem not in kinds
        assert AssistantItem not in kinds


async def test_p4_a_call_is_watched_while_its_arguments_stream(autojump_clock: MockClock) -> None:
    """The cut comes before the call is complete: nothing of it is ever shown or run."""
    call = Call("write", '{"path": "a.ts", "content": "let a: any; ' + "x" * 400 + '"}')
    async with open_world(
        answer(call), answer("ok"), rules=[rule(r":\s*any\b", *WRITES_TS)]
    ) as world:
        session = world.animate("hello")
        await session.result()
        [verdict] = verdicts(session)
        assert verdict.action is VerdictAction.INTERRUPT
        assert not [e for e in session.events if isinstance(e.event, ToolUse)]


async def test_r7_a_reminder_may_say_what_to_do_instead_of_the_whole_rule(
    autojump_clock: MockClock,
) -> None:
    affordance = rule("foo", reminder="Say bar; it means the same.")
    async with open_world(says("foo"), answer("bar"), rules=[affordance]) as world:
        session = world.animate("hello")
        await session.result()
        [injected] = [e.event for e in session.events if isinstance(e.event, ReminderInjected)]
        assert "Say bar; it means the same." in injected.text
        assert "Not r." not in injected.text


async def test_p6_a_rule_about_calls_hears_no_narration(autojump_clock: MockClock) -> None:
    scripts = [
        answer("I will not run rm -rf here."),
        [*answer(Call("bash", '{"command": "rm -rf /"}'))[:-1], Hang()],
        answer("fine"),
    ]
    danger = rule("rm -rf", ScopeToken(Source.TOOL, "bash"))
    async with open_world(*scripts, rules=[danger]) as world:
        told = world.animate("hello")
        assert (await told.result()).attempts == 1
        assert not verdicts(told)
        done = world.animate("go")
        assert (await done.result()).attempts == 2


async def test_shadow_mode_reports_and_does_nothing_else(autojump_clock: MockClock) -> None:
    shadow = rule("foo", action=Action.OBSERVE)
    async with open_world(answer("foo"), rules=[shadow]) as world:
        session = world.animate("hello")
        ended = await session.result()
        assert [v.action for v in verdicts(session)] == [VerdictAction.OBSERVE]
        assert (ended.status, ended.output, ended.attempts) == (SessionStatus.COMPLETED, "foo", 1)


async def test_counters_say_what_the_rules_have_done(autojump_clock: MockClock) -> None:
    quiet = rule("well", name="quiet", interrupt_mode=InterruptMode.NEVER)
    scripts = [says("a long beginning, then foo"), answer("foo, well")]
    async with open_world(*scripts, rules=[rule("foo"), quiet]) as world:
        world.provider.add(answer("done"))
        await world.animate("hello").result()
        counters = await world.runtime.rule_counters()
        foo, well = counters.rules["r"], counters.rules["quiet"]
        assert (foo.matched, foo.interrupted, foo.reminded) == (2, 1, 1)
        assert list(foo.suppressed.values()) == [1]
        assert (well.matched, well.deferred, well.reminded) == (1, 1, 1)
        assert counters.discarded == 1
        assert counters.thrown_away_tokens > 0

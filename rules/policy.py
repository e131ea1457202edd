"""What is done about a match: repeat policy, interrupt modes and retry budgets.

`RuleMatcher` owns the state, `decide` is the whole decision. A rule is *reserved* from the
verdict to the end of the attempt, and *recorded*, with the turn, when its reminder is in
the context of the next (spec/ttsr.md 0.6). Turns count the model's messages of the
conversation, aborted ones too.
"""

from collections.abc import Mapping, Sequence

import msgspec

from midstream.messages.verdict import Verdict, VerdictAction
from midstream.rules.finding import Match
from midstream.rules.rule import Action, InterruptMode, RepeatMode, Rule, Source


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The global settings that a rule may override (spec/ttsr.md 2 and 0.7)."""

    interrupt_mode: InterruptMode = InterruptMode.ALWAYS
    repeat_mode: RepeatMode = RepeatMode.ONCE
    repeat_gap: int = 10
    """Turns, for `after-gap`."""
    max_retries_per_rule: int = 3
    """Interrupts that one rule may cause for one prompt."""
    max_retries_per_prompt: int = 5
    """Interrupts that all rules together may cause for one prompt."""


class PolicyState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about the rules of one session.

    `recorded` maps a rule to the turn of its last delivered reminder, `interrupts` to how
    often it has cut the stream for this prompt.
    """

    recorded: Mapping[str, int] = {}
    reserved: frozenset[str] = frozenset()
    interrupts: Mapping[str, int] = {}


def decide(
    state: PolicyState, settings: PolicySettings, matches: Sequence[Match], turn: int
) -> tuple[PolicyState, tuple[Verdict, ...]]:
    """What to do about the matches of one batch, and the state that follows.

    Several passages may match the same rule in one batch; the first is acted on, the
    others are suppressed, so that there is one injection for one rule.
    """
    reserved = set(state.reserved)
    interrupts = dict(state.interrupts)
    verdicts: list[Verdict] = []
    for match in matches:
        name = match.rule.name
        action, reason = _judge(match, state.recorded, reserved, interrupts, settings, turn)
        if action in _RESERVING:
            reserved.add(name)
        if action is VerdictAction.INTERRUPT:
            interrupts[name] = interrupts.get(name, 0) + 1
        verdicts.append(_verdict(match, action, reason, _interrupts(match, settings)))
    following = PolicyState(
        recorded=state.recorded, reserved=frozenset(reserved), interrupts=interrupts
    )
    return following, _ride_along(verdicts)


_RESERVING = frozenset({VerdictAction.INTERRUPT, VerdictAction.DEFER, VerdictAction.FOLD})


def next_attempt(state: PolicyState, recorded: Mapping[str, int]) -> PolicyState:
    """An attempt begins, and `recorded` are the reminders that its context holds.

    What was reserved is among them, or was lost with the attempt before: either way
    nothing is reserved any more.
    """
    return PolicyState(recorded=recorded, interrupts=state.interrupts)


def closed_because(
    rule: Rule, recorded: Mapping[str, int], settings: PolicySettings, turn: int
) -> str | None:
    """Why the repeat policy keeps `rule` silent at `turn`, or None if it does not."""
    last = recorded.get(rule.name)
    if last is None:
        return None
    match rule.repeat_mode or settings.repeat_mode:
        case RepeatMode.ALWAYS:
            return None
        case RepeatMode.ONCE:
            return f"reminded at turn {last}, and repeats once only"
        case RepeatMode.AFTER_GAP:
            gap = settings.repeat_gap if rule.repeat_gap is None else rule.repeat_gap
            if turn - last >= gap:
                return None
            return f"reminded at turn {last}; open again at turn {last + gap}"


def _judge(
    match: Match,
    recorded: Mapping[str, int],
    reserved: set[str],
    interrupts: Mapping[str, int],
    settings: PolicySettings,
    turn: int,
) -> tuple[VerdictAction, str | None]:
    rule = match.rule
    if rule.action is Action.OBSERVE:
        return VerdictAction.OBSERVE, None
    if rule.name in reserved:
        return VerdictAction.SUPPRESSED, "its reminder is already on its way"
    if (closed := closed_because(rule, recorded, settings, turn)) is not None:
        return VerdictAction.SUPPRESSED, closed
    if _interrupts(match, settings):
        spent = _spent_budget(rule, interrupts, settings)
        return (VerdictAction.EXHAUSTED, spent) if spent else (VerdictAction.INTERRUPT, None)
    # A reminder can only be folded into a result if the call can be told from others.
    if match.source is Source.TOOL and match.call_id:
        return VerdictAction.FOLD, None
    return VerdictAction.DEFER, None


def _interrupts(match: Match, settings: PolicySettings) -> bool:
    mode = match.rule.interrupt_mode or settings.interrupt_mode
    return match.rule.action is not Action.OBSERVE and mode.interrupts(match.source)


def _spent_budget(
    rule: Rule, interrupts: Mapping[str, int], settings: PolicySettings
) -> str | None:
    limit = settings.max_retries_per_rule if rule.max_retries is None else rule.max_retries
    if interrupts.get(rule.name, 0) >= limit:
        return f"this rule has cut the answer {limit} times for this prompt"
    if sum(interrupts.values()) >= settings.max_retries_per_prompt:
        return f"rules have cut the answer {settings.max_retries_per_prompt} times for this prompt"
    return None


def _ride_along(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """With an interrupt in the batch, what would only remind joins its injection."""
    if not any(verdict.action is VerdictAction.INTERRUPT for verdict in verdicts):
        return tuple(verdicts)
    return tuple(
        msgspec.structs.replace(verdict, action=VerdictAction.RIDE_ALONG)
        if verdict.action in (VerdictAction.DEFER, VerdictAction.FOLD)
        else verdict
        for verdict in verdicts
    )


def _verdict(match: Match, action: VerdictAction, reason: str | None, interrupts: bool) -> Verdict:
    return Verdict(
        rule=match.rule.name,
        action=action,
        source=match.source.value,
        condition=match.condition,
        tool=match.tool,
        call_id=match.call_id,
        path=match.path,
        rule_path=match.rule.path,
        offset_chars=match.offset_chars,
        excerpt=match.excerpt,
        reminder=match.rule.injected_text,
        reason=reason,
        interrupts=interrupts,
    )

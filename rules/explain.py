"""Why a rule does not fire, or when it would (spec/ttsr.md 0.13, B26).

Pure: the rules as they were found, the settings, and what a conversation remembers of its
reminders go in; plain sentences come out, in the order in which a rule is tried. What only
a live session knows (suspended conditions, reminders on their way, spent retries) is named
as such and not guessed.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum

import msgspec

from midstream.messages.injection import InjectionRecord, last_turns
from midstream.rules.buckets import BUILTIN_ORIGIN, can_watch, is_for_agent
from midstream.rules.coverage import why_not_covered
from midstream.rules.discovery import Discovery
from midstream.rules.lint import lint_rule
from midstream.rules.policy import PolicySettings, closed_because
from midstream.rules.problem import Problem
from midstream.rules.rule import Action, InterruptMode, Rule, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.scope_lint import scope_text


class Standing(StrEnum):
    """What keeps a rule silent, or that nothing does."""

    UNKNOWN = "unknown"
    """There is no such rule."""
    DISABLED = "disabled"
    OTHER_AGENT = "other_agent"
    NOT_WATCHED = "not_watched"
    """It is guidance for the system prompt or the rulebook, or of no use at all."""
    OUT_OF_SCOPE = "out_of_scope"
    SPENT = "spent"
    """Its reminder is in the conversation, and it may not be repeated yet."""
    OPEN = "open"
    """It fires as soon as its conditions match."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation knows: `turn` counts the model's messages so far, `records` are
    those of the reminders that are in the context."""

    conversation_id: str
    turn: int
    records: tuple[InjectionRecord, ...] = ()


class AskedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output that is asked about; None is not known."""

    source: Source | None = None
    tool: str | None = None
    path: str | None = None
    cwd: str = "/"


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides whether a rule fires, apart from the text."""

    found: Discovery
    agent: str
    enabled: bool = True
    disabled_rules: tuple[str, ...] = ()
    builtin_rules: bool = True
    policy: PolicySettings = PolicySettings()
    place: AskedOutput = AskedOutput()
    memory: Memory | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `sentences` are for people, in order; `problems` are those that loading
    and the linter found in its file."""

    rule: str
    standing: Standing
    sentences: tuple[str, ...]
    problems: tuple[Problem, ...] = ()


def explain(name: str, situation: Situation) -> Explanation:
    """Why the rule called `name` did not fire, or what it takes to."""
    bare = name.removeprefix("rule://").removeprefix("rule:")
    found = situation.found
    rule = next((rule for rule in found.rules if rule.name == bare), None)
    if rule is None:
        return _absent(bare, found)
    said = [*_origin(rule, found)]
    standing, reasons = _standing(rule, situation)
    said += reasons
    problems = (*(p for p in found.problems if rule.path and p.path == rule.path), *lint_rule(rule))
    return Explanation(rule=bare, standing=standing, sentences=tuple(said), problems=problems)


def _absent(name: str, found: Discovery) -> Explanation:
    off = next((rule for rule in found.disabled if rule.name == name), None)
    if off is not None:
        said = (f"`{name}` is disabled in its file {off.path} (`enabled: false`).",)
        return Explanation(rule=name, standing=Standing.DISABLED, sentences=said)
    said = [f"There is no rule named `{name}`."]
    if near := similar_names(name, [rule.name for rule in (*found.rules, *found.disabled)]):
        said.append(f"Rules with a similar name: {', '.join(f'`{each}`' for each in near)}.")
    rejected = tuple(p for p in found.problems if _names_file(p.path, name))
    if rejected:
        said.append("Its file was not loaded, or not in full; see the problems.")
    return Explanation(
        rule=name, standing=Standing.UNKNOWN, sentences=tuple(said), problems=rejected
    )


def _names_file(path: str, name: str) -> bool:
    base = path.replace("\\", "/").rsplit("/", 1)[-1]
    return base == name or base.startswith(f"{name}.")


def _origin(rule: Rule, found: Discovery) -> list[str]:
    where = f" ({rule.path})" if rule.path else ""
    said = [f"`{rule.name}` comes from {rule.origin}{where}."]
    hidden = [pair.rule for pair in found.shadowed if pair.rule.name == rule.name]
    said += [
        f"Another rule of that name is not used, because this one comes first: "
        f"{other.path or other.origin}."
        for other in hidden
    ]
    return said


def _standing(rule: Rule, situation: Situation) -> tuple[Standing, list[str]]:
    """The first thing that keeps the rule silent."""
    if (disabled := _why_disabled(rule, situation)) is not None:
        return Standing.DISABLED, [disabled]
    if not is_for_agent(rule, situation.agent):
        said = f"It is for the agents `{', '.join(rule.agents)}`, and this is `{situation.agent}`."
        return Standing.OTHER_AGENT, [said]
    if (not_watched := _why_not_watched(rule)) is not None:
        return Standing.NOT_WATCHED, [not_watched]
    place = situation.place
    if place.source is not None:
        uncovered = why_not_covered(rule, place.source, place.tool, place.path, cwd=place.cwd)
        if uncovered is not None:
            return Standing.OUT_OF_SCOPE, [f"It does not listen there: {uncovered}."]
    is_spent, said = _repeats(rule, situation)
    if is_spent:
        return Standing.SPENT, said
    return Standing.OPEN, [*said, *_when_it_fires(rule, situation)]


def _why_disabled(rule: Rule, situation: Situation) -> str | None:
    if not situation.enabled:
        return "Rules are switched off: `rules.enabled` is false."
    if rule.name in {name.strip().removeprefix("rule:") for name in situation.disabled_rules}:
        return "It is disabled by `rules.disabled_rules`."
    if rule.origin == BUILTIN_ORIGIN and not situation.builtin_rules:
        return "It is a bundled rule, and `rules.builtin_rules` is false."
    return None


def _why_not_watched(rule: Rule) -> str | None:
    if can_watch(rule) and RuleSet([rule]).rules:
        return None
    if rule.question:
        why = "it has a `question`, which is not supported yet"
    elif rule.ast_conditions and not rule.conditions:
        why = "its `astCondition` is not supported yet, and it has no `condition`"
    elif (rule.conditions or rule.match_anything) and not rule.scope:
        why = "nothing of its scope can be reached"
    elif rule.conditions:
        why = "its conditions cannot be used"
    else:
        why = "it has no condition that can be used"
    if rule.always_apply:
        use = "It is part of the system prompt instead (`alwaysApply`)."
    elif rule.description:
        use = "It is listed in the rulebook instead, and read on demand."
    else:
        use = "It is of no use as it stands: no `alwaysApply`, and no `description`."
    return f"No stream is watched for it, because {why}. {use}"


def _repeats(rule: Rule, situation: Situation) -> tuple[bool, list[str]]:
    """Whether the repeat policy keeps the rule silent in the next answer, and its past."""
    memory = situation.memory
    if memory is None:
        return False, ["No conversation was named, so that its past is not looked at."]
    where = f"conversation {memory.conversation_id} ({_count(memory.turn, 'turn')} so far)"
    records = [record for record in memory.records if record.rule == rule.name]
    if not records:
        return False, [f"No reminder of it is in the context of {where}."]
    last = max(records, key=lambda record: (record.turn, record.position))
    said = [
        f"In {where} it was last reminded of at turn {last.turn}, attempt {last.attempt} of "
        f"session {last.session_id}; the reminder is at position {last.position}."
    ]
    closed = closed_because(rule, last_turns(records), situation.policy, memory.turn + 1)
    if closed is None:
        return False, [*said, "Its repeat policy lets it fire again."]
    said.append(f"It is spent: {closed}.")
    said.append("It is re-armed when a compaction or an undo takes the reminder away.")
    return True, said


def _when_it_fires(rule: Rule, situation: Situation) -> list[str]:
    need = "all of its conditions match" if rule.all_conditions else "one of its conditions matches"
    if rule.match_anything and not rule.conditions:
        need = "anything is written"
    said = [
        f"It fires when {need} in its scope, `{scope_text(rule.scope)}`"
        + (f" for paths in `{', '.join(rule.globs)}`" if rule.globs else "")
        + f"; then it {_effect(rule, situation.policy)}."
    ]
    said.append(
        "Only a live session knows more, and tells it in its events: a condition that was "
        "suspended for its cost (`rule_suspended`), a reminder that is on its way, and how "
        "often the rule has cut the answer to this prompt."
    )
    return said


def _effect(rule: Rule, policy: PolicySettings) -> str:
    if rule.action is Action.OBSERVE:
        return "only reports (`action: observe`)"
    mode = rule.interrupt_mode or policy.interrupt_mode
    limit = policy.max_retries_per_rule if rule.max_retries is None else rule.max_retries
    cuts = f"cuts the answer, at most {_count(limit, 'time')} for one prompt"
    match mode:
        case InterruptMode.ALWAYS:
            return cuts
        case InterruptMode.NEVER:
            return "reminds without cutting the answer"
        case InterruptMode.PROSE_ONLY:
            return f"{cuts}, but in tool calls it only reminds"
        case InterruptMode.TOOL_ONLY:
            return f"{cuts}, but in prose it only reminds"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def similar_names(name: str, known: Sequence[str]) -> list[str]:
    """Up to three of `known` that look like `name`, without case."""
    lowered = {each.lower(): each for each in known}
    return [lowered[key] for key in get_close_matches(name.lower(), lowered, n=3)]

"""Sorts rules into what they are for: watching the stream, the system prompt, the rulebook.

Pure. The host asks once for each agent, because rules may be meant for some agents only;
it keeps the unsorted list, so that every sub-agent is sorted from all of it
(spec/ttsr.md 1.5, 1.7 and B30).
"""

from collections.abc import Collection, Iterable

import msgspec

from midstream.rules.globs import GlobError, compile_glob
from midstream.rules.rule import Rule

MAIN_AGENT = "main"
"""The agent of a top-level session."""
SUB_AGENT = "sub"
"""A sub-agent without a name of its own."""

BUILTIN_ORIGIN = "builtin"


class Buckets(msgspec.Struct, frozen=True):
    """The rules of one agent, each in one place.

    `stream` rules are watched for. `always_apply` rules belong into the system prompt, as
    they stand. `rulebook` rules are listed there by name and description, and the model
    reads their bodies on demand. `unused` rules have no condition that can be watched,
    no `alwaysApply` and no description.
    """

    stream: tuple[Rule, ...] = ()
    always_apply: tuple[Rule, ...] = ()
    rulebook: tuple[Rule, ...] = ()
    unused: tuple[Rule, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All of them."""
        return (*self.stream, *self.always_apply, *self.rulebook, *self.unused)

    def always_apply_text(self) -> str:
        """What to append to the system prompt; empty where there is nothing."""
        return "\n\n".join(rule.body for rule in self.always_apply)

    def rulebook_text(self) -> str:
        """The rulebook's table of contents: one line `- name: description` for each rule."""
        return "\n".join(
            f"- {rule.name}: {' '.join((rule.description or '').split())}" for rule in self.rulebook
        )

    def find(self, name: str) -> Rule | None:
        """What `rule://name` stands for. `name` may carry that prefix."""
        bare = name.removeprefix("rule://")
        readable = (*self.rulebook, *self.always_apply, *self.stream)
        return next((rule for rule in readable if rule.name == bare), None)


def sort_rules(
    rules: Iterable[Rule],
    *,
    agent: str = MAIN_AGENT,
    enabled: bool = True,
    disabled_rules: Collection[str] = (),
    builtin_rules: bool = True,
) -> Buckets:
    """The buckets of `agent`, from all rules in order of precedence.

    `enabled` false means that no stream is watched: stream rules fall to the other
    buckets, as do those without a valid condition or a reachable scope and the second of
    two with one name. `disabled_rules` are exact names, or `rule:` and a name.
    """
    disabled = {name.strip().removeprefix("rule:") for name in disabled_rules}
    taken: set[str] = set()
    stream: list[Rule] = []
    always_apply: list[Rule] = []
    rulebook: list[Rule] = []
    unused: list[Rule] = []
    for rule in rules:
        if rule.name in disabled or (rule.origin == BUILTIN_ORIGIN and not builtin_rules):
            continue
        if not is_for_agent(rule, agent):
            continue
        if enabled and can_watch(rule) and rule.name not in taken:
            taken.add(rule.name)
            stream.append(rule)
        elif rule.always_apply:
            always_apply.append(rule)
        elif rule.description:
            rulebook.append(rule)
        else:
            unused.append(rule)
    return Buckets(tuple(stream), tuple(always_apply), tuple(rulebook), tuple(unused))


def can_watch(rule: Rule) -> bool:
    """Whether a stream can be watched for this rule.

    A `question` makes the conditions a mere prefilter of the judge (spec/ttsr.md 1.6), so
    such a rule is not watched for until judging is supported.
    """
    return bool((rule.conditions or rule.match_anything) and rule.scope) and not rule.question


def is_for_agent(rule: Rule, agent: str) -> bool:
    """Whether the rule is meant for an agent, by name or pattern, without case."""
    name = agent.lower()
    return not rule.agents or any(_covers(pattern.lower(), name) for pattern in rule.agents)


def _covers(pattern: str, name: str) -> bool:
    if pattern == name:
        return True
    try:
        return compile_glob(pattern).matches([name])
    except GlobError:
        return False

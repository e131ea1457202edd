"""Which rules a command of `midstream rules` is about.

The rules of the working directory, as the configuration finds them, or those of files and
directories that were named; of these all, or the ones called by name.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from midstream.assembly import find_rules
from midstream.config import Config
from midstream.config_file import config_for
from midstream.messages.errors import RuleError
from midstream.rules.buckets import BUILTIN_ORIGIN, Buckets, sort_rules
from midstream.rules.discovery import Discovery, rules_from_paths
from midstream.rules.explain import similar_names
from midstream.rules.rule import Rule


class Selection(msgspec.Struct, frozen=True):
    """What was found, and where. `is_named` says that files or directories were named; the
    settings that disable rules do not count for these."""

    config: Config
    cwd: Path
    found: Discovery
    is_named: bool

    @property
    def disabled_rules(self) -> tuple[str, ...]:
        return () if self.is_named else self.config.rules.disabled_rules

    def why_off(self, rule: Rule) -> str | None:
        """The setting that disables a rule, if one does."""
        settings = self.config.rules
        if self.is_named:
            return None
        if not settings.enabled:
            return "rules.enabled"
        if rule.name in {name.strip().removeprefix("rule:") for name in settings.disabled_rules}:
            return "rules.disabled_rules"
        if rule.origin == BUILTIN_ORIGIN and not settings.builtin_rules:
            return "rules.builtin_rules"
        return None

    def usable(self) -> tuple[Rule, ...]:
        """The rules that no setting disables, for whichever agent."""
        return tuple(rule for rule in self.found.rules if self.why_off(rule) is None)

    def buckets(self) -> Buckets:
        """What each of these is for, whichever agent it is for."""
        for_all = (msgspec.structs.replace(rule, agents=()) for rule in self.usable())
        return sort_rules(for_all)

    def watched(self, names: Sequence[str] = ()) -> tuple[Rule, ...]:
        """The rules that streams are watched for, for whichever agent; those with `names`."""
        stream = {rule.name for rule in self.buckets().stream}
        return tuple(rule for rule in self.named(names) if rule.name in stream)

    def named(self, names: Sequence[str] = ()) -> tuple[Rule, ...]:
        """The usable rules with these names, or all. Raises `RuleError` for an unknown one."""
        usable = self.usable()
        if not names:
            return usable
        by_name = {rule.name: rule for rule in usable}
        for name in names:
            if name not in by_name:
                near = similar_names(name, list(by_name))
                mend = f"similar: {', '.join(near)}" if near else "see `midstream rules list --all`"
                raise RuleError(name, 0, "there is no rule of that name in use", mend)
        return tuple(by_name[name] for name in dict.fromkeys(names))


def select_rules(config_path: Path | None, paths: Iterable[Path]) -> Selection:
    """Read the configuration of the working directory and its rules, or those at `paths`.

    Raises `ConfigError` and `RuleError`.
    """
    cwd = Path.cwd()
    config = config_for(config_path, cwd)
    named = [cwd / path for path in paths]
    found = rules_from_paths(named) if named else find_rules(config, cwd)
    return Selection(config, cwd, found, bool(named))

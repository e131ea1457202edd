"""From a configuration to the parts that it names: provider, store, rules, budget."""

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

import msgspec
import trio

from midstream.actors.clock import SystemClock
from midstream.actors.turn_settings import PromptBudget
from midstream.config import BudgetConfig, Config, ProviderConfig, RulesConfig, StoreConfig
from midstream.messages.errors import ConfigError
from midstream.providers.claude_code import ClaudeCodeProvider
from midstream.providers.claude_code_request import DEFAULT_COMMAND
from midstream.providers.provider import Provider
from midstream.providers.replay import ReplayProvider
from midstream.rules.buckets import Buckets, sort_rules
from midstream.rules.discovery import Discovery, Shadowed, discover, rules_from_paths
from midstream.rules.policy import PolicySettings
from midstream.rules.problem import Problem, Severity
from midstream.rules.rule import Rule
from midstream.rules.rule_locations import DiscoverySettings, with_environment
from midstream.rules.rule_set import RuleSet
from midstream.stores.dlq import DeadLetterQueue, MemoryQueue
from midstream.stores.dlq_files import FileQueue
from midstream.stores.memory import MemoryStore
from midstream.stores.sqlite import open_sqlite
from midstream.stores.store import Store


class RuleBook(msgspec.Struct, frozen=True):
    """The rules of a runtime: compiled for watching, and sorted for the host."""

    rule_set: RuleSet
    buckets: Buckets
    problems: tuple[Problem, ...] = ()
    shadowed: tuple[Shadowed, ...] = ()


def first_loss(before: RuleBook, after: RuleBook) -> Problem | None:
    """What is wrong with a file whose rule was watched for and is not any more, because the
    file cannot be read as it was; None if there is none such. A rule that was taken away or
    turned off is no loss."""
    watched = {compiled.rule.path for compiled in after.rule_set.rules}
    gone = {compiled.rule.path for compiled in before.rule_set.rules} - watched - {""}
    kept = {rule.path for rule in after.buckets.rules}
    for problem in after.problems:
        damaged = problem.severity is Severity.WARNING and problem.path in kept
        if problem.path in gone and (damaged or problem.severity is Severity.ERROR):
            return problem
    return None


def build_provider(config: ProviderConfig, cwd: Path) -> Provider:
    """The provider that the configuration names. Raises `ConfigError`."""
    if config.name == "replay":
        return _replay(config, cwd)
    if config.name == "claude_code":
        return _claude_code(config, cwd)
    place = _HTTP_PROVIDERS.get(config.name)
    if place is None:
        known = ", ".join((*_HTTP_PROVIDERS, "claude_code", "replay"))
        raise ConfigError("configuration", "provider.name", f"unknown: {config.name}", known)
    key = None
    if config.api_key_env is not None:
        key = os.environ.get(config.api_key_env)
        if not key:
            problem = f"the environment variable {config.api_key_env} is not set"
            raise ConfigError("configuration", "provider.api_key_env", problem)
    return _http_provider(*place)(api_key=key, base_url=config.base_url)


_HTTP_PROVIDERS = {
    "anthropic": ("anthropic", "AnthropicProvider"),
    "openai": ("openai_chat", "OpenAIChatProvider"),
    "openai_chat": ("openai_chat", "OpenAIChatProvider"),
    "openai_responses": ("openai_responses", "OpenAIResponsesProvider"),
}
"""By the name in the configuration, the module and the class."""


def _http_provider(module: str, name: str) -> Callable[..., Provider]:
    """A class of an HTTP provider; httpx2, which they need, is an extra."""
    try:
        return getattr(import_module(f"midstream.providers.{module}"), name)
    except ModuleNotFoundError as error:
        problem = f"{module} needs {error.name}, which is not installed"
        mend = "install it with: pip install 'midstream[gateway]'"
        raise ConfigError("configuration", "provider.name", problem, mend) from None


def _claude_code(config: ProviderConfig, cwd: Path) -> Provider:
    clock = SystemClock()
    return ClaudeCodeProvider(
        command=config.command or DEFAULT_COMMAND,
        cwd=cwd,
        wall_clock=lambda: clock.now_ms() / 1000,
    )


def _replay(config: ProviderConfig, cwd: Path) -> Provider:
    if config.file is None:
        raise ConfigError("configuration", "provider.file", "is missing for `replay`")
    return ReplayProvider(cwd / config.file, pace_s=config.pace_s)


async def load_rules(config: Config, cwd: Path, given: Iterable[Rule] | None = None) -> RuleBook:
    """The rules that the configuration names, or those that are `given` instead.

    Reads files in a worker thread. Raises `RuleError` for a named path that does not exist.
    """
    if given is not None:
        found = Discovery(rules=tuple(given))
    else:
        found = await trio.to_thread.run_sync(find_rules, config, cwd)
    buckets = sort_rules(
        found.rules,
        agent=config.agent,
        enabled=config.rules.enabled,
        disabled_rules=config.rules.disabled_rules,
        builtin_rules=config.rules.builtin_rules,
    )
    rule_set = RuleSet(buckets.stream)
    problems = (*found.problems, *rule_set.problems)
    return RuleBook(rule_set, buckets, problems, found.shadowed)


def find_rules(config: Config, cwd: Path) -> Discovery:
    """The rules of a working directory. Those of named paths come first and shadow those
    that are found. Blocking; raises `RuleError` for a named path that does not exist."""
    named = rules_from_paths(cwd / path for path in config.rules.paths)
    if not config.rules.discover:
        return named
    settings = DiscoverySettings(
        user_providers=frozenset({"*"}) if config.rules.foreign_user_rules else frozenset(),
        untrusted_dirs=() if config.rules.trusted else (cwd,),
        builtin_rules=config.rules.builtin_rules,
    )
    found = discover(cwd, Path.home(), with_environment(settings, os.environ))
    by_name = {rule.name: rule for rule in named.rules}
    hidden = (Shadowed(rule, by_name[rule.name]) for rule in found.rules if rule.name in by_name)
    return Discovery(
        rules=(*named.rules, *(rule for rule in found.rules if rule.name not in by_name)),
        problems=(*named.problems, *found.problems),
        shadowed=(*named.shadowed, *hidden, *found.shadowed),
        disabled=(*named.disabled, *found.disabled),
    )


def repeat_policy(rules: RulesConfig) -> PolicySettings:
    """When a violation interrupts, and how often one is reminded of."""
    return PolicySettings(
        interrupt_mode=rules.interrupt_mode,
        repeat_mode=rules.repeat_mode,
        repeat_gap=rules.repeat_gap,
        max_retries_per_rule=rules.max_retries_per_rule,
        max_retries_per_prompt=rules.max_retries_per_prompt,
    )


def prompt_budget(budget: BudgetConfig) -> PromptBudget:
    """What midstream may start by itself for one prompt."""
    return PromptBudget(
        max_restarts=budget.max_restarts,
        max_output_tokens=budget.max_output_tokens,
        max_s=budget.max_s,
        max_tool_rounds=budget.max_tool_rounds,
    )


def build_dead_letters(config: StoreConfig, cwd: Path, store: Store) -> DeadLetterQueue:
    """The queue for what `store` cannot take. A store that keeps nothing has one of its kind."""
    if isinstance(store, MemoryStore):
        return MemoryQueue()
    return FileQueue(cwd / config.dead_letters)


async def build_store(config: StoreConfig, cwd: Path) -> Store:
    """Open the store. Raises `StoreError`."""
    if config.path == ":memory:":
        return MemoryStore()
    return await open_sqlite(cwd / config.path)

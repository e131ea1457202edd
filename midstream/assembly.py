"""From a configuration to the parts that it names: provider, store, rules."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import trio

from midstream.config import Config, ProviderConfig, StoreConfig
from midstream.messages.errors import ConfigError
from midstream.providers.anthropic import AnthropicProvider
from midstream.providers.openai_chat import OpenAIChatProvider
from midstream.providers.openai_responses import OpenAIResponsesProvider
from midstream.providers.provider import Provider
from midstream.providers.replay import ReplayProvider
from midstream.rules.buckets import Buckets, sort_rules
from midstream.rules.discovery import Discovery, Shadowed, discover, rules_from_paths
from midstream.rules.problem import Problem
from midstream.rules.rule import Rule
from midstream.rules.rule_locations import DiscoverySettings
from midstream.rules.rule_set import RuleSet
from midstream.stores.memory import MemoryStore
from midstream.stores.sqlite import open_sqlite
from midstream.stores.store import Store


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The rules of a runtime: compiled for watching, and sorted for the host."""

    rule_set: RuleSet
    buckets: Buckets
    problems: tuple[Problem, ...] = ()
    shadowed: tuple[Shadowed, ...] = ()


def build_provider(config: ProviderConfig, cwd: Path) -> Provider:
    """The provider that the configuration names. Raises `ConfigError`."""
    if config.name == "replay":
        return _replay(config, cwd)
    make = _HTTP_PROVIDERS.get(config.name)
    if make is None:
        known = ", ".join((*_HTTP_PROVIDERS, "replay"))
        raise ConfigError("configuration", "provider.name", f"unknown: {config.name}", known)
    key = None
    if config.api_key_env is not None:
        key = os.environ.get(config.api_key_env)
        if not key:
            problem = f"the environment variable {config.api_key_env} is not set"
            raise ConfigError("configuration", "provider.api_key_env", problem)
    return make(api_key=key, base_url=config.base_url)


_HTTP_PROVIDERS: dict[str, Callable[..., Provider]] = {
    "anthropic": AnthropicProvider,
    "openai": OpenAIChatProvider,
    "openai_chat": OpenAIChatProvider,
    "openai_responses": OpenAIResponsesProvider,
}


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
        found = await trio.to_thread.run_sync(_find_rules, config, cwd)
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


def _find_rules(config: Config, cwd: Path) -> Discovery:
    """Rules of named paths come first and shadow those that are found."""
    named = rules_from_paths(cwd / path for path in config.rules.paths)
    if not config.rules.discover:
        return named
    settings = DiscoverySettings(
        user_providers=frozenset({"*"}) if config.rules.foreign_user_rules else frozenset(),
        untrusted_dirs=() if config.rules.trusted else (cwd,),
        builtin_rules=config.rules.builtin_rules,
    )
    found = discover(cwd, Path.home(), settings)
    names = {rule.name for rule in named.rules}
    return Discovery(
        rules=(*named.rules, *(rule for rule in found.rules if rule.name not in names)),
        problems=(*named.problems, *found.problems),
        shadowed=(*named.shadowed, *found.shadowed),
        disabled=(*named.disabled, *found.disabled),
    )


async def build_store(config: StoreConfig, cwd: Path) -> Store:
    """Open the store. Raises `StoreError`."""
    if config.path == ":memory:":
        return MemoryStore()
    return await open_sqlite(cwd / config.path)

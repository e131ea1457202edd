"""The keyword arguments of a runtime, in one place for all its front doors.

They are those of `midstream.open_runtime` and of `Runtime.animate`, `summon` and `recover`,
where each is described.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random  # noqa: TID251 - the type; the instance is the caller's
from typing import Any, TypedDict

from midstream.actors.clock import Clock
from midstream.actors.prompt_hooks import Hook, Interceptor
from midstream.messages.conversation import AnyItem, ToolSpec
from midstream.messages.lifecycle import LifecycleSink
from midstream.messages.segments import AnySegment
from midstream.providers.provider import Provider
from midstream.roles import Identity, Roles
from midstream.rules.rule import Rule
from midstream.stores.store import Store
from midstream.tools import Tool

Prompt = str | Sequence[AnySegment] | Sequence[AnyItem]


class RuntimeOptions(TypedDict, total=False):
    """Of `open_runtime`."""

    cwd: Path | str | None
    provider: Provider | None
    rules: Iterable[Rule] | None
    store: Store | None
    clock: Clock | None
    random: Random | None
    on_lifecycle: LifecycleSink | None
    roles: Roles | None
    hooks: Sequence[Hook]
    interceptors: Sequence[Interceptor]


class SessionOptions(TypedDict, total=False):
    """Of `animate` and `summon`."""

    conversation_id: str | None
    provider: Provider | None
    tools: Sequence[Tool | ToolSpec]
    runs_tools: bool
    cwd: Path | str | None
    environment: Mapping[str, str] | None
    metadata: Mapping[str, Any] | None
    streaming: bool


class AnimateOptions(SessionOptions, total=False):
    """Of `animate`."""

    identity: Identity | None
    model: str | None
    system: str | None
    auto_continue: bool


class SummonOptions(SessionOptions, total=False):
    """Of `summon`."""

    role: str | None


class RecoverOptions(TypedDict, total=False):
    """Of `recover`."""

    identity: Identity | None
    provider: Provider | None
    tools: Sequence[Tool | ToolSpec]
    runs_tools: bool
    cwd: Path | str | None

"""A runtime with a scripted model, for the tests of the tool loop."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from midstream.actors.clock import TrioClock
from midstream.config import BudgetConfig, Config, RulesConfig, ToolsConfig
from midstream.handle import SessionHandle
from midstream.messages.conversation import (
    AnyItem,
    AssistantItem,
    ModelRequest,
    ReminderItem,
    ToolCallPart,
    ToolResultItem,
    ToolSpec,
)
from midstream.messages.events import AnyEvent, SessionEnded
from midstream.messages.lifecycle import AnyLifecycleEvent
from midstream.messages.settle import settle_history
from midstream.providers.anthropic_request import anthropic_body
from midstream.providers.openai_chat_request import openai_chat_body
from midstream.providers.openai_responses_request import openai_responses_body
from midstream.providers.scripted import Script, ScriptedProvider
from midstream.rules.rule import InterruptMode, Rule, ScopeToken, Source
from midstream.runtime import Runtime, open_runtime
from midstream.stores.conversation_load import load_conversation
from midstream.stores.memory import MemoryStore
from midstream.testing.transcript_rules import violations
from midstream.tools import Tool

BODIES: dict[str, Callable[[ModelRequest], dict[str, Any]]] = {
    "anthropic": anthropic_body,
    "openai_chat": openai_chat_body,
    "openai_responses": openai_responses_body,
}
"""What is sent to a provider, by format."""

FORMATS = tuple(BODIES)


@dataclass
class Loop:
    """`lifecycle` has what happened to actors."""

    runtime: Runtime
    provider: ScriptedProvider
    store: MemoryStore
    lifecycle: list[AnyLifecycleEvent]

    def animate(
        self,
        tools: Sequence[Tool | ToolSpec],
        prompt: str = "go",
        conversation_id: str = "con",
        *,
        runs_tools: bool = True,
    ) -> SessionHandle:
        return self.runtime.animate(
            prompt, conversation_id=conversation_id, tools=tools, runs_tools=runs_tools
        )

    async def run(self, *tools: Tool | ToolSpec) -> SessionEnded:
        return await self.animate(tools).result()

    async def items(self) -> tuple[AnyItem, ...]:
        """What is on record of the conversation; fails if a provider would not take it."""
        items = (await load_conversation(self.store, "con")).items
        assert_valid(items)
        return items

    async def results(self) -> list[ToolResultItem]:
        return [item for item in await self.items() if isinstance(item, ToolResultItem)]

    async def reminders(self) -> list[ReminderItem]:
        return [item for item in await self.items() if isinstance(item, ReminderItem)]

    async def recorded(self) -> dict[str, int]:
        return (await load_conversation(self.store, "con")).recorded


@asynccontextmanager
async def open_loop(
    *scripts: Script,
    rules: Iterable[Rule] = (),
    tools: ToolsConfig | None = None,
    budget: BudgetConfig | None = None,
    rules_config: RulesConfig | None = None,
    format: str = "anthropic",
    store: MemoryStore | None = None,
) -> AsyncGenerator[Loop]:
    provider = ScriptedProvider(*scripts, format=format)
    store = store or MemoryStore()
    lifecycle: list[AnyLifecycleEvent] = []
    config = Config(
        rules=rules_config or RulesConfig(discover=False),
        tools=tools or ToolsConfig(),
        budget=budget or BudgetConfig(),
    )
    async with open_runtime(
        config,
        provider=provider,
        rules=rules,
        store=store,
        clock=TrioClock(1_767_225_600_000),
        random=Random(1),
        on_lifecycle=lifecycle.append,
    ) as runtime:
        yield Loop(runtime, provider, store, lifecycle)


async def events_of(handle: SessionHandle) -> list[AnyEvent]:
    """All events of a session, once it has ended."""
    return [event.event async for event in handle.events()]


def assert_valid(items: Sequence[AnyItem]) -> None:
    """Each call has one result, right behind its message, and no result is without a call;
    nothing is left to heal, for whichever provider."""
    waiting: list[str] = []
    for item in items:
        if isinstance(item, ToolResultItem):
            assert waiting, f"a result without a call: {item}"
            assert waiting.pop(0) == item.call_id
            continue
        assert not waiting, f"no results for {waiting} before {item}"
        if isinstance(item, AssistantItem):
            assert item.parts
            waiting = [part.call_id for part in item.parts if isinstance(part, ToolCallPart)]
    assert not waiting, f"no results for {waiting} at the end"
    for format in FORMATS:
        assert settle_history(items, format) == tuple(items)
        assert not violations(items, format)


def rule(
    name: str,
    condition: str,
    *,
    mode: InterruptMode = InterruptMode.ALWAYS,
    source: Source = Source.TOOL,
) -> Rule:
    return Rule(
        name=name,
        conditions=(condition,),
        body=f"Keep {name}.",
        scope=(ScopeToken(source),),
        interrupt_mode=mode,
    )

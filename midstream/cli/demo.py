"""`midstream demo`: two answers that break a rule, cut, corrected and finished."""

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text as Styled

from midstream.cli.demo_server import demo_server
from midstream.cli.demo_streams import PROMPTS
from midstream.cli.display import Display, display_for
from midstream.cli.run import follow
from midstream.config import Config, ProviderConfig, RulesConfig
from midstream.messages.events import RuleTriggered, SessionEnded, SessionEvent
from midstream.messages.record import SessionStatus
from midstream.messages.verdict import VerdictAction
from midstream.providers.anthropic import AnthropicProvider
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.runtime import Runtime, open_runtime
from midstream.stores.memory import MemoryStore

PAUSE_S = 0.045
"""Seconds between the events of the demo's model; about as fast as one reads along."""

RULES = (
    Rule(
        name="ts-no-any",
        conditions=(r":\s*any\b",),
        scope=(
            ScopeToken(Source.TOOL, "write", "*.ts"),
            ScopeToken(Source.TOOL, "edit", "*.ts"),
        ),
        body="Do not use the type `any`. Take `unknown` and narrow it where the value comes in.",
    ),
    Rule(
        name="no-untested-claims",
        conditions=(r"\bI ran (?:all )?the tests\b", r"\ball tests pass\b"),
        scope=(ScopeToken(Source.TEXT),),
        body="Say that tests pass only if you have run them in this conversation and seen it. "
        "Otherwise say what was not run, and how to run it.",
    ),
)


class Summary(msgspec.Struct):
    """What happened to one prompt, for the table at the end."""

    rule: str = ""
    where: str = ""
    latency_us: int = 0
    ended: SessionEnded | None = None

    @property
    def status(self) -> SessionStatus | None:
        return self.ended.status if self.ended else None

    def note(self, event: SessionEvent) -> None:
        """Take what matters from an event."""
        match event.event:
            case RuleTriggered(_, verdict, latency_us):
                if verdict.action is VerdictAction.INTERRUPT:
                    self.rule = verdict.rule
                    self.where = verdict.path or verdict.source
                    self.latency_us = latency_us or 0
            case SessionEnded() as ended:
                self.ended = ended
            case _:
                pass


class _Noting:
    """A display that also keeps the summary."""

    def __init__(self, display: Display, summary: Summary) -> None:
        self._display = display
        self._summary = summary

    def show(self, event: SessionEvent) -> None:
        self._summary.note(event)
        self._display.show(event)


async def run_demo(json: bool, speed: float) -> int:
    """Run the demo. Returns the exit code: 0 if every answer was cut once and finished."""
    console = Console(highlight=False)
    config = Config(
        provider=ProviderConfig(model="demo-model", max_tokens=1024),
        rules=RulesConfig(discover=False),
    )
    summaries: list[Summary] = []
    async with (
        demo_server(PAUSE_S / speed) as url,
        open_runtime(
            config, provider=AnthropicProvider(base_url=url), rules=RULES, store=MemoryStore()
        ) as runtime,
    ):
        if not json:
            _say(console, f"A provider listens at {url}, and {len(RULES)} rules listen to it.")
        for prompt in PROMPTS:
            summaries.append(await _ask(runtime, prompt, console, json=json))
            if summaries[-1].status is SessionStatus.CANCELLED:
                return 130
    if not json:
        console.print()
        console.print(_table(summaries))
    finished = all(
        s.rule and s.ended and s.ended.status is SessionStatus.COMPLETED for s in summaries
    )
    return 0 if finished else 1


async def _ask(runtime: Runtime, prompt: str, console: Console, *, json: bool) -> Summary:
    if not json:
        console.print()
        _say(console, f"> {prompt}", "bold blue")
    summary = Summary()
    await follow(runtime.animate(prompt), _Noting(display_for(console, json=json), summary))
    return summary


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Styled(text, style), soft_wrap=True)


def _table(summaries: list[Summary]) -> Table:
    table = Table(title="What happened")
    for heading in ("#", "cut by", "in", "to abort", "attempts", "ended"):
        table.add_column(heading)
    for number, summary in enumerate(summaries, 1):
        ended = summary.ended
        table.add_row(
            str(number),
            summary.rule or "nothing",
            summary.where,
            f"{summary.latency_us} µs",
            str(ended.attempts) if ended else "",
            str(ended.status) if ended else "",
        )
    return table

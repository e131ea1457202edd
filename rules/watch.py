"""Watches the messages of one session's streams with a set of rules.

`RuleMatcher` owns one of these for each session and feeds it what the provider says. It
cuts the stream into passages (each block of prose or thinking, each string of a tool
call's arguments) and reports what is found. Pure: no clock and no I/O, except that a
search has a time budget. `begin` forgets the passages of the attempt before; what was
suspended stays so.
"""

from collections.abc import Callable, Iterable

from midstream.messages.stream import (
    AnyStreamMessage,
    BlockFinished,
    StreamFinished,
    TextDelta,
    ThinkingDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from midstream.rules.backtracking import EVALUATION_BUDGET_S
from midstream.rules.finding import Finding, Malformed
from midstream.rules.passage import (
    ArgumentEvent,
    ArgumentsMalformed,
    PassageEnded,
    PassageKey,
    PassagePath,
    PassageText,
    PathsKnown,
    Restarted,
)
from midstream.rules.passage_watch import PASSAGE_CAP_CHARS, Limits, PassageWatch
from midstream.rules.rule import Rule, Source
from midstream.rules.rule_set import Lineup, RuleSet
from midstream.rules.tool_arguments import ToolArguments

NewArguments = Callable[[str, str], ToolArguments]
"""From a call's id and its tool's name to the decoder of its arguments."""


class Watch:
    """The watch of one session.

    `holds` says for which rules text is held back while they may match (architecture.md, the way
    of a token): those that may interrupt. Without it nothing is, and `held_from` is the end.
    """

    def __init__(
        self,
        rule_set: RuleSet,
        new_arguments: NewArguments,
        passage_cap_chars: int = PASSAGE_CAP_CHARS,
        *,
        evaluation_budget_s: float = EVALUATION_BUDGET_S,
        holds: Callable[[Rule, Source], bool] | None = None,
    ) -> None:
        self._holds = holds
        self._rule_set = rule_set
        self._new_arguments = new_arguments
        self._limits = Limits(passage_cap_chars, evaluation_budget_s)
        self.begin()

    def begin(self) -> None:
        """A new attempt: its passages have nothing to do with those of the last."""
        self._blocks: dict[int, PassageWatch] = {}
        self._calls: dict[int, _Call] = {}

    def feed(self, messages: Iterable[AnyStreamMessage]) -> list[Finding]:
        """What the rules find in the next messages of the stream, in order."""
        findings: list[Finding] = []
        for message in messages:
            match message:
                case TextDelta(index, text):
                    findings += self._block(index, Source.TEXT).feed(text)
                case ThinkingDelta(index, text):
                    findings += self._block(index, Source.THINKING).feed(text)
                case BlockFinished(index):
                    if index in self._blocks:
                        findings += self._blocks.pop(index).end()
                case ToolCallStarted(index, call_id, name):
                    self._calls[index] = self._call(call_id, name)
                case ToolArgumentsDelta(index, fragment):
                    # One of a call that never began is watched when the call is finished.
                    if call := self._calls.get(index):
                        findings += call.feed(fragment)
                case ToolCallFinished(index, call_id, name, arguments):
                    call = self._calls.pop(index, None) or self._call(call_id, name)
                    findings += call.finish(arguments)
                case StreamFinished():
                    findings += self._end_blocks()
                case _:
                    pass
        return findings

    def held_from(self, index: int) -> int | None:
        """How many characters of the open block `index` may go out; None if all may.

        What lies behind could still become part of a match that interrupts.
        """
        block = self._blocks.get(index)
        return None if block is None else block.held_from()

    def _block(self, index: int, source: Source) -> PassageWatch:
        block = self._blocks.get(index)
        if block is None:
            lineup = self._rule_set.lineup(source)
            key = PassageKey(source, part=(index,))
            holding = self._held_conditions(lineup, source)
            block = PassageWatch(self._rule_set, lineup, key, self._limits, holding=holding)
            self._blocks[index] = block
        return block

    def _held_conditions(self, lineup: Lineup, source: Source) -> frozenset[int] | None:
        if self._holds is None:
            return None
        held = (rule.conditions for rule in lineup.rules if self._holds(rule.rule, source))
        return frozenset[int]().union(*held)

    def _call(self, call_id: str, name: str) -> "_Call":
        arguments = self._new_arguments(call_id, name)
        return _Call(self._rule_set, self._limits, name, arguments)

    def _end_blocks(self) -> list[Finding]:
        blocks, self._blocks = self._blocks, {}
        return [finding for block in blocks.values() for finding in block.end()]


class _Call:
    """The passages of one tool call."""

    def __init__(
        self, rule_set: RuleSet, limits: Limits, tool: str, arguments: ToolArguments
    ) -> None:
        self._rule_set = rule_set
        self._limits = limits
        self._tool = tool
        self._arguments = arguments
        self._passages: dict[PassageKey, PassageWatch] = {}

    def feed(self, fragment: str) -> list[Finding]:
        return self._take(self._arguments.feed(fragment))

    def finish(self, arguments: str) -> list[Finding]:
        return self._take(self._arguments.finish(arguments))

    def _take(self, events: Iterable[ArgumentEvent]) -> list[Finding]:
        findings: list[Finding] = []
        for event in events:
            match event:
                case PassageText(key, text):
                    findings += self._passage(key).feed(text)
                case PassageEnded(key):
                    findings += self._passage(key).end()
                case PassagePath(key, paths):
                    findings += self._passage(key).add_paths(paths)
                case PathsKnown(key, paths):
                    findings += self._passage(key).know_paths(paths)
                case Restarted():
                    self._passages.clear()
                case ArgumentsMalformed(call_id, _, problem):
                    findings.append(Malformed(call_id, problem))
        return findings

    def _passage(self, key: PassageKey) -> PassageWatch:
        passage = self._passages.get(key)
        if passage is None:
            lineup = self._rule_set.lineup(Source.TOOL, self._tool, raw=key.raw)
            passage = PassageWatch(self._rule_set, lineup, key, self._limits, self._tool)
            self._passages[key] = passage
        return passage

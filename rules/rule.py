"""A rule as data: what a rule file says once it is read, before anything is compiled.

The loader (`rule_file.py`) makes these from files, hosts may make them in code, and the
engine (`watch.py`) compiles them. A rule is a value and never changes.
"""

from enum import StrEnum

import msgspec


class Source(StrEnum):
    """Which part of a model's output a passage belongs to."""

    TEXT = "text"
    THINKING = "thinking"
    TOOL = "tool"


class InterruptMode(StrEnum):
    """Which matches of a rule cut the stream (spec/ttsr.md 4.1)."""

    NEVER = "never"
    PROSE_ONLY = "prose-only"
    TOOL_ONLY = "tool-only"
    ALWAYS = "always"

    def interrupts(self, source: Source) -> bool:
        """Whether a match in `source` cuts the stream under this mode."""
        match self:
            case InterruptMode.ALWAYS:
                return True
            case InterruptMode.NEVER:
                return False
            case InterruptMode.TOOL_ONLY:
                return source is Source.TOOL
            case InterruptMode.PROSE_ONLY:
                return source is not Source.TOOL


class RepeatMode(StrEnum):
    """When a rule that was injected may be injected again (spec/ttsr.md 0.6)."""

    ONCE = "once"
    AFTER_GAP = "after-gap"
    ALWAYS = "always"


class Action(StrEnum):
    """What a match does: remind (and interrupt, where the mode says so), or only report."""

    REMIND = "remind"
    OBSERVE = "observe"


class MatchOn(StrEnum):
    """What a tool-scoped condition sees: decoded argument strings, or the raw JSON text."""

    DECODED = "decoded"
    JSON = "json"


class Dialect(StrEnum):
    """The syntax in which conditions are written."""

    ECMASCRIPT = "ecmascript"
    PYTHON = "python"


class ScopeToken(msgspec.Struct, frozen=True):
    """One entry of a rule's allow-list (spec/ttsr.md 1.4).

    For `Source.TOOL`, `tool` is a tool's name, or None for any tool; `glob` a path
    pattern, or None for any path. Both are None for text and thinking.
    """

    source: Source
    tool: str | None = None
    glob: str | None = None


DEFAULT_SCOPE = (ScopeToken(Source.TEXT), ScopeToken(Source.TOOL))
"""No scope means prose and any tool, never thinking."""


class Example(msgspec.Struct, frozen=True):
    """A text that the rule's author says must match, or must not.

    `path` and `tool` place it for rules that are scoped to paths and tools.
    """

    text: str
    matches: bool
    tool: str | None = None
    path: str | None = None


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule.

    `conditions` are in `dialect`; one is enough to match unless `all_conditions`. An
    empty tuple with a scope that came from the file-glob shorthand (spec/ttsr.md 1.3)
    means that `match_anything` is set: any introduced text in scope matches.
    `globs` gate a rule by path in addition to its scope. `interrupt_mode`, `repeat_mode`,
    `repeat_gap` (turns) and `max_retries` are None where the global setting applies.
    """

    name: str
    body: str
    path: str = ""
    description: str | None = None
    conditions: tuple[str, ...] = ()
    all_conditions: bool = False
    match_anything: bool = False
    scope: tuple[ScopeToken, ...] = DEFAULT_SCOPE
    globs: tuple[str, ...] = ()
    interrupt_mode: InterruptMode | None = None
    repeat_mode: RepeatMode | None = None
    repeat_gap: int | None = None
    max_retries: int | None = None
    action: Action = Action.REMIND
    match_on: MatchOn = MatchOn.DECODED
    dialect: Dialect = Dialect.ECMASCRIPT
    always_apply: bool = False
    agents: tuple[str, ...] = ()
    reminder: str | None = None
    """Shorter text for injections; the body is used where it is None."""
    examples: tuple[Example, ...] = ()
    ast_conditions: tuple[str, ...] = ()
    """Loaded and reported as unsupported (spec/ttsr.md 0.16)."""
    question: str | None = None
    """Loaded and reported as unsupported (spec/ttsr.md 0.16)."""
    origin: str = "argument"
    """Which discovery provider it came from: `midstream`, `omp`, `cursor`, `builtin`, ..."""
    condition_lines: tuple[int, ...] = ()
    """Line in the file of each condition (from 1), for error messages; may be empty."""
    key_lines: tuple[tuple[str, int], ...] = ()
    """Line in the file of each key of the front matter, by its camelCase name."""

    def line_of(self, *keys: str) -> int:
        """The line of the first of these keys that the file has; 0 without any."""
        lines = dict(self.key_lines)
        return next((lines[key] for key in keys if key in lines), 0)

    @property
    def injected_text(self) -> str:
        """What the model is told when the rule fires."""
        return self.reminder if self.reminder is not None else self.body

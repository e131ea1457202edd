"""What watching costs per delta, beside the naive method in the same run.

A stream of 64 KB in deltas of 4 characters is watched by 1, 20 and 200 rules that never
match. `first` and `last` are the first and the last 4 KB; flat means that their ratio is
near 1. `cold` is the very first pass, in which the automata are still being built. The
naive method appends each delta and searches the whole buffer with every rule; since that
would take hours, it is measured at 64 deltas spread over the stream.

    python bench/matching.py [--json]
"""

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from time import perf_counter

from midstream.messages.stream import TextDelta
from midstream.rules.rule import Rule, ScopeToken, Source
from midstream.rules.rule_set import RuleSet
from midstream.rules.tool_arguments import ToolArguments
from midstream.rules.watch import Watch
from tables import report

STREAM_CHARS = 65_536
DELTA_CHARS = 4
WINDOW_CHARS = 4_096
NAIVE_SAMPLES = 64

CONDITIONS = (
    r"\bas any\s*;;",
    r":\s*any\s*=\s*any\b",
    r"console\.log\(\s*\d+\s*\)\s*!",
    r"catch\s*\(\w*\)\s*\{\s*\}\s*finally\s*\{\s*\}",
    r"(?<!\.)unwrap\(\)\s*\?\?",
    r"password\s*=\s*[\"'][^\"']{60,}[\"']",
    r"rm\s+-rf\s+/\s*;",
    r"I (?:have )?ran (?:all )?the tests twice",
    r"TODO(?!\()\s*@@",
    r"\beval\(\s*eval\(",
    r"(?i)lorem\s+ipsum\s+dolor",
    r"import\s+\*\s+as\s+\w+\s+from\s+['\"]any['\"]",
    r"(?m)^\s*#\s*noqa:\s*ALL$",
    r"time\.sleep\(\d+\)\s*#\s*why",
    r"except\s*:\s*pass_",
    r"sk-[A-Za-z0-9]{40}",
    r"git\s+push\s+--force\s+origin\s+main",
    r"(?:\w+\s?)*!!!$",
    r"//.*eslint-disable-everything",
    r"<<<<<<<[\s\S]*>>>>>>>",
)


def rules(count: int) -> list[Rule]:
    """`count` rules with different conditions."""
    scope = (ScopeToken(Source.TEXT),)
    return [
        Rule(name=f"r{number}", body="b", conditions=(condition(number),), scope=scope)
        for number in range(count)
    ]


def condition(number: int) -> str:
    base = CONDITIONS[number % len(CONDITIONS)]
    variant = number // len(CONDITIONS)
    if not variant:
        return base
    flags = re.match(r"\(\?[ims]+\)", base)
    head = flags[0] if flags else ""
    return f"{head}x{variant}z\\s*{base.removeprefix(head)}"


def stream(*, newlines: bool) -> str:
    """Source text and prose of this project, as long as a long answer."""
    root = Path(__file__).parent.parent
    files = sorted((root / "rules").glob("*.py")) + sorted(root.glob("*.md"))
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    text = (text * (STREAM_CHARS // len(text) + 1))[:STREAM_CHARS]
    return text if newlines else text.replace("\n", " ")


def deltas(text: str) -> Iterator[str]:
    return (text[at : at + DELTA_CHARS] for at in range(0, len(text), DELTA_CHARS))


def watched(watch: Watch, text: str) -> list[float]:
    """Microseconds per delta, window by window."""
    watch.begin()
    windows: list[float] = []
    for start in range(0, len(text), WINDOW_CHARS):
        messages = [TextDelta(0, delta) for delta in deltas(text[start : start + WINDOW_CHARS])]
        began = perf_counter()
        for message in messages:
            watch.feed((message,))
        windows.append((perf_counter() - began) / len(messages) * 1e6)
    return windows


def naive(rule_set: RuleSet, text: str) -> float:
    """Microseconds per delta of appending and searching everything again."""
    patterns = [condition.require_pattern() for condition in rule_set.conditions]
    costs: list[float] = []
    for sample in range(NAIVE_SAMPLES):
        buffer = text[: (sample + 1) * len(text) // NAIVE_SAMPLES]
        began = perf_counter()
        for pattern in patterns:
            pattern.search(buffer)
        costs.append((perf_counter() - began) * 1e6)
    return fmean(costs)


def measure(count: int, *, newlines: bool) -> dict[str, str | int | float]:
    text = stream(newlines=newlines)
    rule_set = RuleSet(rules(count))
    assert not rule_set.problems, rule_set.problems
    watch = Watch(rule_set, lambda call_id, tool: ToolArguments(call_id, tool))
    gc.collect()
    cold = watched(watch, text)
    passes = [watched(watch, text) for _ in range(5)]
    first = min(windows[0] for windows in passes)
    last = min(windows[-1] for windows in passes)
    mean = min(fmean(windows) for windows in passes)
    naive_us = naive(rule_set, text)
    return {
        "rules": count,
        "newlines": "yes" if newlines else "no",
        "cold µs": fmean(cold),
        "µs per delta": mean,
        "first": first,
        "last": last,
        "last/first": last / first,
        "naive µs": naive_us,
        "naive/ours": naive_us / mean,
        "naive/cold": naive_us / fmean(cold),
    }


def main() -> None:
    rows = [measure(n, newlines=nl) for n in (1, 20, 200) for nl in (True, False)]
    report("Watching a 64 KB stream in deltas of 4 characters", rows)


if __name__ == "__main__":
    main()

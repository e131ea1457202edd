"""The table of what JavaScript matches, for every test that runs conditions.

`ecmascript_table.json` holds what Node answered (`compute_ecmascript_table.mjs`). HAND_MADE
has what Node 20 does not know yet: the modifiers and the duplicate group names of
ECMAScript 2025.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NODE = shutil.which("node")
_SCRIPT = Path(__file__).with_name("compute_ecmascript_table.mjs")
_TABLE = Path(__file__).with_name("ecmascript_table.json")


@dataclass(frozen=True)
class Row:
    """A condition, a text, and the [start, end) of the first match in UTF-16 units.

    `span` is None where nothing matches. `refused` says that the condition is invalid.
    """

    condition: str
    text: str
    span: tuple[int, int] | None
    refused: bool = False


def load_table() -> list[Row]:
    """What Node answered when the table was made."""
    return _rows(json.loads(_TABLE.read_bytes()))


def compute_table() -> list[Row]:
    """What Node answers now."""
    return _rows(json.loads(_run_node()))


def ask_node(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Node's answers to (condition, text) pairs, in one process."""
    answers: list[Any] = json.loads(_run_node("--evaluate", given=json.dumps(pairs)))
    return _rows([[*pair, answer] for pair, answer in zip(pairs, answers, strict=True)])


def _run_node(*arguments: str, given: str = "") -> bytes:
    assert NODE is not None
    command = [NODE, str(_SCRIPT), *arguments]
    return subprocess.run(
        command, input=given.encode(), capture_output=True, check=True, timeout=60
    ).stdout


def _rows(entries: list[Any]) -> list[Row]:
    return [
        Row(condition, text, None, refused=True)
        if answer == "SyntaxError"
        else Row(condition, text, answer and (answer[0], answer[1]))
        for condition, text, answer in entries
    ]


HAND_MADE = [
    # Modifiers
    Row("(?i:a)b", "Ab", (0, 2)),
    Row("(?i:a)b", "aB", None),
    Row("x(?i:foo)bar", "xFOObar", (0, 7)),
    Row("x(?i:foo)bar", "xfooBAR", None),
    Row("(?i)a(?-i:b)c", "AbC", (0, 3)),
    Row("(?i)a(?-i:b)c", "ABC", None),
    Row("(?i:a(?-i:b)c)", "AbC", (0, 3)),
    Row("(?i:a(?-i:b)c)", "ABC", None),
    Row("(?i:a|b)+", "aBAb", (0, 4)),
    Row("(?s:a.)b.", "a\nb\n", None),
    Row("(?s:a.)b.", "a\nbx", (0, 4)),
    Row("(?s)a.(?-s:b.)", "a\nb\n", None),
    Row("(?m:^)b", "a\nb", (2, 3)),
    Row("(?m:^b)$", "a\nb\nc", None),
    Row("(?m:^b$)", "a\nb\nc", (2, 3)),
    Row("(?m)(?-m:^)b", "a\nb", None),
    Row("(?im-s:^a.)", "x\nAb", (2, 4)),
    Row("(?s)(?im-s:^a.)", "A\n", None),
    Row("(?ims:)a", "a", (0, 1)),
    Row("(?-i:a)", "A", None),
    Row(r"(?i:(a))\1", "Aa", None),
    Row(r"(?i:(a))\1", "AA", (0, 2)),
    Row(r"(a)(?i:\1)", "aA", (0, 2)),
    Row(r"(?i:[^x])", "X", None),
    Row(r"(?i:\u212a)", "k", None),
    Row("(?i:a)*b", "aAb", (0, 3)),
    Row("(?i-i:a)", "a", None, refused=True),
    Row("(?ii:a)", "a", None, refused=True),
    Row("(?-:a)", "a", None, refused=True),
    Row("(?i-:a)", "A", (0, 1)),
    Row("(?u:a)", "a", None, refused=True),
    Row("(?i-s", "a", None, refused=True),
    Row("(?i:a", "a", None, refused=True),
    # Duplicate group names
    Row(r"(?:(?<x>a)|(?<x>b))\k<x>", "aa", (0, 2)),
    Row(r"(?:(?<x>a)|(?<x>b))\k<x>", "bb", (0, 2)),
    Row(r"(?:(?<x>a)|(?<x>b))\k<x>", "ab", None),
    Row(r"(?:(?<x>a)|(?<x>b)|c)\k<x>d", "cd", (0, 2)),
    Row(r"(?:(?:(?<x>a)|(?<x>b)|c)\k<x>){2}", "aac", (0, 3)),
    Row(r"(?:(?:(?<x>a)|(?<x>b))\k<x>){2}", "aabb", (0, 4)),
    Row(r"(?:(?<x>a)|(?<x>b))*\k<x>$", "abb", (0, 3)),
    Row(r"\k<x>(?:(?<x>a)|(?<x>b))", "a", (0, 1)),
    Row(r"(?<=\k<x>(?:(?<x>a)|(?<x>b)))c", "bbc", (2, 3)),
    Row("(?<x>a)|(?:(?<x>b)|c)", "c", (0, 1)),
    Row("(?<x>a)|(?<x>b)(?<x>c)", "a", None, refused=True),
    Row("(?:(?<x>a)|b)(?<x>c)", "a", None, refused=True),
    Row("(?<x>(?:a|(?<x>b)))", "a", None, refused=True),
]
"""Worked out by hand from ECMA-262, edition 16."""

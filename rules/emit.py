"""Writes a tree in the syntax of the `regex` package, with the meaning that it has.

The engine compiles what `to_regex` returns where no automaton can run the tree, and runs
it over the units of a text (`units`). Verdict and span are those of JavaScript: classes are
explicit ranges, a group that did not capture matches the empty text, every iteration
forgets what its groups captured before. What `regex` cannot express is refused; nothing is
silently different.
"""

from collections.abc import Iterator

from midstream.rules.back_references import (
    captured_groups,
    certain_groups,
    live_groups,
    uncertain_groups,
    without_dead_references,
)
from midstream.rules.character_classes import (
    LAST_CODE_POINT,
    case_variants,
    complement,
    contains,
)
from midstream.rules.code_units import code_point_offset, units
from midstream.rules.dialect_error import UntranslatableError, within_the_stack
from midstream.rules.empty_iterations import without_empty_iterations
from midstream.rules.pattern_traits import min_width, reference_widths, walk, written_out
from midstream.rules.syntax import (
    BackReference,
    Boundary,
    Chars,
    Choice,
    Empty,
    Group,
    LineEnd,
    LineStart,
    Look,
    Never,
    Node,
    Ranges,
    Repeat,
    Sequence,
    TextEnd,
    TextStart,
)

__all__ = ["MAX_COPIED_NODES", "MAX_WIDTH", "code_point_offset", "to_regex", "units"]

MAX_WIDTH = 20_000
"""The longest text that a condition may require; `regex` needs memory in proportion."""

MAX_WRITTEN_OUT = 100_000
"""How many parts `regex` may write out before it matches anything; tenths of a second."""

MAX_COPIED_NODES = 5_000
"""By how much a tree may grow; taking empty iterations out makes copies of its parts."""


@within_the_stack()
def to_regex(tree: Node) -> str:
    """The pattern for `regex.compile` (version 0, no flags) that matches as `tree` does.

    A complete pattern, not a part to be put into another one. Raises UntranslatableError, and
    DialectError where the stack does not suffice.
    """
    tree = without_dead_references(tree)
    references = reference_widths(tree)
    if any(min_width(node, references) > MAX_WIDTH for node in _wholes(tree)):
        raise UntranslatableError(
            f"a match needs more than {MAX_WIDTH} characters", "repeat less often"
        )
    limit = sum(1 for _ in walk(tree)) + MAX_COPIED_NODES
    tree = without_empty_iterations(tree)
    if any(count > limit for count, _ in enumerate(walk(tree), 1)):
        raise UntranslatableError(
            "quantifiers over parts that can be empty make the condition too large for `regex`",
            "make every repeated part match at least one character",
        )
    if written_out(tree) > MAX_WRITTEN_OUT:
        raise UntranslatableError(
            "quantifiers inside quantifiers make the condition too large for `regex`",
            "drop a level (`(?:a+)+` is `a+`), or repeat less often",
        )
    # A group that only captured in empty iterations is gone now, and so are its references.
    tree = without_dead_references(tree)
    writer = _Writer(tree)
    text = writer.write(tree, ahead=True)
    # Without Unicode, `regex` ignores the case of ASCII letters and of nothing else.
    return ("(?a)" if writer.ignores_case else "") + text


class _Writer:
    """Writes the nodes of one tree. `ahead` is False in a lookbehind, which `regex` and
    JavaScript evaluate from right to left."""

    def __init__(self, tree: Node) -> None:
        self.ignores_case = False
        self._live = live_groups(tree)
        self._fence = f"(?({_name(min(self._live))})|(?!(?!)))" if self._live else ""
        """Always true. `regex` remembers where an iteration or what follows a loop failed,
        wrongly if that depends on a group; a question about a group there stops it."""
        self._uncertain = uncertain_groups(tree)
        self._groups = [node for node in walk(tree) if isinstance(node, Group)]

    def write(self, node: Node, *, ahead: bool) -> str:
        match node:
            case Empty():
                return ""
            case Never():
                return "(?!)"
            case Chars(ranges):
                return _set(ranges)
            case Sequence(items):
                return "".join(self._item(item, ahead=ahead) for item in items)
            case Choice(options):
                return "|".join(self.write(option, ahead=ahead) for option in options)
            case Repeat():
                return self._repeat(node, ahead=ahead)
            case Group(item, number) if number in self._live:
                return f"(?P<{_name(number)}>{self.write(item, ahead=ahead)})"
            case Group(item):
                return self.write(item, ahead=ahead)
            case BackReference():
                return self._reference(node)
            case Look(item, is_ahead, negative):
                opening = ("(?" if is_ahead else "(?<") + ("!" if negative else "=")
                return f"{opening}{self.write(item, ahead=is_ahead)})"
            case TextStart():
                return r"\A"
            case TextEnd():
                return r"\Z"
            case LineStart(terminators):
                return f"(?<!{_set(complement(terminators, LAST_CODE_POINT))})"
            case LineEnd(terminators):
                return f"(?!{_set(complement(terminators, LAST_CODE_POINT))})"
            case Boundary(word, negative):
                return _boundary(_set(word), negative=negative)

    def _item(self, node: Node, *, ahead: bool) -> str:
        """`node` as a part of a sequence."""
        text = self.write(node, ahead=ahead)
        while isinstance(node, Group) and node.number not in self._live:
            node = node.item
        return f"(?:{text})" if isinstance(node, Choice) else text

    def _repeat(self, node: Repeat, *, ahead: bool) -> str:
        # A group that captures nothing matches nothing, as one that captures the empty
        # text does: so this is how an iteration forgets.
        seen = captured_groups(node.item) & self._live - certain_groups(node.item)
        forget = "".join(f"(?P<{_name(number)}>)" for number in sorted(seen))
        item = self._item(node.item, ahead=ahead)
        body = forget + item if ahead else item + forget
        if node.least == node.most == 1:
            return body
        body = self._fence + body
        if body != item or not isinstance(node.item, Chars):
            body = f"(?:{body})"
        return body + _quantifier(node) + self._fence

    def _reference(self, node: BackReference) -> str:
        name = _name(node.number)
        text = f"(?P={name})"
        if node.ignore_case and self._has_case(node.number):
            self.ignores_case = True
            text = f"(?i:{text})"
        return f"(?({name}){text})" if node.number in self._uncertain else text

    def _has_case(self, number: int) -> bool:
        """Whether group `number` can capture letters that have another case."""
        alphabet = self._alphabet(number)
        cased = [unit for unit in case_variants() if any(contains(part, unit) for part in alphabet)]
        if any(unit >= 0x80 for unit in cased):
            raise UntranslatableError(
                f"a back-reference that ignores case refers to group {number}, which can"
                " capture letters outside ASCII, where `regex` ignores case in another way",
                "capture fewer characters (`\\w+` instead of `\\S+` or `.+`), or heed case",
            )
        return bool(cased)

    def _alphabet(self, number: int) -> set[Ranges]:
        """The classes of which the text of group `number` is made."""
        alphabet: set[Ranges] = set()
        numbers = [number]
        for each in numbers:
            for group in self._groups:
                for node in walk(group.item) if group.number == each else ():
                    if isinstance(node, Chars):
                        alphabet.add(node.ranges)
                    elif isinstance(node, BackReference) and node.number not in numbers:
                        numbers.append(node.number)
        return alphabet


def _wholes(tree: Node) -> Iterator[Node]:
    """`tree`, and its parts that may need more units than `tree` does."""
    yield tree
    for node in walk(tree):
        match node:
            case Look(item) | Repeat(item, 0):
                yield item
            case Choice(options):
                yield from options
            case _:
                continue


def _name(number: int) -> str:
    return f"g{number}"


def _quantifier(node: Repeat) -> str:
    match node.least, node.most:
        case 0, None:
            text = "*"
        case 1, None:
            text = "+"
        case 0, 1:
            text = "?"
        case least, None:
            text = f"{{{least},}}"
        case least, most:
            text = f"{{{least}}}" if least == most else f"{{{least},{most}}}"
    return text if node.greedy else text + "?"


def _boundary(word: str, *, negative: bool) -> str:
    if negative:
        return f"(?:(?<={word})(?={word})|(?<!{word})(?!{word}))"
    return f"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))"


def _set(ranges: Ranges) -> str:
    """One character of `ranges`, which may be none or all."""
    if not ranges:
        return "(?!)"
    others = complement(ranges, LAST_CODE_POINT)
    if not others:
        return "(?s:.)"
    if len(others) < len(ranges):
        return f"[^{_members(others)}]"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _character(ranges[0][0])
    return f"[{_members(ranges)}]"


def _members(ranges: Ranges) -> str:
    return "".join(
        _character(first)
        if first == last
        else f"{_character(first)}{'-' if last > first + 1 else ''}{_character(last)}"
        for first, last in ranges
    )


def _character(code: int) -> str:
    """Escaped unless it is a letter or digit of ASCII or harmless everywhere."""
    character = chr(code)
    if code < 0x80 and (character.isalnum() or character in " _\"'<>=:;,/@%!`"):
        return character
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

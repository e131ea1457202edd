"""Random syntax trees, and their text in the ECMAScript dialect."""

from hypothesis import strategies as st

from midstream.rules.back_references import without_dead_references
from midstream.rules.character_classes import LINE_TERMINATORS, WORD, union
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


@st.composite
def _ranges(draw: st.DrawFn) -> Ranges:
    starts = draw(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=4))
    return union([(start, min(start + draw(st.integers(0, 40)), 0xFFFF)) for start in starts])


@st.composite
def _repeat(draw: st.DrawFn, below: st.SearchStrategy[Node]) -> Repeat:
    least = draw(st.integers(0, 2))
    more = draw(st.one_of(st.none(), st.integers(1, 2)))
    most = None if more is None else least + more
    return Repeat(draw(below), least, most, draw(st.booleans()))


_LEAVES = st.one_of(
    st.sampled_from(
        [
            Empty(),
            Never(),
            TextStart(),
            TextEnd(),
            LineStart(LINE_TERMINATORS),
            LineEnd(LINE_TERMINATORS),
            Boundary(WORD),
            Boundary(WORD, negative=True),
            Chars(((0x61, 0x61),)),
            Chars(((0x62, 0x62),)),
        ]
    ),
    _ranges().map(Chars),
    st.integers(1, 3).map(BackReference),
)


def _branches(below: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(below, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        several.map(Sequence),
        several.map(Choice),
        _repeat(below),
        below.map(lambda item: Group(item, 0)),
        st.builds(Look, below, st.booleans(), st.booleans()),
    )


def _numbered(tree: Node) -> Node:
    """`tree` with its groups numbered as they open and its references to them."""
    count = 0

    def visit(node: Node) -> Node:
        nonlocal count
        match node:
            case Group(item):
                count += 1
                number = count
                return Group(visit(item), number)
            case Sequence(items):
                return Sequence(tuple(map(visit, items)))
            case Choice(options):
                return Choice(tuple(map(visit, options)))
            case Repeat(item, least, most, greedy):
                return Repeat(visit(item), least, most, greedy)
            case Look(item, ahead, negative):
                return Look(visit(item), ahead, negative)
            case _:
                return node

    return without_dead_references(visit(tree))


trees = st.recursive(_LEAVES, _branches, max_leaves=12).map(_numbered)
"""Trees as the parser makes them: groups numbered, no dead references."""


def render(node: Node) -> str:
    """`node` in the ECMAScript dialect."""
    match node:
        case Empty():
            return "(?:)"
        case Never():
            return "[]"
        case Chars(pairs):
            return "[" + "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in pairs) + "]"
        case Sequence(items):
            return "".join(map(_item, items))
        case Choice(options):
            return "|".join(
                render(each) if isinstance(each, Sequence) else _item(each) for each in options
            )
        case Repeat(item, least, most, greedy):
            counts = f"{{{least},{'' if most is None else most}}}"
            return f"(?:{render(item)}){counts}{'' if greedy else '?'}"
        case Group(item):
            return f"({render(item)})"
        case BackReference(number):
            return f"(?:\\{number})"
        case Look(item, ahead, negative):
            return f"(?{'' if ahead else '<'}{'!' if negative else '='}{render(item)})"
        case TextStart():
            return "^"
        case TextEnd():
            return "$"
        case LineStart():
            return "(?m:^)"
        case LineEnd():
            return "(?m:$)"
        case Boundary(negative=negative):
            return r"\B" if negative else r"\b"


def _item(node: Node) -> str:
    return f"(?:{render(node)})" if isinstance(node, Sequence | Choice) else render(node)

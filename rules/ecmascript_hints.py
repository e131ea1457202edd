"""What an author probably meant who wrote another dialect's syntax into a condition.

Only sentences: `ecmascript.py` decides what is valid and what it means. Two kinds: the
mend of an error, and the warning about something that is valid here with another meaning.
"""

import re

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

_GROUP_MENDS = (
    ("(?P<", "write `(?<name>...)`"),
    ("(?P=", "write `\\k<name>`"),
    ("(?#", "comments do not exist in this dialect: remove it"),
    ("(?>", "atomic groups do not exist in this dialect: write `(?=(...))\\1`, or `(?:...)`"),
    ("(?|", "branch reset does not exist in this dialect: number the groups apart"),
    ("(?(", "conditionals do not exist in this dialect: write the cases as alternatives"),
    ("(?R", "recursion does not exist in this dialect"),
    ("(?&", "recursion does not exist in this dialect"),
    ("(?'", "write `(?<name>...)`"),
)

_ESCAPES = {
    "A": "write `^`",
    "Z": "write `$`",
    "z": "write `$`",
    "G": "there is no such anchor in this dialect",
    "K": "write a lookbehind `(?<=...)`",
    "R": "write `(?:\\r\\n|[\\n\\r])`",
    "X": "there is no grapheme escape in this dialect",
    "h": "write `[ \\t]`",
    "H": "write `[^ \\t]`",
    "Q": "escape each character",
    "E": "escape each character",
    "a": "write `\\x07`",
    "e": "write `\\x1b`",
    "N": "write `.`, or the character itself",
    "p": "write the letters as ranges, or set `dialect: python`",
    "P": "write the letters as ranges, or set `dialect: python`",
    "g": "write `\\1` or `\\k<name>`",
    "L": "write the alternatives out",
    "U": "write `\\uXXXX`",
    "k": "no group has a name",
}

_POSIX_CLASSES = {
    "alpha": "A-Za-z",
    "digit": "0-9",
    "alnum": "A-Za-z0-9",
    "upper": "A-Z",
    "lower": "a-z",
    "space": "\\s",
    "blank": " \\t",
    "punct": "!-\\/:-@[-`{-~",
    "xdigit": "0-9A-Fa-f",
    "word": "\\w",
    "cntrl": "\\x00-\\x1f\\x7f",
    "print": " -~",
    "graph": "!-~",
}

POSSESSIVE_MEND = "possessive quantifiers do not exist in this dialect: remove the `+`"
REPEATED_ASSERTION_MEND = "an assertion matches no characters: remove the quantifier"
ESCAPE_IT_MEND = "escape it with a backslash if the character itself is meant"


def group_mend(opening: str) -> str:
    """What to write instead of the invalid group that starts `opening`, if it is known."""
    for prefix, mend in _GROUP_MENDS:
        if opening.startswith(prefix):
            return mend
    flags = opening.removeprefix("(?")
    if flags[:1].isdigit() or (flags[:1] in ("+", "-") and flags[1:2].isdigit()):
        return "recursion does not exist in this dialect"
    if flags[:1].isalpha() or flags.startswith("-"):
        return (
            "only i, m and s exist, as `(?ims)` at the very start of the condition"
            " or as `(?i:...)`, `(?-i:...)` around a part"
        )
    return "write `\\(\\?` for the characters themselves"


def escape_warning(letter: str, rest: str) -> str:
    """What to know about the identity escape of `letter` followed by `rest`; mostly nothing."""
    if letter in ("u", "x") and rest.startswith("{"):
        return (
            f"`\\{letter}{{` is the letter {letter} and then a brace; write `\\uXXXX`"
            " (two of them for a character above U+FFFF), or the character itself"
        )
    mend = _ESCAPES.get(letter)
    return f"`\\{letter}` is the letter {letter} in this dialect; {mend}" if mend else ""


def posix_class_warning(rest: str) -> str:
    """What to know about a class whose text goes on with `rest`, if that is `[:name:]`."""
    name, found, _ = rest.removeprefix("[:").partition(":]")
    if not rest.startswith("[:") or not found:
        return ""
    inside = _POSIX_CLASSES.get(name.removeprefix("^"))
    if inside is None:
        return ""
    return (
        f"`[:{name}:]` is not a class in this dialect but these characters, and its `]` ends"
        f" the class; write `{inside}` inside the brackets"
    )


def astral_class_warning(source: str) -> str:
    """What to know about a class, if its `source` holds a character above U+FFFF."""
    pair = _PAIR.search(source)
    if pair is None:
        return ""
    return (
        f"`{_whole(pair[0])}` is two units, and a class matches one of them;"
        f" write `(?:{_whole(pair[0])}|...)`"
    )


def astral_quantifier_warning(before: str) -> str:
    """What to know about a quantifier, if the two units `before` it are one character."""
    if not _PAIR.fullmatch(before):
        return ""
    character = _whole(before)
    return (
        f"`{character}` is two units, and the quantifier repeats the second only;"
        f" write `(?:{character})`"
    )


def literal_brace_warning(rest: str) -> str:
    """What to know about a literal brace that goes on with `rest`, if it looks like `{,3}`."""
    most, found, _ = rest.removeprefix("{,").partition("}")
    if not rest.startswith("{,") or not found or not most.isdigit():
        return ""
    return f"`{{,{most}}}` is literal text in this dialect; write `{{0,{most}}}`"


def _whole(pair: str) -> str:
    return pair.encode("utf-16-le", "surrogatepass").decode("utf-16-le")

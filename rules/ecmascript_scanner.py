"""A place in the text of an ECMAScript pattern, and what must be known before it is read.

Whether `\\2` is a reference or an octal escape, and whether `\\k` is a reference or a letter,
depends on groups that may come later. So the scanner surveys the groups first; then
`ecmascript.py` and `ecmascript_atoms.py` move it through the text once.
"""

import re

import msgspec
import regex

from midstream.rules.code_units import code_point_offset, units
from midstream.rules.dialect_error import DialectError

_NAME = regex.compile(r"[$_\p{ID_Start}][$\u200c\u200d\p{ID_Continue}]*")
_NAME_ESCAPE = re.compile(r"\\u(?:([0-9A-Fa-f]{4})|\{([0-9A-Fa-f]+)\})")


class Flags(msgspec.Struct, frozen=True):
    """The flags in force at one place of a pattern."""

    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False


class Scanner:
    """A cursor over `pattern`, of which the first `skipped` characters are already read."""

    def __init__(self, pattern: str, skipped: int) -> None:
        self.text = units(pattern[skipped:])
        self.at = 0
        self.warnings: list[str] = []
        self._skipped = skipped
        self.group_count, self.group_names = self._survey()

    def more(self) -> bool:
        return self.at < len(self.text)

    def peek(self, ahead: int = 0) -> str:
        """The unit `ahead` of here, or "" behind the end."""
        return self.text[self.at + ahead : self.at + ahead + 1]

    def starts(self, prefix: str) -> bool:
        return self.text.startswith(prefix, self.at)

    def take(self, prefix: str) -> bool:
        """Move over `prefix` if the text goes on with it."""
        found = self.starts(prefix)
        if found:
            self.at += len(prefix)
        return found

    def error(self, reason: str, mend: str = "", at: int | None = None) -> DialectError:
        return DialectError(self._position(self.at if at is None else at), reason, mend)

    def warn(self, sentence: str, at: int | None = None) -> None:
        """Note `sentence` for the author; an empty one is no warning."""
        if sentence:
            position = self._position(self.at if at is None else at)
            self.warnings.append(f"at character {position}: {sentence}")

    def read_group_name(self) -> str:
        """The name up to and with its `>`; the `<` has been read."""
        start = self.at
        end = self.text.find(">", start)
        name = _NAME_ESCAPE.sub(_unescaped, self.text[start : max(end, start)])
        # Surrogate halves of one character, written as units or as escapes, belong together.
        name = name.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if not _NAME.fullmatch(name):
            raise self.error(
                "invalid group name",
                "a name starts with a letter, `_` or `$`, goes on with those and digits,"
                " and ends with `>`",
                start,
            )
        self.at = end + 1
        return name

    def _position(self, at: int) -> int:
        return self._skipped + code_point_offset(self.text, at)

    def _survey(self) -> tuple[int, tuple[tuple[str, int], ...]]:
        count = 0
        names: list[tuple[str, int]] = []
        in_class = False
        while self.more():
            match self.peek():
                case "\\":
                    self.at += 1
                case "[":
                    in_class = True
                case "]":
                    in_class = False
                case "(" if not in_class and self.peek(1) != "?":
                    count += 1
                case "(" if not in_class and self.starts("(?<") and self.peek(3) not in ("=", "!"):
                    count += 1
                    self.at += 3
                    names.append((self.read_group_name(), count))
                    continue
                case _:
                    pass
            self.at += 1
        self.at = 0
        return count, tuple(names)


def _unescaped(found: re.Match[str]) -> str:
    code = int(found[1] or found[2], 16)
    return chr(code) if code <= 0x10FFFF else found[0]

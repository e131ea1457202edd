"""The inside of JSON strings, decoded piece by piece, wherever the pieces were cut.

`PartialJson` owns one `StringReader` and one `SurrogateJoiner`. What they hand out is
valid Unicode: the halves of a surrogate pair are joined across any cut, and a half that
stays alone becomes U+FFFD, because a lone surrogate can be neither encoded nor matched.
"""

import re

REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")


_HEX = re.compile(r"[0-9a-fA-F]*")
_STRING_STOPS = {
    '"': re.compile(r'["\\\x00-\x1f]'),
    "'": re.compile(r"['\\\x00-\x1f]"),
}
_ESCAPES = {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}


class SurrogateJoiner:
    """Makes valid Unicode of fragments that were cut between the halves of a pair.

    Providers that count in UTF-16 cut there. A high half at the end of a fragment waits
    for the next one; what stays alone becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._high = ""

    def feed(self, text: str) -> str:
        if self._high:
            text = self._high + text
            self._high = ""
        if text.isascii() or not _SURROGATE.search(text):
            return text
        if "\ud800" <= text[-1] <= "\udbff":
            self._high = text[-1]
            text = text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def finish(self) -> str:
        lone, self._high = self._high, ""
        return REPLACEMENT if lone else ""


class StringReader:
    """The inside of one string at a time: plain runs and escapes."""

    def __init__(self) -> None:
        self.start('"')

    def start(self, quote: str) -> None:
        self._quote = quote
        self._stops = _STRING_STOPS[quote]
        self._escape = ""
        """What has come of an escape that is not complete, with its backslash."""
        self._high = 0
        """A high surrogate that waits for its low one."""
        self._told_control = False
        self._pieces: list[str] = []
        self._problems: list[tuple[int, str]] = []

    def read(self, text: str, at: int) -> tuple[int, str, bool, list[tuple[int, str]]]:
        """Where reading stopped, the decoded text, whether the string ended, problems."""
        self._pieces = []
        self._problems = []
        ended = False
        while at < len(text) and not ended:
            if self._escape:
                at = self._in_escape(text, at)
                continue
            found = self._stops.search(text, at)
            stop = found.start() if found else len(text)
            if stop > at:
                self._plain(text[at:stop])
            if not found:
                at = stop
                break
            at = stop + 1
            ended = self._at_stop(text[stop], stop)
        return at, "".join(self._pieces), ended, self._problems

    def finish(self) -> str:
        """What is left when the text ends here; half an escape says nothing."""
        lone, self._high = self._high, 0
        return REPLACEMENT if lone else ""

    def _at_stop(self, char: str, at: int) -> bool:
        if char == self._quote:
            self._pieces.append(self.finish())
            return True
        if char == "\\":
            self._escape = char
            return False
        if not self._told_control:
            self._told_control = True
            self._problems.append((at, "a control character inside a string"))
        self._plain(char)
        return False

    def _in_escape(self, text: str, at: int) -> int:
        if len(self._escape) == 1:
            return self._after_backslash(text[at], at)
        found = _HEX.match(text, at, at + 6 - len(self._escape))
        end = found.end() if found else at
        self._escape += text[at:end]
        if len(self._escape) == 6:
            self._unit(int(self._escape[2:], 16))
            self._escape = ""
        elif end < len(text):
            self._problems.append((end, "an escape that is no \\uXXXX"))
            self._plain(self._escape)
            self._escape = ""
        return end

    def _after_backslash(self, char: str, at: int) -> int:
        if char == "u":
            self._escape = "\\u"
            return at + 1
        self._escape = ""
        decoded = _ESCAPES.get(char)
        if decoded is None and char == "'":
            decoded = char
            if self._quote != char:
                self._problems.append((at, "an escaped single quote"))
        if decoded is None:
            # A path or a regex with single backslashes: both characters were meant.
            self._problems.append((at, f"an escape that does not exist: \\{char}"))
            decoded = "\\" + char
        self._plain(decoded)
        return at + 1

    def _unit(self, unit: int) -> None:
        if self._high and 0xDC00 <= unit <= 0xDFFF:
            high, self._high = self._high, 0
            self._pieces.append(chr(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00)))
        elif 0xD800 <= unit <= 0xDBFF:
            self._pieces.append(self.finish())
            self._high = unit
        else:
            self._plain(REPLACEMENT if 0xDC00 <= unit <= 0xDFFF else chr(unit))

    def _plain(self, text: str) -> None:
        if self._high:
            self._pieces.append(self.finish())
        self._pieces.append(text)

"""Finding and removing `<**...**>` markers in one text.

A *marker* is `<**`, then anything, then `**>`; it may span lines. It ends at the nearest
`**>`, except that a quoted text at the place where the grammar expects one may contain
`**>` (spec/stop_message.md 13 G1). `<**` without any later `**>` is not a marker and stays.

`scan` is the only thing that others call (`directive.py`, `directive_wire.py`). It
guarantees that no marker is left in the text that it returns, also none that the removal of
another has put together, that everything else is byte-identical but for one space or
newline where two would be left (decision 3), and that the work is proportional to the text
whatever the text.
"""

import re

import msgspec

from midstream.messages.code_span import Region, code_regions

OPENING = "<**"
ENDING = "**>"
BLANK = r"[\s\u200b\u200c\u200d\u2060\ufeff]"
"""White space and the zero-width characters that editors and chat clients slip in."""
SEPARATORS = ":：,，"
SEPARATOR = f"[{SEPARATORS}]"
QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "「": "」"}
"""Opening to closing quote (decision 2)."""
NAME = (
    "(?:"
    + "|".join(f"{opener}stopMessage{closer}" for opener, closer in QUOTES.items())
    + "|stopMessage)"
)

_HEAD = re.compile(f"{BLANK}*(?:{NAME}{BLANK}*{SEPARATOR}{BLANK}*)?", re.IGNORECASE)
_AFTER_QUOTE = re.compile(rf"{BLANK}*(?:{SEPARATOR}|\*\*>)")
_ESCAPE_OR_CLOSE = {
    closer: re.compile(rf"\\.|{re.escape(closer)}", re.DOTALL) for closer in QUOTES.values()
}


class Marker(msgspec.Struct, frozen=True):
    """One marker as it was found; `body` is what stood between `<**` and `**>`.

    An `inert` marker is removed but never executed: it stands in code (decision 4), or the
    removal of another marker put it together.
    """

    body: str
    inert: bool


class Scan(msgspec.Struct, frozen=True):
    """What `scan` found: the text without its markers, and the markers in order."""

    text: str
    markers: tuple[Marker, ...]


def scan(text: str, *, keep_in_code: bool = False) -> Scan:
    """Take every marker out of `text`.

    With `keep_in_code` a marker that lies wholly within a code region stays where it is
    and is not reported.
    """
    if OPENING not in text:
        return Scan(text, ())
    return _Scanner(text, keep_in_code).run()


class _Scanner:
    """One pass over one text. `out` is what remains so far; nothing is read twice."""

    def __init__(self, text: str, keep_in_code: bool) -> None:
        self.text = text
        self.keep_in_code = keep_in_code
        self.last_ending = text.rfind(ENDING)
        self.regions = code_regions(text)
        self.region_index = 0
        self.closes: dict[str, tuple[int, int]] = {}
        self.closes_value: dict[int, bool] = {}
        self.out: list[str] = []
        self.markers: list[Marker] = []

    def run(self) -> Scan:
        position = 0
        while (opening := self.text.find(OPENING, position)) >= 0:
            body_start = opening + len(OPENING)
            ending = self._ending(body_start)
            if ending < 0:
                break
            end = ending + len(ENDING)
            region = self._region_at(opening)
            if region and self.keep_in_code and end <= region[1]:
                self._keep(position, end)
                position = end
                continue
            self._keep(position, opening)
            self.markers.append(Marker(self.text[body_start:ending], inert=region is not None))
            position = self._join(end)
        self._keep(position, len(self.text))
        return Scan("".join(self.out), tuple(self.markers))

    def _ending(self, body_start: int) -> int:
        """Offset of the `**>` that ends the marker whose body begins here, or -1."""
        if body_start > self.last_ending:
            return -1
        nearest = self.text.find(ENDING, body_start)
        head = _HEAD.match(self.text, body_start)
        quote = head.end() if head else body_start
        closer = QUOTES.get(self.text[quote : quote + 1])
        if closer is None or quote >= nearest:
            return nearest
        close = self._first_close(closer, quote + 1)
        if close < nearest or close >= self.last_ending:
            return nearest
        if close not in self.closes_value:
            self.closes_value[close] = _AFTER_QUOTE.match(self.text, close + 1) is not None
        return self.text.find(ENDING, close + 1) if self.closes_value[close] else nearest

    def _first_close(self, closer: str, start: int) -> int:
        """Offset of the first unescaped `closer` at or after `start`, or -1.

        Remembered for each closing quote: later openings ask from further right, and the
        answer holds for all of them up to the quote itself. Hence linear work in all.
        """
        known_from, found = self.closes.get(closer, (len(self.text) + 1, -1))
        if known_from <= start and (found < 0 or start <= found):
            return found
        pattern = _ESCAPE_OR_CLOSE[closer]
        found, position = -1, start
        while match := pattern.search(self.text, position):
            if match[0] == closer:
                found = match.start()
                break
            position = match.end()
        self.closes[closer] = (start, found)
        return found

    def _region_at(self, offset: int) -> Region | None:
        regions = self.regions
        while self.region_index < len(regions) and regions[self.region_index][1] <= offset:
            self.region_index += 1
        if self.region_index < len(regions) and regions[self.region_index][0] <= offset:
            return regions[self.region_index]
        return None

    def _join(self, position: int) -> int:
        """Close the gap that a removed marker left before `position`; where to read on.

        The two sides may form a new marker (`<<**a**>**b**>`); it is removed as well.
        """
        while True:
            width = self._formed_opening(position)
            if not width:
                break
            body_start = position + len(OPENING) - width
            if body_start > self.last_ending:
                break
            ending = self.text.find(ENDING, body_start)
            self._drop_tail(width)
            self.markers.append(Marker(self.text[body_start:ending], inert=True))
            position = ending + len(ENDING)
        return position + self._surplus_width(position)

    def _formed_opening(self, position: int) -> int:
        """How many characters before the gap and what follows make `<**`; 0 for none."""
        tail = self._tail()
        if tail.endswith("<*") and self.text.startswith("*", position):
            return 2
        if tail.endswith("<") and self.text.startswith("**", position):
            return 1
        return 0

    def _surplus_width(self, position: int) -> int:
        tail = self._tail()
        if tail.endswith(" ") and self.text.startswith(" ", position):
            return 1
        if tail.endswith("\n"):
            for newline in ("\r\n", "\n"):
                if self.text.startswith(newline, position):
                    return len(newline)
        return 0

    def _keep(self, start: int, end: int) -> None:
        if start < end:
            self.out.append(self.text[start:end])

    def _tail(self) -> str:
        """The last two characters of what remains so far."""
        tail = ""
        for piece in reversed(self.out):
            tail = piece[-2:] + tail
            if len(tail) >= 2:
                break
        return tail[-2:]

    def _drop_tail(self, width: int) -> None:
        while width:
            piece = self.out.pop()
            if len(piece) > width:
                self.out.append(piece[:-width])
            width -= min(width, len(piece))

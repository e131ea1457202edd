"""Where the code is in a text that a person wrote: fenced blocks and backtick spans.

`marker.py` asks, because a directive inside a code sample is somebody's example and not an
order (spec/stop_message.md 2.1). The rules are CommonMark's, simplified to what can be told
without parsing lists and quotes: a fence may be indented or quoted, a span ends within its
paragraph. The work is proportional to the text.
"""

import re

Region = tuple[int, int]
"""Start and end offsets in characters, the end excluded."""

_FENCE = re.compile(r"^[ \t>]*(?P<marks>`{3,}|~{3,})(?P<info>[^\n]*)$", re.MULTILINE)
_RUN_OR_BLANK_LINE = re.compile(r"(?P<run>`+)|\n[ \t\r]*(?=\n)")


def code_regions(text: str) -> list[Region]:
    """The fenced blocks and backtick spans of `text`, disjoint and in order."""
    if "`" not in text and "~~~" not in text:
        return []
    fences = _fenced(text)
    regions: list[Region] = []
    position = 0
    for start, end in [*fences, (len(text), len(text))]:
        regions.extend(_spans(text, position, start))
        regions.append((start, end))
        position = end
    return regions[:-1]


def _fenced(text: str) -> list[Region]:
    """Blocks between a fence and its closing fence; without one, to the end of the text."""
    blocks: list[Region] = []
    opened: re.Match[str] | None = None
    for line in _FENCE.finditer(text):
        marks, info = line["marks"], line["info"]
        if opened is None:
            if marks[0] == "~" or "`" not in info:
                opened = line
        elif marks[0] == opened["marks"][0] and len(marks) >= len(opened["marks"]):
            if info.strip():
                continue
            blocks.append((opened.start(), line.end()))
            opened = None
    if opened is not None:
        blocks.append((opened.start(), len(text)))
    return blocks


def _spans(text: str, start: int, end: int) -> list[Region]:
    """Backtick spans between two offsets: a run of n backticks up to the next run of n."""
    spans: list[Region] = []
    paragraph: list[Region] = []
    for match in _RUN_OR_BLANK_LINE.finditer(text, start, end):
        if match["run"]:
            paragraph.append(match.span())
        else:
            spans.extend(_paired(text, paragraph))
            paragraph = []
    spans.extend(_paired(text, paragraph))
    return spans


def _paired(text: str, runs: list[Region]) -> list[Region]:
    closing: list[int | None] = [None] * len(runs)
    next_of_length: dict[int, int] = {}
    for index in range(len(runs) - 1, -1, -1):
        length = runs[index][1] - runs[index][0]
        closing[index] = next_of_length.get(length)
        next_of_length[length] = index
    spans: list[Region] = []
    index = 0
    while index < len(runs):
        start = runs[index][0]
        closer = closing[index]
        if closer is None or text[start - 1 : start] == "\\":
            index += 1
            continue
        spans.append((start, runs[closer][1]))
        index = closer + 1
    return spans

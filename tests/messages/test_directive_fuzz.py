"""Random directive texts: no crash, and nothing of a directive reaches a provider.

`MIDSTREAM_FUZZ=100000` tries more of them.
"""

import os
import re
from random import Random

from midstream.messages.arming import apply_directives
from midstream.messages.conversation import UserItem
from midstream.messages.directive import read_text
from midstream.messages.directive_items import take_directives
from midstream.messages.segments import parse_flat

CASES = int(os.environ.get("MIDSTREAM_FUZZ", "4000"))
PIECES = (
    "<**", "**>", "stopMessage", "stopmessage:", '"', "'", "“", "”", "「", "」", ",", "，", ":",
    "：", "clear", "on", "auto", "3", "-1", "12abc", "ai:on", "file://", "\\", "\\\"", "```", "~~~",
    "`", "\n", " ", "\u200b", "\ufeff", "go on", "继续", "@src/a.py", '@"a b"', "@", "..", "/",
    "*", "<", ">", "😀", "x", "**", "<*", "*>",
)  # fmt: skip
MARKER = re.compile(r"<\*\*[\s\S]*?\*\*>")


def random_text(random: Random) -> str:
    pieces = [random.choice(PIECES) for _ in range(random.randint(0, 24))]
    if random.random() < 0.5:
        places = sorted(random.randint(0, len(pieces)) for _ in range(2))
        pieces.insert(places[1], "**>")
        pieces.insert(places[0], random.choice(("<**", "<**stopMessage:", '<**stopmessage:"')))
    return "".join(pieces)


def test_no_random_text_crashes_or_leaks_a_marker() -> None:
    random = Random(2026)
    marked = 0
    for case in range(CASES):
        text = random_text(random)
        marked += MARKER.search(text) is not None
        assert not MARKER.search(read_text(text).text), f"case {case}: {text!r}"
        items = tuple(UserItem(random_text(random)) for _ in range(random.randint(1, 3)))
        taken = take_directives(items)
        kept = [item.text for item in taken.items if isinstance(item, UserItem)]
        assert not any(MARKER.search(text) for text in kept), f"case {case}: {items!r}"
        apply_directives(None, taken.found, now_ms=case, has_session=True)
        parse_flat(text, lambda path: random.random() < 0.5)
    assert marked > CASES // 3, "the texts have to hold something to strip"

"""What has to be on the screen of a client: a fold over events, to hold a host against."""

from collections.abc import Iterable

from midstream.messages.events import Retracted, SessionEvent, Text


def visible_text(events: Iterable[SessionEvent]) -> str:
    """The model's prose without the attempts that were retracted."""
    texts: dict[int, str] = {}
    for event in events:
        match event.event:
            case Text(attempt, text):
                texts[attempt] = texts.get(attempt, "") + text
            case Retracted(attempt):
                texts.pop(attempt, None)
            case _:
                pass
    return "".join(texts[attempt] for attempt in sorted(texts))

"""The end of a text of any length, in bounded memory."""


class TextTail:
    """Keeps the last `limit_chars` characters of UTF-8 bytes that arrive cut anywhere.

    Bytes that are no UTF-8 become U+FFFD; no character is ever cut (spec/animator.md 14.17).
    """

    def __init__(self, limit_chars: int) -> None:
        self._limit_chars = limit_chars
        # A character has at most four bytes; one more, so that a cut one falls away.
        self._limit_bytes = 4 * (limit_chars + 1)
        self._held = b""

    def feed(self, data: bytes) -> None:
        self._held = (self._held + data)[-self._limit_bytes :]

    @property
    def text(self) -> str:
        """What is kept, without white space around it."""
        if self._limit_chars <= 0:
            return ""
        return self._held.decode("utf-8", "replace")[-self._limit_chars :].strip()

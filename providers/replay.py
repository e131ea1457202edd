"""The provider `replay`: streams that were recorded, played again.

Each stream goes through the decoder of its format, as if it came from the network. For
demonstrations, and for tests of whatever reads a stream.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from midstream.messages.conversation import ModelRequest
from midstream.messages.errors import ConfigError, StreamFormatError
from midstream.messages.stream import AnyStreamMessage
from midstream.providers.anthropic_stream import AnthropicStreamDecoder
from midstream.providers.openai_chat_stream import OpenAIChatStreamDecoder
from midstream.providers.openai_responses_stream import OpenAIResponsesStreamDecoder
from midstream.providers.provider import StreamBatches
from midstream.providers.recording import Recording, parse_recording
from midstream.providers.stream_parser import StreamParser

DECODERS = {
    "anthropic": AnthropicStreamDecoder,
    "openai_chat": OpenAIChatStreamDecoder,
    "openai_responses": OpenAIResponsesStreamDecoder,
}
"""The decoder of each wire format."""


class ReplayProvider:
    """Plays `paths` in their order, one for each `open`, and the last one from then on.

    `pace_s` is the delay before each event, in seconds. Without it, a recording that knows
    its times keeps them, and any other is played as fast as it is read. All must be of one
    format, which is found out unless `format` names it. Raises ConfigError.
    """

    def __init__(
        self,
        *paths: Path | str,
        format: str | None = None,
        pace_s: float | None = None,
        name: str = "replay",
    ) -> None:
        if not paths:
            raise ConfigError(name, "paths", "there is nothing to play")
        if format is not None and format not in DECODERS:
            mend = f"one of {', '.join(DECODERS)}"
            raise ConfigError(name, "format", f"{format!r} is unknown", mend)
        self._recordings = [_load(Path(path), name, format) for path in paths]
        formats = {recording.format for recording in self._recordings}
        if len(formats) > 1:
            raise ConfigError(name, "paths", f"more than one format: {', '.join(sorted(formats))}")
        self.name = name
        self.format = formats.pop()
        self.abort_stops_billing = True
        self._pace_s = pace_s
        self._played = 0

    @asynccontextmanager
    async def open(self, request: ModelRequest) -> AsyncGenerator[StreamBatches]:
        """Play the next recording, whatever is asked."""
        recording = self._recordings[min(self._played, len(self._recordings) - 1)]
        self._played += 1
        yield _Playback(recording, self._pace_s)

    async def aclose(self) -> None:
        """Nothing is kept between streams."""


class _Playback:
    """One stream, as an iterator of batches."""

    def __init__(self, recording: Recording, pace_s: float | None) -> None:
        self._pieces = iter(recording.pieces)
        self._parser = StreamParser(DECODERS[recording.format]())
        self._pace_s = pace_s
        self._began_at_s = trio.current_time()

    def __aiter__(self) -> "_Playback":
        return self

    async def __anext__(self) -> Sequence[AnyStreamMessage]:
        while not self._parser.over:
            piece = next(self._pieces, None)
            if piece is None:
                return self._parser.end()
            if self._pace_s is not None:
                await trio.sleep(self._pace_s)
            else:
                await trio.sleep_until(self._began_at_s + (piece.at_s or 0.0))
            if batch := self._parser.feed(piece.data):
                return batch
        raise StopAsyncIteration


def _load(path: Path, name: str, format: str | None) -> Recording:
    try:
        return parse_recording(path.read_bytes(), format)
    except OSError as error:
        raise ConfigError(name, "paths", f"{path} cannot be read: {error.strerror}") from error
    except StreamFormatError as error:
        raise ConfigError(name, "paths", f"{path}: {error}") from error

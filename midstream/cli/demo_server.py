"""A model provider on this machine, for the demo: Anthropic's Messages API over HTTP.

A real server on a real socket, so that what the demo shows is what happens with a real
provider: connection, stream, and the connection being closed in the middle of it.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from midstream.cli.demo_streams import PROMPTS, Answer, events
from midstream.doors.http import serve_http


class DemoModel:
    """Answers each prompt of the demo, every time with the next of its answers."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._asked: Counter[str] = Counter()

    async def messages(self, request: Request) -> Response:
        """POST /v1/messages."""
        prompt = _first_text(await request.json())
        answers = PROMPTS.get(prompt)
        if answers is None:
            problem = {"type": "invalid_request_error", "message": "not a prompt of the demo"}
            return JSONResponse({"type": "error", "error": problem}, status_code=400)
        number = self._asked[prompt]
        self._asked[prompt] += 1
        answer = answers[min(number, len(answers) - 1)]
        return StreamingResponse(self._paced(answer, number), media_type="text/event-stream")

    async def _paced(self, answer: Answer, number: int) -> AsyncIterator[bytes]:
        for event in events(answer, number):
            yield event
            await trio.sleep(self._pause_s)


@asynccontextmanager
async def demo_server(pause_s: float) -> AsyncGenerator[str]:
    """Serve on a free port of the loopback interface; yields the base URL."""
    model = DemoModel(pause_s)
    app = Starlette(routes=[Route("/v1/messages", model.messages, methods=["POST"])])
    async with serve_http(app, "127.0.0.1", 0) as url:
        yield url


def _first_text(body: dict[str, Any]) -> str:
    return next(_texts(body["messages"]), "")


def _texts(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            yield content
        else:
            yield from (block["text"] for block in content if block["type"] == "text")

"""A host on FastAPI, that is on asyncio: prompts by HTTP, answers as server-sent events.

    python examples/fastapi_host.py
    curl -s localhost:8000/ask -H 'content-type: application/json' -d '{"prompt": "Say hello"}'
    curl -sN localhost:8000/sessions/ses-...

It also serves a page for browsers at `/`, which talks to the websocket door
(`examples/browser`). Which model is asked is in `midstream.toml`.
"""

import argparse
import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from fastapi.staticfiles import StaticFiles
from hypercorn.asyncio import serve  # pyright: ignore[reportUnknownVariableType]  # its WSGI side
from hypercorn.config import Config
from pydantic import BaseModel

from midstream import Tool, UnknownSession
from midstream.embedding import aio

PAGE = Path(__file__).with_name("browser")


class Ask(BaseModel):
    """The body of a request to ask."""

    prompt: str
    conversation_id: str | None = None


async def deep_thought(question: str) -> str:
    """Answer a hard question, after some thought."""
    await asyncio.sleep(0.01)  # this runs in FastAPI's own loop
    return f"The answer to {question!r} is 42."


def runtime_of(request: Request) -> aio.Runtime:
    return request.app.state.runtime


Runtime = Annotated[aio.Runtime, Depends(runtime_of)]


def make_app(port: int) -> FastAPI:
    """The application; `port` is where its page is served, which the door has to know."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with aio.open_runtime() as runtime:
            origins = (f"http://localhost:{port}", f"http://127.0.0.1:{port}")
            door = msgspec.structs.replace(runtime.config.websocket, origins=origins)
            async with aio.open_websocket(runtime, door) as urls:
                app.state.runtime = runtime
                app.state.websocket = urls[0]
                yield

    app = FastAPI(title="a host of midstream", lifespan=lifespan)

    @app.post("/ask")
    async def ask(body: Ask, runtime: Runtime) -> dict[str, str]:
        handle = await runtime.animate(
            body.prompt, conversation_id=body.conversation_id, tools=[Tool(deep_thought)]
        )
        return {"session": handle.session_id, "conversation": handle.conversation_id}

    @app.get("/sessions/{session_id}")
    async def follow(session_id: str, runtime: Runtime) -> StreamingResponse:
        chunks = await runtime.follow(session_id)
        if chunks is None:
            raise HTTPException(404, f"no session {session_id} runs here")

        async def events() -> AsyncGenerator[bytes]:
            # A client that goes away ends this generator, and with it only the subscription.
            async with chunks:
                async for chunk in chunks:
                    yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.post("/sessions/{session_id}/cancel")
    async def cancel(session_id: str, runtime: Runtime) -> dict[str, str]:
        try:
            record = await runtime.cancel(session_id, "by request")
        except UnknownSession as error:
            raise HTTPException(404, str(error)) from error
        return {"status": record.status}

    @app.get("/websocket.json")
    async def websocket(request: Request) -> dict[str, str]:
        return {"url": request.app.state.websocket}

    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return app


async def main(port: int) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    app: Any = make_app(port)  # an ASGI application, which the two libraries type differently
    await serve(app, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="a host of midstream on FastAPI")
    parser.add_argument("--port", type=int, default=8000)
    asyncio.run(main(parser.parse_args().port))

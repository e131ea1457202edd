"""The pass-through that bench/gateway.py measures the gateway against, in a process of its own.

What one would write in ten lines, on the same server: Starlette's StreamingResponse over the
raw bytes of httpx2, served by Hypercorn on trio. Takes the upstream's address as its argument,
prints its port, then serves until its standard input is closed.
"""

import sys

import httpx2
import trio
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from midstream.doors.http import serve_http


def bare_app(upstream: str, client: httpx2.AsyncClient) -> Starlette:
    async def handle(request: Request) -> StreamingResponse:
        asked = client.build_request(
            "POST",
            upstream + request.url.path,
            content=await request.body(),
            headers={"content-type": "application/json"},
        )
        answer = await client.send(asked, stream=True)
        kept = {"content-type": answer.headers["content-type"]}
        ended = BackgroundTask(answer.aclose)
        return StreamingResponse(answer.aiter_raw(), answer.status_code, kept, background=ended)

    return Starlette(routes=[Route("/{path:path}", handle, methods=["POST"])])


async def main() -> None:
    limits = httpx2.Limits(max_connections=1000)
    async with (
        httpx2.AsyncClient(limits=limits, timeout=60.0) as client,
        serve_http(bare_app(sys.argv[1], client), "127.0.0.1", 0) as url,
    ):
        sys.stdout.write(f"{url.rpartition(':')[2]}\n")
        sys.stdout.flush()
        await trio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    trio.run(main)

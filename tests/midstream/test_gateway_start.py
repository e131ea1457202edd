"""The first request to a gateway pays for nothing that the start could have done.

It is seen in a process of its own: in this one everything was loaded long ago.
"""

import sys
from pathlib import Path

import msgspec
import trio

PROGRAM = r"""
import json
import sys
from pathlib import Path

import httpx2
import trio

from midstream import Config, open_runtime
from midstream.config import GatewayConfig, GatewayUpstreamConfig, StoreConfig
from midstream.gateway import open_gateway

ANSWER = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}'
ANSWER += b"\n\ndata: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "Go"}]}'
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
REQUEST += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY

made = []
create = httpx2.create_ssl_context

def counted(*arguments, **options):
    made.append(options)
    return create(*arguments, **options)

async def answer(stream):
    said = b""
    while not said.endswith(BODY):
        said += await stream.receive_some()
    await stream.send_all(HEAD % len(ANSWER) + ANSWER)
    await trio.sleep_forever()

async def ask(port):
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(REQUEST)
        return b"".join([piece async for piece in stream])

async def main():
    httpx2.create_ssl_context = counted
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer, [listener])
        address = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        gateway = GatewayConfig(port=0, upstreams={"up": GatewayUpstreamConfig(base_url=address)})
        config = Config(store=StoreConfig(path="store.sqlite3"), gateway=gateway)
        async with open_runtime(config, cwd=Path.cwd()) as runtime, open_gateway(runtime) as open:
            loaded, contexts = set(sys.modules), len(made)
            answered = b'"Hi"' in await ask(int(open.url.rpartition(":")[2]))
            late = sorted(set(sys.modules) - loaded)
        print(json.dumps({"answered": answered, "late": late, "made": [contexts, len(made)]}))
        nursery.cancel_scope.cancel()

trio.run(main)
"""


class Seen(msgspec.Struct):
    """`late` are the modules that the first request has loaded, `made` how many TLS contexts
    there were before and after it."""

    answered: bool
    late: list[str]
    made: tuple[int, int]


async def test_the_first_request_finds_everything_loaded(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with trio.fail_after(60):
        ran = await trio.run_process(
            [sys.executable, "-P", "program.py"],
            cwd=tmp_path,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr.decode()
    seen = msgspec.json.decode(ran.stdout, type=Seen)
    assert seen == Seen(answered=True, late=[], made=(1, 1))

"""The gate: who may come in over HTTP."""

import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from midstream.doors.access import is_loopback, require_token_unless_loopback
from midstream.doors.http import host_app
from midstream.messages.errors import ConfigError

JSON = {"content-type": "application/json"}


async def hello(request: Request) -> JSONResponse:
    return JSONResponse({"hello": request.method})


async def asked(
    method: str,
    headers: dict[str, str],
    token: str | None = None,
    base_url: str = "http://127.0.0.1:7471",
) -> httpx2.Response:
    app = host_app([Route("/hello", hello, methods=["GET", "POST"])], token)
    transport = httpx2.ASGITransport(app=app)  # pyright: ignore[reportArgumentType]  # an ASGI app by another name
    async with httpx2.AsyncClient(transport=transport, base_url=base_url) as client:
        return await client.request(method, "/hello", headers=headers, content=b"{}")


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:7471", "http://localhost:7471", "http://[::1]:7471", "http://a.localhost"],
)
async def test_without_a_token_this_machine_may_come_in(url: str):
    assert (await asked("GET", {}, base_url=url)).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7471", "10.0.0.7", ""])
async def test_a_name_that_only_points_here_is_kept_out(host: str):
    response = await asked("GET", {"host": host})
    assert response.status_code == 403
    assert "localhost" in response.json()["error"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7471", 200),
        ("http://127.0.0.1:9999", 403),
        ("https://evil.example", 403),
        ("null", 403),
    ],
)
async def test_pages_of_other_origins_are_kept_out(origin: str, status: int):
    assert (await asked("GET", {"origin": origin})).status_code == status


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
    ],
)
async def test_a_form_cannot_change_anything(content_type: str, status: int):
    assert (await asked("POST", {"content-type": content_type})).status_code == status


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer secret", 200),
        ("bearer secret", 200),
        ("Bearer wrong", 401),
        ("Bearer ", 401),
        ("Basic secret", 401),
        ("secret", 401),
        (None, 401),
    ],
)
async def test_where_there_is_a_token_it_is_needed(header: str | None, status: int):
    headers = {} if header is None else {"authorization": header}
    response = await asked("GET", headers, token="secret", base_url="http://host.example:7471")
    assert response.status_code == status
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
        assert "secret" not in response.text


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("x.localhost", True),
        ("0.0.0.0", False),
        ("192.168.1.2", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_what_means_this_machine_alone(host: str, loopback: bool):
    assert is_loopback(host) is loopback


def test_a_host_that_the_network_reaches_needs_a_token():
    require_token_unless_loopback("127.0.0.1", None, "TOKEN")
    require_token_unless_loopback("0.0.0.0", "secret", "TOKEN")
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 can be reached.*TOKEN"):
        require_token_unless_loopback("0.0.0.0", None, "TOKEN")


async def test_a_path_that_nobody_serves_is_answered_in_json():
    app = host_app([], None)
    transport = httpx2.ASGITransport(app=app)  # pyright: ignore[reportArgumentType]  # an ASGI app by another name
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.get("/nowhere")
    assert response.status_code == 404
    assert response.json() == {"error": "Not Found"}

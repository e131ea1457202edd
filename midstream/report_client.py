"""Reports of a session outside, sent to its host over HTTP.

What did not arrive because nobody listens, or because the connection broke, is sent again for
a while: after 1 s, doubling to 8 s, for 60 s in all. Any answer is final, a refusal too
(spec/animator.md 8). A report that comes twice is harmless, since its key is its content.
"""

import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import msgspec
import trio

from midstream.messages.session_reports import (
    AnyReport,
    HeartbeatReport,
    RecordReport,
    ReportAnswer,
    RunningReport,
)

_log = logging.getLogger("midstream.babysitter")

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 8.0
RETRY_S = 60.0
ANSWER_S = 10.0
"""How long the host may take to answer one request."""

PATHS: dict[type[AnyReport], str] = {
    RunningReport: "/api/session/running",
    HeartbeatReport: "/api/session/heartbeat",
    RecordReport: "/api/session/record",
}


class ReportClient:
    """Sends the reports of one session. Made by `open_report_client`."""

    def __init__(self, client: httpx2.AsyncClient, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    async def send(self, report: AnyReport, *, retry_s: float = RETRY_S) -> ReportAnswer | None:
        """Send a report, again for `retry_s` seconds if it does not arrive; 0 sends it once.

        Returns the host's answer, or None where there is none or it cannot be read.
        """
        give_up_at = trio.current_time() + retry_s
        delay_s = FIRST_DELAY_S
        while True:
            try:
                return await self._post(report)
            except httpx2.TransportError as error:
                _log.info("%s did not arrive: %s", PATHS[type(report)], error)
            if trio.current_time() + delay_s > give_up_at:
                return None
            await trio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)

    async def _post(self, report: AnyReport) -> ReportAnswer | None:
        response = await self._client.post(
            PATHS[type(report)],
            content=msgspec.json.encode(report),
            headers={"content-type": "application/json", "x-session-id": self._session_id},
        )
        try:
            return msgspec.json.decode(response.content, type=ReportAnswer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            _log.warning(
                "%s was answered with HTTP %d and no answer",
                PATHS[type(report)],
                response.status_code,
            )
            return None


@asynccontextmanager
async def open_report_client(
    url: str, session_id: str, token: str | None = None
) -> AsyncGenerator[ReportClient]:
    """A client for the host at `url`. Proxies of the environment are not asked."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    verify = ssl.create_default_context() if url.startswith("https:") else False
    async with httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=ANSWER_S, trust_env=False, verify=verify
    ) as client:
        yield ReportClient(client, session_id)

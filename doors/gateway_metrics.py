"""What the gateway counts, in the form of Prometheus, and the routes that show it.

`GatewayMetrics` is told of each watched request when it is over; `/metrics` and `/healthz`
read. One registry for each gateway, so that two in one process do not mix.
"""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from midstream.doors.gateway_request import Finished


class GatewayMetrics:
    """See the module."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "midstream_gateway_requests",
            "Watched requests that are over.",
            ("upstream", "protocol", "status"),
            registry=self.registry,
        )
        self._retries = Counter(
            "midstream_gateway_retries",
            "Attempts that were made because a rule cut the one before.",
            ("upstream",),
            registry=self.registry,
        )
        self._follow_ups = Counter(
            "midstream_gateway_follow_ups",
            "Automatic continuations of replies that had stopped.",
            ("upstream",),
            registry=self.registry,
        )
        self._verdicts = Counter(
            "midstream_gateway_verdicts",
            "What was done about matches of rules.",
            ("rule", "action"),
            registry=self.registry,
        )
        self._tokens = Counter(
            "midstream_gateway_tokens",
            "Tokens of all attempts, as reported or estimated.",
            ("upstream", "direction"),
            registry=self.registry,
        )

    def count(self, finished: Finished) -> None:
        """A request is over."""
        exchange, upstream = finished.exchange, finished.begun.upstream
        self._requests.labels(upstream, finished.begun.wire.format, finished.status.value).inc()
        self._retries.labels(upstream).inc(exchange.retries)
        self._follow_ups.labels(upstream).inc(exchange.follow_ups)
        for verdict in exchange.verdicts:
            self._verdicts.labels(verdict.rule, verdict.action.value).inc()
        self._tokens.labels(upstream, "input").inc(exchange.usage.input_tokens or 0)
        self._tokens.labels(upstream, "output").inc(exchange.usage.output_tokens or 0)

    def routes(self) -> list[Route]:
        return [Route("/healthz", _healthy), Route("/metrics", self._show)]

    async def _show(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


async def _healthy(request: Request) -> Response:
    return JSONResponse({"status": "ok"})

"""What `midstream serve` answers over HTTP."""

from starlette.routing import Route

from midstream.doors.animator_routes import animator_routes
from midstream.doors.session_routes import session_routes
from midstream.runtime import Runtime


def routes_of(runtime: Runtime) -> list[Route]:
    """All routes of a host."""
    return [
        *session_routes(runtime.sessions),
        *animator_routes(runtime.sessions, runtime.follow, runtime.replay),
    ]

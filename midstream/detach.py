"""Starting a session outside: a babysitter that outlives whoever asks for it."""

import os
import sys

import msgspec
import trio

from midstream.babysitter_config import BabysitterConfig
from midstream.messages.errors import MidstreamError
from midstream.providers.child_process import MARK


class NotDetached(MidstreamError):
    """The babysitter did not start; the message is what it said."""


async def start_babysitter(config: BabysitterConfig) -> int:
    """Start the babysitter of a session and return its pid. It has left this process then.

    It inherits the environment, but not the mark by which children of midstream end with
    their stream: a session outside goes on. Raises `NotDetached`.
    """
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    # -P: the directory of the caller must not be where its modules come from.
    started = await trio.run_process(
        [sys.executable, "-P", "-m", "midstream.babysitter"],
        stdin=msgspec.json.encode(config),
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=environment,
        start_new_session=True,
    )
    if started.returncode != 0:
        said = started.stderr.decode("utf-8", "replace").strip()
        raise NotDetached(said.removeprefix("midstream: ") or "the babysitter did not start")
    return int(started.stdout)

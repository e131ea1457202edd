"""A script with threads: several prompts at once, each with a tool and a time limit.

    python examples/threads_script.py "first prompt" "second prompt"

Nothing in it is async. Which model is asked is in `midstream.toml`.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from midstream import SessionStatus, Text, Tool
from midstream.embedding import sync

PATIENCE_S = 60.0
"""Without a word for so long, a session is stopped."""


def clock(zone: str = "UTC") -> str:
    """Tell the time of day in a time zone."""
    return f"{time.strftime('%H:%M', time.gmtime())} in {zone}"


def ask(runtime: sync.Runtime, prompt: str) -> str:
    """The answer to one prompt."""
    handle = runtime.animate(prompt, tools=[Tool(clock)])
    words = 0
    try:
        for chunk in handle.chunks.within(PATIENCE_S):
            words += isinstance(chunk, Text)
    except TimeoutError:
        handle.interrupt()
    ended = handle.result(timeout_s=PATIENCE_S)
    good = ended.status is SessionStatus.COMPLETED
    return f"{prompt!r}: {ended.output if good else ended.reason} ({words} pieces)"


def main(prompts: list[str]) -> None:
    with sync.open_runtime() as runtime, ThreadPoolExecutor() as pool:
        for answer in pool.map(partial(ask, runtime), prompts):
            print(answer)


if __name__ == "__main__":
    main(sys.argv[1:] or ["Say hello", "What time is it?"])

"""`--watch`: look again every second, and show what has changed, until Ctrl-C.

On a terminal the view is drawn in place; elsewhere each change is one line, and with
`--json` one JSON object, so that a program can follow.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import trio
from rich.console import Console, RenderableType
from rich.live import Live

PERIOD_S = 1.0

UNCUT_CHARS = 1_000
"""The width of a page that nobody looks at in a terminal."""


class View(Protocol):
    """What is shown at one moment."""

    def render(self) -> RenderableType:
        """For a terminal."""
        ...

    def lines(self, *, json: bool) -> Mapping[str, str]:
        """For a program, or a file: the lines, each under a name that lasts."""
        ...

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        ...


async def show(console: Console, view: View, *, json: bool) -> None:
    """Show it once."""
    if json:
        _print_lines(console, list(view.lines(json=True).values()))
        return
    if not console.is_terminal:
        console.width = UNCUT_CHARS
    console.print(view.render())


async def watch(console: Console, look: Callable[[], Awaitable[View]], *, json: bool) -> None:
    """Show it until it is final, or Ctrl-C, which is no failure here."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on_signal, signals, nursery.cancel_scope)
            if json or not console.is_terminal:
                await _follow_lines(console, look, json=json)
            else:
                await _redraw(console, look)
            nursery.cancel_scope.cancel()


async def _redraw(console: Console, look: Callable[[], Awaitable[View]]) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            view = await look()
            live.update(view.render(), refresh=True)
            if view.is_final:
                return
            await trio.sleep(PERIOD_S)


async def _follow_lines(
    console: Console, look: Callable[[], Awaitable[View]], *, json: bool
) -> None:
    shown: Mapping[str, str] = {}
    while True:
        view = await look()
        lines = view.lines(json=json)
        _print_lines(console, [line for key, line in lines.items() if shown.get(key) != line])
        shown = lines
        if view.is_final:
            return
        await trio.sleep(PERIOD_S)


async def _end_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.file.write(line + "\n")
    console.file.flush()

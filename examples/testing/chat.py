"""A small host: a chat window that asks on by itself when an answer was cut short.

Its promise: once the user has pressed Stop, nothing is asked any more, and nothing that was
taken back stays on the screen. `test_chat.py` holds it to that.
"""

import trio

from midstream import Retracted, Runtime, SessionEnded, SessionStatus, Text

PAUSE_S = 0.1
"""Seconds in which the user can say no before the chat asks on."""


class Chat:
    """One conversation. `screen` is what the user sees: one line for each answer."""

    def __init__(self, runtime: Runtime) -> None:
        self.screen: list[str] = []
        self._runtime = runtime
        self._conversation: str | None = None
        self._live: set[str] = set()
        self._stops = 0

    async def ask(self, prompt: str) -> None:
        """Ask, show the answer while it is written, and ask on while it ends with dots."""
        stops = self._stops
        while True:
            answer = await self._show_answer(prompt)
            if not answer.endswith("..."):
                return
            await trio.sleep(PAUSE_S)
            # A stop is an epoch: whatever was planned before it, does not happen.
            if stops != self._stops:
                return
            prompt = "go on"

    async def stop(self) -> None:
        """Stop at once: what is being said, and what was going to be asked."""
        self._stops += 1
        for session_id in tuple(self._live):
            handle = self._runtime.handle(session_id)
            if handle is not None:
                await handle.interrupt()

    async def _show_answer(self, prompt: str) -> str:
        handle = self._runtime.animate(prompt, conversation_id=self._conversation)
        self._conversation = handle.conversation_id
        self._live.add(handle.session_id)
        self.screen.append("")
        try:
            async for event in handle.events():
                match event.event:
                    case Retracted():
                        self.screen[-1] = ""
                    case Text(text=text):
                        self.screen[-1] += text
                    case SessionEnded(status=SessionStatus.COMPLETED, output=output):
                        return output
                    case _:
                        pass
        finally:
            self._live.discard(handle.session_id)
        return ""

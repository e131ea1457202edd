"""What the gateway remembers between the requests of one client session: reminders.

A match that does not interrupt is told to the model with what the client sends next
(spec/ttsr.md 4.5, 4.6): in the result of the call that it is about, each time the client
sends that result, or, for prose, once behind its next request. The client's own conversation
never holds a reminder; here it is known which ones the model has. Sessions that were not
heard of for long are forgotten.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from midstream.doors.gateway_wire import Json, Wire
from midstream.messages.conversation import ReminderItem
from midstream.messages.session_identity import identify_session
from midstream.messages.verdict import Verdict, VerdictAction
from midstream.messages.wire_body import messages_key
from midstream.providers.json_fields import list_of, object_of
from midstream.rules.reminder import render

SESSIONS_LIMIT = 2_000
REMINDERS_LIMIT = 200
"""For calls of one session; the oldest are forgotten, and their results go as they are."""

_RESULTS = {"tool_result": "tool_use_id", "function_call_output": "call_id"}
"""By the type of a block or item that is a call's result, the key of the call's id."""


class _Session:
    """The reminders of one session; those for prose wait for its next request."""

    def __init__(self) -> None:
        self.by_call: OrderedDict[str, list[tuple[Verdict, int]]] = OrderedDict()
        self.waiting: list[Verdict] = []


class GatewaySessions:
    """See the module. `cwd` and `home` shorten paths in reminders."""

    def __init__(self, cwd: str = "", home: str = "") -> None:
        self._cwd = cwd
        self._home = home
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def prepare(self, wire: Wire, key: str, body: Json) -> tuple[Json, dict[str, int]]:
        """The request with the reminders that belong into it, and the rules of those, with
        the turn of each. The very same body where there are none."""
        session = self._sessions.get(key)
        if session is None:
            return body, {}
        self._sessions.move_to_end(key)
        recorded: dict[str, int] = {}
        name = messages_key(body)
        entries = list_of(body.get(name)) if name else []
        told = [self._told(entry, session, recorded) for entry in entries]
        if name and any(new is not old for new, old in zip(told, entries, strict=True)):
            body = {**body, name: told}
        if session.waiting:
            waiting, session.waiting = session.waiting, []
            rules = tuple(dict.fromkeys(verdict.rule for verdict in waiting))
            text = render(waiting, cwd=self._cwd, home=self._home)
            body = wire.continued(body, [ReminderItem(text, rules, interrupted=False)])
        return body, recorded

    def learn(self, key: str, verdicts: Sequence[Verdict], turn: int) -> None:
        """Keep the reminders of an answer that went out."""
        if not verdicts:
            return
        session = self._sessions.setdefault(key, _Session())
        self._sessions.move_to_end(key)
        while len(self._sessions) > SESSIONS_LIMIT:
            self._sessions.popitem(last=False)
        for verdict in verdicts:
            if verdict.action is VerdictAction.FOLD and verdict.call_id:
                session.by_call.setdefault(verdict.call_id, []).append((verdict, turn))
            else:
                session.waiting.append(verdict)
        while len(session.by_call) > REMINDERS_LIMIT:
            session.by_call.popitem(last=False)

    def _told(self, entry: Any, session: _Session, recorded: dict[str, int]) -> Any:
        """A message with reminders in front of the results that it holds."""
        fields = object_of(entry)
        if fields.get("role") == "tool":
            return self._in_result(entry, fields.get("tool_call_id"), "content", session, recorded)
        if id_key := _RESULTS.get(str(fields.get("type"))):
            return self._in_result(entry, fields.get(id_key), "output", session, recorded)
        blocks = list_of(fields.get("content"))
        if not any(object_of(block).get("type") == "tool_result" for block in blocks):
            return entry
        told = [
            self._in_result(block, block.get("tool_use_id"), "content", session, recorded)
            if object_of(block).get("type") == "tool_result"
            else block
            for block in blocks
        ]
        changed = any(new is not old for new, old in zip(told, blocks, strict=True))
        return {**fields, "content": told} if changed else entry

    def _in_result(
        self, result: Json, call_id: Any, where: str, session: _Session, recorded: dict[str, int]
    ) -> Json:
        known = session.by_call.get(call_id) if isinstance(call_id, str) else None
        if not known:
            return result
        recorded.update({verdict.rule: turn for verdict, turn in known})
        text = render([verdict for verdict, _ in known], cwd=self._cwd, home=self._home)
        content: object = result.get(where)
        if parts := list_of(content):
            kind = "input_text" if where == "output" else "text"
            return {**result, where: [{"type": kind, "text": text}, *parts]}
        return {**result, where: f"{text}\n\n{content}" if content else text}


def session_key(headers: Mapping[str, str], body: Json) -> str:
    """The session of a request: as the client names it, else by how its conversation began."""
    identity = identify_session(headers, body)
    if identity is not None:
        return identity.session_id
    name = messages_key(body)
    conversation: Any = body.get(name) if name else None
    beginning: object = list_of(conversation)[:2] or conversation
    opening = [body.get("system"), body.get("instructions"), beginning]
    return blake2b(msgspec.json.encode(opening), digest_size=16).hexdigest()

"""Whether the directives of a message count, and what they make of the stopMessage state.

The session (and the gateway, for each request) calls `apply_directives` with what
`take_directives` or `read_body` found. Only what is new counts: a conversation is sent
again with every hop of a tool loop, and a directive in it must not re-arm each time, or N
would never be reached (spec/stop_message.md decision 1, G12). Pure.
"""

from collections.abc import Mapping

import msgspec

from midstream.messages.directive import (
    AnyDirective,
    ClearAll,
    ClearStopMessage,
    SetFile,
    SetMode,
    SetText,
)
from midstream.messages.directive_items import FoundDirectives
from midstream.messages.errors import MidstreamError
from midstream.messages.stop_message import (
    Source,
    StopMessageState,
    clear,
    set_mode,
    set_text,
)


class SessionScopeMissing(MidstreamError):
    """A stopMessage was set without a session to remember it for (strict mode only)."""


class Applied(msgspec.Struct, frozen=True):
    """What the directives of a message made of the state.

    `is_kept` is False where there is no session to remember for: the state then holds for
    this request only (decision 11).
    """

    state: StopMessageState
    changed: bool
    is_kept: bool = True
    warnings: tuple[str, ...] = ()


def is_new(found: FoundDirectives, state: StopMessageState | None) -> bool:
    """Whether the directives of the newest user message are yet to be applied.

    As the last message they always are. After the model or a tool has spoken they are a
    replay, unless their fingerprint is unknown (the first request was lost). A state
    without a fingerprint was written by other hands, later: nothing old may change it.
    """
    if found.is_tail or state is None:
        return True
    if state.directive_fingerprint is None:
        return state.updated_at_ms is None
    return found.fingerprint != state.directive_fingerprint


def apply_directives(
    state: StopMessageState | None,
    found: FoundDirectives | None,
    *,
    now_ms: int,
    has_session: bool = True,
    strict: bool = False,
    file_texts: Mapping[str, str] | None = None,
) -> Applied:
    """Carry out the directives of the newest user message, if they are new.

    `file_texts` holds the content of the files that `SetFile` names, by its path; a file
    that could not be read is missing there, and its directive is ignored.
    Raises `SessionScopeMissing` when `strict` and a set comes without a session.
    """
    before = state or StopMessageState()
    if found is None or not is_new(found, state):
        return Applied(before, changed=False, is_kept=has_session)
    after = before
    warnings: list[str] = []
    for directive in found.directives:
        if not has_session and not isinstance(directive, ClearAll | ClearStopMessage):
            _note_missing_session(strict, warnings)
        if isinstance(directive, SetFile) and directive.path not in (file_texts or {}):
            warnings.append("stopMessage file could not be read; directive ignored")
        after = _reduce(after, directive, file_texts or {}, now_ms)
    if after is before:
        return Applied(before, changed=False, is_kept=has_session, warnings=tuple(warnings))
    stamped = msgspec.structs.replace(after, directive_fingerprint=found.fingerprint)
    return Applied(stamped, changed=True, is_kept=has_session, warnings=tuple(warnings))


class EmptiedTurn(msgspec.Struct, frozen=True):
    """What happens in a turn whose message was nothing but directives (decision 3).

    Either `text` is asked of the model, or `answer` is given without asking it.
    """

    text: str | None
    answer: str


def settle_emptied_turn(found: FoundDirectives | None, state: StopMessageState) -> EmptiedTurn:
    """What to ask, or to answer, after the directives of an emptied message were applied."""
    directives = found.directives if found else ()
    if any(isinstance(one, ClearAll | ClearStopMessage) for one in directives):
        return EmptiedTurn(None, "Auto-continue is cleared.")
    if not any(isinstance(one, SetText | SetFile | SetMode) for one in directives):
        return EmptiedTurn(None, "No directive was understood, and there is nothing to answer.")
    if not state.is_active:
        return EmptiedTurn(None, "Auto-continue is off.")
    answer = f"Auto-continue is on, at most {state.remaining} times."
    return EmptiedTurn(state.text, answer)


def _reduce(
    state: StopMessageState, directive: AnyDirective, file_texts: Mapping[str, str], now_ms: int
) -> StopMessageState:
    match directive:
        case ClearAll() | ClearStopMessage():
            return clear(state, now_ms=now_ms)
        case SetMode(mode, max_repeats, ai_mode):
            return set_mode(state, mode, max_repeats, now_ms=now_ms, ai_mode=ai_mode)
        case SetText(text, max_repeats, ai_mode):
            return set_text(state, text, max_repeats, now_ms=now_ms, ai_mode=ai_mode)
        case SetFile(path, max_repeats, ai_mode):
            return set_text(
                state,
                file_texts.get(path, ""),
                max_repeats,
                now_ms=now_ms,
                source=Source.EXPLICIT_FILE,
                ai_mode=ai_mode,
            )


def _note_missing_session(strict: bool, warnings: list[str]) -> None:
    if strict:
        raise SessionScopeMissing(
            "stopMessage set without a session: send a session id, or leave strict mode"
        )
    warning = "stopMessage holds for this request only: the request names no session"
    if warning not in warnings:
        warnings.append(warning)

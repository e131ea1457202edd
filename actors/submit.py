"""From what was handed in to a prompt that may be accepted, or a refusal.

`Session` runs one `Submit.prepare` before anything of its prompt is on record. In this
order: directives are taken out and carried out, files that the input refers to are read,
and the host's hooks and interceptors are asked (spec/file_ref.md 7, spec/stop_message.md 2
to 4). It holds nothing between two prompts, so nothing of one turns up in the next (B2). A
hook that raises or hangs ends that prompt with a clear error. Failures of files never do;
they are alerts.
"""

from collections.abc import Mapping, Sequence

import msgspec

from midstream.actors.address import Address
from midstream.actors.clock import Clock
from midstream.actors.errors import AskFailed
from midstream.actors.file_attachment import Attachments, RefProblem, alerts
from midstream.actors.file_ref_resolver import (
    ReadUserFile,
    Resolved,
    ResolveRefs,
    ResolverMessage,
)
from midstream.actors.prompt_hooks import PromptHooks
from midstream.actors.ref_failure import RefError, RefReason
from midstream.actors.turn_continuation import Continuing, is_compacting
from midstream.actors.turn_settings import TurnSettings
from midstream.messages.alert import Alert, AlertLevel
from midstream.messages.arming import Applied, apply_directives, settle_emptied_turn
from midstream.messages.bd_stage import (
    TEMPLATE_PATHS,
    StageTemplatesMissing,
    require_templates,
)
from midstream.messages.conversation import AnyItem, ToolResultItem, UserItem
from midstream.messages.directive import SetFile, StageMode, read_text
from midstream.messages.directive_items import FoundDirectives, take_directives
from midstream.messages.errors import MidstreamError
from midstream.messages.record import SessionStatus
from midstream.messages.segments import (
    AnySegment,
    FileRefSegment,
    SegmentFormatError,
    TextSegment,
    UnknownSegment,
    UnresolvedStyle,
    flatten,
    parse_flat,
)
from midstream.messages.stop_message import Stage, StopMessageState
from midstream.messages.stop_message_codec import STATE_NAME, DecodedState, decode_state
from midstream.messages.submission import Rejected, SubmittedPrompt
from midstream.messages.submit_work import PromptReady, PromptRefused
from midstream.messages.well_formed import well_formed, well_formed_tree
from midstream.stores.conversation_load import Conversation

STOP_MESSAGE_SOURCE = "stop_message"
"""Source of the alerts about directives."""

RESOLVE_DEADLINE_S = 60.0
"""Seconds for all files of a prompt; each has its own deadline within them."""


class Prompt(msgspec.Struct, frozen=True):
    """What is handed in: what was `typed`, as a flat text or in segments, behind `items`;
    or, with nothing typed, `items` alone, in which only directives are looked for."""

    items: tuple[AnyItem, ...] = ()
    typed: str | tuple[AnySegment, ...] | None = None

    @classmethod
    def of(
        cls,
        prompt: str | Sequence[AnySegment] | Sequence[AnyItem],
        before: tuple[AnyItem, ...] = (),
    ) -> "Prompt":
        """A prompt from what callers have. Raises `SegmentFormatError` for a mixture."""
        if isinstance(prompt, str):
            return cls(before, prompt)
        segments = tuple(one for one in prompt if isinstance(one, AnySegment))
        items = tuple(one for one in prompt if not isinstance(one, AnySegment))
        if not segments:
            return cls((*before, *items))
        if items:
            raise SegmentFormatError("a prompt is segments or items, and not both")
        return cls(before, segments)


class SubmitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`finds_references` is about prompts that are a flat text; typed segments say
    themselves what is a reference. `keep_in_code` leaves markers in code where they are
    (spec/stop_message.md decision 4). `stage_paths` are in the user directory."""

    finds_references: bool = True
    unresolved_style: UnresolvedStyle = UnresolvedStyle.PLACEHOLDER
    keep_in_code: bool = False
    stage_paths: Mapping[Stage, str] = msgspec.field(default_factory=lambda: TEMPLATE_PATHS)


class Opening(msgspec.Struct, frozen=True):
    """What a conversation brings to a turn.

    `context` is without directives that other hands may have left in it, `known` is the
    stopMessage as it was kept, `version` that of the conversation.
    """

    context: tuple[AnyItem, ...]
    continuing: Continuing
    known: DecodedState
    version: int


class _Directives(msgspec.Struct):
    """What the directives of a prompt came to. `items` are the prompt without them."""

    items: tuple[AnyItem, ...]
    applied: Applied
    local_answer: str | None = None
    templates: dict[Stage, str] = msgspec.field(default_factory=dict[Stage, str])
    warnings: list[str] = msgspec.field(default_factory=list[str])


class Submit:
    """See the module. One for all sessions of a runtime."""

    def __init__(
        self,
        resolver: Address[ResolverMessage],
        clock: Clock,
        settings: SubmitSettings,
        hooks: PromptHooks,
    ) -> None:
        self.clock = clock
        self._resolver = resolver
        self._settings = settings
        self._hooks = hooks

    async def opening(self, settings: TurnSettings, conversation: Conversation) -> Opening:
        """What a conversation brings to a turn."""
        keep_in_code = self._settings.keep_in_code
        reading = take_directives(conversation.items, internal=True, keep_in_code=keep_in_code)
        context = reading.items
        decoded = known_state(conversation)
        continuing = Continuing(
            decoded.state,
            await self._read_templates(decoded.state),
            is_compacting(settings.system, context, settings.continuation),
        )
        return Opening(context, continuing, decoded, conversation.kept.version)

    async def prepare(
        self,
        prompt: Prompt,
        session_id: str,
        settings: TurnSettings,
        opening: Opening,
    ) -> PromptReady | PromptRefused:
        """Make a prompt ready for a conversation that brings `opening`."""
        context, known = opening.context, opening.known
        told: tuple[Alert, ...] = ()
        try:
            directives = await self._directives(prompt, settings, context, known.state)
            items, segments, problems = await self._resolve(prompt, directives, settings.cwd)
            told = (*problems, *self._stop_message_alerts(directives.warnings))
            if directives.local_answer is None:
                shown = SubmittedPrompt(
                    session_id=session_id,
                    conversation_id=settings.conversation_id,
                    items=items,
                    segments=segments,
                )
                settled = await self._hooks.ask(shown)
                if isinstance(settled, Rejected):
                    return PromptRefused(SessionStatus.CANCELLED, settled.reason, told)
                items = settled.items
        except MidstreamError as error:
            return PromptRefused(SessionStatus.FAILED, str(error), told)
        applied = directives.applied
        return PromptReady(
            items=items,
            alerts=told,
            state=applied.state if applied.changed else known.state,
            is_new=applied.changed,
            is_kept=not (applied.changed or known.repaired),
            local_answer=directives.local_answer,
            templates=directives.templates,
            is_compaction=is_compacting(settings.system, [*context, *items], settings.continuation),
            version=opening.version,
        )

    # --- directives

    async def _directives(
        self,
        prompt: Prompt,
        settings: TurnSettings,
        context: Sequence[AnyItem],
        state: StopMessageState | None,
    ) -> _Directives:
        reading = take_directives(
            [*context, *_raw_items(prompt)],
            keep_in_code=self._settings.keep_in_code,
            armed_text=state.text if state else None,
        )
        applied = await self._apply(reading.found, state)
        result = _Directives(reading.items[len(context) :], applied)
        result.warnings += [*reading.warnings, *applied.warnings]
        if reading.emptied_turn is not None:
            emptied = settle_emptied_turn(reading.found, applied.state)
            if emptied.text is not None:
                result.items = reading.with_turn_text(emptied.text)[len(context) :]
            elif not any(isinstance(item, UserItem | ToolResultItem) for item in result.items):
                result.items, result.local_answer = (), emptied.answer
        result.templates = await self._read_templates(applied.state)
        try:
            require_templates(applied.state.stage_mode, result.templates)
        except StageTemplatesMissing as missing:
            if applied.changed:
                raise  # At once, and not at the first reply (#84).
            result.warnings.append(f"this conversation is not continued: {missing}")
        limit = settings.budget.max_restarts
        if applied.changed and applied.state.remaining > limit:
            result.warnings.append(
                f"N is {applied.state.remaining}, but budget.max_restarts = {limit} ends the "
                "chain before that"
            )
        return result

    async def _apply(
        self, found: FoundDirectives | None, state: StopMessageState | None
    ) -> Applied:
        texts: dict[str, str] = {}
        for directive in found.directives if found else ():
            if isinstance(directive, SetFile):
                text = await self._user_file(directive.path)
                if text is not None:
                    texts[directive.path] = text
        return apply_directives(state, found, now_ms=self.clock.now_ms(), file_texts=texts)

    async def _read_templates(self, state: StopMessageState | None) -> dict[Stage, str]:
        """The texts of the stages, where they choose what is said."""
        if state is None or state.stage_mode not in (StageMode.ON, StageMode.AUTO):
            return {}
        paths = self._settings.stage_paths.items()
        texts = {stage: await self._user_file(path) for stage, path in paths}
        return {stage: text for stage, text in texts.items() if text is not None}

    async def _user_file(self, path: str) -> str | None:
        try:
            return await self._resolver.ask(
                lambda reply: ReadUserFile(path, reply), RESOLVE_DEADLINE_S
            )
        except (RefError, AskFailed):
            return None

    def _stop_message_alerts(self, warnings: Sequence[str]) -> tuple[Alert, ...]:
        now_ms = self.clock.now_ms()
        return tuple(
            Alert(AlertLevel.WARN, STOP_MESSAGE_SOURCE, f"stopMessage: {warning}", now_ms)
            for warning in dict.fromkeys(warnings)
        )

    # --- files

    async def _resolve(
        self, prompt: Prompt, directives: _Directives, cwd: str
    ) -> tuple[tuple[AnyItem, ...], tuple[AnySegment, ...], tuple[Alert, ...]]:
        """The prompt with the files that it refers to, what was typed, and what failed."""
        *before, last = directives.items or (None,)
        if prompt.typed is None or not isinstance(last, UserItem):
            return directives.items, (), ()
        is_flat = isinstance(prompt.typed, str)
        resolved = await self._ask_resolver(last.text if is_flat else prompt.typed, cwd)
        segments, attachments = resolved.segments, resolved.attachments
        text = flatten(segments, attachments.failed, self._settings.unresolved_style)
        if not is_flat:
            text = read_text(text, keep_in_code=self._settings.keep_in_code).text or last.text
        user = UserItem(well_formed(text), segments=_kept_segments(segments, is_flat=is_flat))
        told = alerts(attachments.problems, segments, self.clock.now_ms())
        return (*before, user, *attachments.items), segments, told

    async def _ask_resolver(self, typed: str | tuple[AnySegment, ...], cwd: str) -> Resolved:
        if isinstance(typed, str) and not self._settings.finds_references:
            return Resolved((TextSegment(typed),), Attachments((), ()))
        try:
            return await self._resolver.ask(
                lambda reply: ResolveRefs(typed, cwd or None, reply), RESOLVE_DEADLINE_S
            )
        except AskFailed as error:
            return _unresolved(typed, str(error))


def known_state(conversation: Conversation) -> DecodedState:
    """What the conversation's book says of its stopMessage, healed."""
    kept = conversation.kept.meta.states.get(STATE_NAME)
    return DecodedState(None) if kept is None else decode_state(bytes(kept))


def _raw_items(prompt: Prompt) -> tuple[AnyItem, ...]:
    """The prompt as it came, with what was typed as one text."""
    if prompt.typed is None:
        return prompt.items
    raw = prompt.typed if isinstance(prompt.typed, str) else flatten(prompt.typed)
    return (*prompt.items, UserItem(well_formed(raw)))


def _kept_segments(segments: tuple[AnySegment, ...], *, is_flat: bool) -> str | None:
    """The segments as the conversation keeps them; None for what is one text and was."""
    if is_flat and all(isinstance(one, TextSegment) for one in segments):
        return None
    plain = [
        one.fields if isinstance(one, UnknownSegment) else msgspec.to_builtins(one)
        for one in segments
    ]
    return msgspec.json.encode(well_formed_tree(plain)).decode()


def _unresolved(typed: str | tuple[AnySegment, ...], problem: str) -> Resolved:
    """What there is when nobody could look: every reference has failed."""
    segments = parse_flat(typed, lambda path: False) if isinstance(typed, str) else typed
    problems = tuple(
        RefProblem(index, one.path, RefReason.IO, f"nobody could look: {problem}")
        for index, one in enumerate(segments)
        if isinstance(one, FileRefSegment)
    )
    return Resolved(segments, Attachments((), problems))

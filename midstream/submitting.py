"""What a runtime has for prompts and their continuations, from what the configuration says.

Two actors, the FileRefResolver and the WorkProbe, and what every session is given to make
its prompt ready. They belong into the runtime's tree before its sessions.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from midstream.actors.address import Address
from midstream.actors.clock import Clock
from midstream.actors.file_attachment import AttachmentLimits
from midstream.actors.file_ref_resolver import FileRefResolver, ResolverMessage
from midstream.actors.ledger_messages import LedgerMessage, LoadConversation
from midstream.actors.prompt_hooks import Hook, Interceptor, PromptHooks
from midstream.actors.scope import Scope, ScopeError, ScopeRule
from midstream.actors.scoped_fs import ScopedFs
from midstream.actors.stop_message_book import Neighbours, StopMessageBook, StopMessageSettings
from midstream.actors.submit import Submit, SubmitSettings, known_state
from midstream.actors.turn_settings import ContinuationSettings
from midstream.actors.work_probe import WorkProbe, WorkProbeMessage
from midstream.config import Config, FilesConfig, StopMessageConfig
from midstream.messages.errors import ConfigError
from midstream.messages.loop_guard import GuardLimits
from midstream.messages.stop_message import Stage
from midstream.messages.stop_message_codec import snapshot
from midstream.stores.conversation_load import Conversation
from midstream.supervisors.child_spec import ActorSpec, ChildSpec

USER_DIRECTORY_VARIABLE = "MIDSTREAM_USER_DIR"
"""Environment variable for the directory of the user's own texts."""

LOAD_DEADLINE_S = 30.0


class Submitting:
    """See the module. Raises `ConfigError` for a scope that cannot be used."""

    def __init__(
        self,
        config: Config,
        cwd: Path,
        clock: Clock,
        hooks: Sequence[Hook],
        interceptors: Sequence[Interceptor],
    ) -> None:
        files, stop_message = config.files, config.stop_message
        self._stop_message, self._clock = stop_message, clock
        fs = scoped_fs(files, cwd)
        limits = attachment_limits(files)
        directory = user_directory(stop_message)
        self.resolver: ActorSpec[ResolverMessage] = ActorSpec(
            "file_ref_resolver", lambda: FileRefResolver(fs, limits, directory, files.deadline_s)
        )
        self.work: ActorSpec[WorkProbeMessage] = ActorSpec(
            "work_probe",
            lambda: WorkProbe(
                stop_message.bd_timeout_s, stop_message.bd_cache_s, stop_message.bd_workdir
            ),
        )
        self.submit = Submit(
            self.resolver.address,
            clock,
            SubmitSettings(
                finds_references=files.in_text,
                unresolved_style=files.unresolved_style,
                keep_in_code=stop_message.keep_in_code,
                stage_paths=stage_paths(stop_message),
            ),
            PromptHooks(hooks, interceptors, config.hooks.deadline_s),
        )

    async def stop_message(
        self, ledger: Address[LedgerMessage], conversation_id: str
    ) -> dict[str, Any] | None:
        """What is known of a conversation's stopMessage, for an operator."""
        conversation: Conversation = await ledger.ask_through_crashes(
            lambda reply: LoadConversation(conversation_id, reply), LOAD_DEADLINE_S
        )
        return snapshot(known_state(conversation).state)

    def stop_message_book(
        self, ledger: Address[LedgerMessage], cwd: Path, *, is_allowed: bool
    ) -> StopMessageBook:
        """The stopMessages of sessions whose conversations live with their clients."""
        config = self._stop_message
        settings = StopMessageSettings(
            continuation=continuation_settings(config, is_allowed=is_allowed),
            keep_in_code=config.keep_in_code,
            stage_paths=stage_paths(config),
        )
        neighbours = Neighbours(ledger, self.resolver.address, self.work.address)
        return StopMessageBook(self._clock, settings, neighbours, str(cwd))

    @property
    def specs(self) -> list[ChildSpec]:
        return [self.resolver, self.work]


def scoped_fs(files: FilesConfig, cwd: Path) -> ScopedFs | None:
    """What sessions may read; None for nothing at all. Raises `ConfigError`."""
    if not files.allow:
        return None
    try:
        scope = Scope(_rules(files.allow, cwd), _rules(files.deny, cwd))
        return ScopedFs(scope, str(cwd.absolute()), strict=files.strict)
    except ScopeError as error:
        raise ConfigError("configuration", "files.allow", str(error)) from error


def _rules(paths: Sequence[str], cwd: Path) -> tuple[ScopeRule, ...]:
    return tuple(ScopeRule(str((cwd / Path(path).expanduser()).absolute())) for path in paths)


def attachment_limits(files: FilesConfig) -> AttachmentLimits:
    """What one prompt may attach."""
    return AttachmentLimits(
        cap_bytes=files.cap_bytes,
        max_entries=files.max_entries,
        max_files=files.max_files,
        max_total_bytes=files.max_total_bytes,
        list_directories=files.list_directories,
        attach_duplicates=files.attach_duplicates,
    )


def user_directory(config: StopMessageConfig) -> str:
    """The absolute directory of the user's own texts."""
    named = os.environ.get(USER_DIRECTORY_VARIABLE) or config.user_dir
    return str(Path(named).expanduser().absolute())


def stage_paths(config: StopMessageConfig) -> dict[Stage, str]:
    """Where the templates of the stages are, in the user directory."""
    return {
        Stage.STATUS_PROBE: config.stage_status,
        Stage.ACTIVE_CONTINUE: config.stage_active,
        Stage.LOOP_SELF_CHECK: config.stage_loop,
    }


def continuation_settings(config: StopMessageConfig, *, is_allowed: bool) -> ContinuationSettings:
    """How the replies of a session are continued."""
    return ContinuationSettings(
        is_allowed=is_allowed,
        single_hop=config.single_hop,
        limits=GuardLimits(
            warn_after_identical=config.warn_after_identical or None,
            stop_after_identical=config.stop_after_identical or None,
            stop_after_s=config.stop_after_s or None,
        ),
        follow_up_deadline_s=config.follow_up_deadline_s or None,
        compaction_sentinels=config.compaction_sentinels,
        bd_mode=config.bd_mode,
    )

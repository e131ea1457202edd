"""FileRefResolver: from what was typed to the files that go along with it.

Sessions ask it once for each prompt, before anything of the prompt is pushed or stored;
clients ask it to complete a path that is being typed. It is the one that reads files for
the runtime, always through the scope (`scoped_fs.py`) and always in worker threads with a
deadline, so that a dead network mount costs a submit that much time and an alert, and the
runtime nothing (spec/file_ref.md decision 17). A thread that hangs is left behind; there
are a bounded number of them. It keeps nothing of one prompt for the next (B2).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import trio

from midstream.actors.actor import Actor
from midstream.actors.directive_file import read_directive_file
from midstream.actors.file_attachment import (
    AttachmentLimits,
    Attachments,
    Gathering,
    ReadReference,
    read_reference,
)
from midstream.actors.path_completion import complete_path
from midstream.actors.ref_failure import RefError, RefReason
from midstream.actors.scoped_fs import ScopedFs
from midstream.messages.reply import Reply
from midstream.messages.segments import AnySegment, FileRefSegment, TextSegment, parse_flat

T = TypeVar("T")

DEADLINE_S = 5.0
"""Seconds for the file system to answer, for each reference."""
THREADS = 8
"""Reads at the same time; also the most threads that can hang."""
READ_AT_MOST = 1_000
"""References of one prompt that are looked at; what is more is over its budget anyway."""


class Resolved(msgspec.Struct, frozen=True):
    """What was typed, as segments, and what its references come to."""

    segments: tuple[AnySegment, ...]
    attachments: Attachments


class ResolveRefs(msgspec.Struct, frozen=True, tag=True):
    """Read the files that an input refers to.

    A flat text is searched for references; typed segments are not parsed again. Relative
    references start from `base`, an absolute directory; None for that of the resolver.
    """

    typed: str | tuple[AnySegment, ...]
    base: str | None
    reply: Reply[Resolved]


class CompletePath(msgspec.Struct, frozen=True, tag=True):
    """What may be meant by the beginning of a reference; answered with candidates."""

    typed: str
    reply: Reply[tuple[str, ...]]


class ReadUserFile(msgspec.Struct, frozen=True, tag=True):
    """Read a text of the user directory: of a `file://` directive, or of a stage.

    Answered with the text; fails with `RefError`.
    """

    path: str
    reply: Reply[str]


ResolverMessage = ResolveRefs | CompletePath | ReadUserFile


class FileRefResolver(Actor[ResolverMessage]):
    """See the module.

    `fs` is what sessions may read, None for nothing at all; `user_directory` is the
    absolute directory of the user's own texts. `deadline_s` is for each reference.
    """

    def __init__(
        self,
        fs: ScopedFs | None,
        limits: AttachmentLimits,
        user_directory: str,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._fs = fs
        self._limits = limits
        self._user_directory = user_directory
        self._deadline_s = deadline_s
        self._threads = trio.CapacityLimiter(THREADS)

    async def handle(self, message: ResolverMessage) -> None:
        # Prompts do not wait for each other: one may refer to a file that hangs.
        match message:
            case ResolveRefs():
                self.spawn(self._resolve, message)
            case CompletePath(typed, reply):
                self.spawn(self._complete, typed, reply)
            case ReadUserFile(path, reply):
                self.spawn(self._read_user_file, path, reply)

    async def _resolve(self, request: ResolveRefs) -> None:
        look = _Look(self._fs, request.base, self._limits)
        segments = request.typed
        if isinstance(segments, str):
            segments = await self._parsed(look, segments)
        references = [
            (index, segment.path)
            for index, segment in enumerate(segments)
            if isinstance(segment, FileRefSegment)
        ]
        readings = await self._read_all(look, references[:READ_AT_MOST])
        gathering = Gathering(self._limits)
        for index, path in references:
            match readings.get(index):
                case ReadReference() as reading:
                    gathering.add(index, path, reading)
                case RefError() as error:
                    gathering.fail(index, error)
                case None:
                    detail = f"no more than {READ_AT_MOST} references in one input"
                    gathering.fail(index, RefError(RefReason.BUDGET, path, detail))
        request.reply.send(Resolved(segments, gathering.result()))

    async def _parsed(self, look: "_Look", text: str) -> tuple[AnySegment, ...]:
        if "@" not in text:
            return (TextSegment(text),) if text else ()
        try:
            return await self._in_thread(text, lambda: look.parse(text))
        except RefError:
            # Each reference is tried by itself after this, and says so where it fails.
            return parse_flat(text, lambda path: False)

    async def _read_all(
        self, look: "_Look", references: Sequence[tuple[int, str]]
    ) -> dict[int, ReadReference | RefError]:
        readings: dict[int, ReadReference | RefError] = {}

        async def read(index: int, path: str) -> None:
            try:
                readings[index] = await self._in_thread(path, lambda: look.read(path))
            except RefError as error:
                readings[index] = error

        async with trio.open_nursery() as nursery:
            for index, path in references:
                nursery.start_soon(read, index, path)
        return readings

    async def _complete(self, typed: str, reply: Reply[tuple[str, ...]]) -> None:
        fs = self._fs
        candidates: tuple[str, ...] = ()
        if fs is not None:
            try:
                candidates = await self._in_thread(typed, lambda: complete_path(fs, typed))
            except RefError:
                candidates = ()
        reply.send(candidates)

    async def _read_user_file(self, path: str, reply: Reply[str]) -> None:
        try:
            text = await self._in_thread(
                path, lambda: read_directive_file(self._user_directory, path)
            )
        except RefError as error:
            reply.fail(error)
        else:
            reply.send(text)

    async def _in_thread(self, reference: str, look: Callable[[], T]) -> T:
        """Run `look`, which may block. Raises `RefError` at the deadline too."""
        with trio.move_on_after(self._deadline_s):
            return await trio.to_thread.run_sync(
                look, abandon_on_cancel=True, limiter=self._threads
            )
        detail = f"the file system did not answer within {self._deadline_s:g} seconds"
        raise RefError(RefReason.TIMEOUT, reference, detail)


class _Look:
    """What is done in the threads for one prompt. Both methods block."""

    def __init__(self, fs: ScopedFs | None, base: str | None, limits: AttachmentLimits) -> None:
        self._fs = fs
        self._base = base
        self._limits = limits

    def parse(self, text: str) -> tuple[AnySegment, ...]:
        """The references in a flat text."""
        fs = self._based()
        return parse_flat(text, (lambda path: False) if fs is None else fs.exists)

    def read(self, path: str) -> ReadReference:
        """What one reference means. Raises `RefError`."""
        return read_reference(self._based(), path, self._limits)

    def _based(self) -> ScopedFs | None:
        if self._fs is None or self._base is None:
            return self._fs
        return self._fs.based_at(self._base)

"""The actor that reads files for prompts: what it finds, what it refuses, and what hangs."""

import os
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from midstream.actors.address import Address
from midstream.actors.file_attachment import AttachmentLimits
from midstream.actors.file_ref_resolver import (
    READ_AT_MOST,
    CompletePath,
    FileRefResolver,
    ReadUserFile,
    Resolved,
    ResolveRefs,
    ResolverMessage,
)
from midstream.actors.open_actor import open_actor
from midstream.actors.ref_failure import RefError, RefReason
from midstream.actors.scope import Scope, ScopeRule, allow_below
from midstream.actors.scoped_fs import ScopedFs
from midstream.messages.conversation import SystemItem
from midstream.messages.segments import AnySegment, FileRefSegment, TextSegment

Resolver = Address[ResolverMessage]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "app.py").write_text("print('hello')\n")
    (root / "notes.md").write_text("notes\n")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "text.md").write_text("go on")
    return root


@asynccontextmanager
async def resolver(
    project: Path, *, fs: ScopedFs | None = None, deadline_s: float = 5.0, **limits: Any
) -> AsyncGenerator[Resolver]:
    fs = fs or ScopedFs(allow_below([str(project)]), str(project))
    user = str(project.parent / "user")
    actor = FileRefResolver(fs, AttachmentLimits(**limits), user, deadline_s)
    async with open_actor(actor) as address:
        yield address


async def resolve(
    address: Resolver, typed: str | tuple[AnySegment, ...], base: Path | None = None
) -> Resolved:
    at = None if base is None else str(base)
    return await address.ask(lambda reply: ResolveRefs(typed, at, reply), 30.0)


async def complete(address: Resolver, typed: str) -> tuple[str, ...]:
    return await address.ask(lambda reply: CompletePath(typed, reply), 30.0)


async def read_user_file(address: Resolver, path: str) -> str:
    return await address.ask(lambda reply: ReadUserFile(path, reply), 30.0)


async def test_a_reference_in_a_flat_text_becomes_an_attachment(project: Path) -> None:
    async with resolver(project) as address:
        resolved = await resolve(address, "explain @src/app.py, please")
        assert resolved.segments == (
            TextSegment("explain "),
            FileRefSegment("src/app.py"),
            TextSegment(", please"),
        )
        [item] = resolved.attachments.items
        assert item == SystemItem(
            "[File: src/app.py]\nprint('hello')\n", "file_attachment", "src/app.py"
        )
        assert not resolved.attachments.problems


async def test_attachments_come_in_the_order_of_their_references(project: Path) -> None:
    async with resolver(project) as address:
        typed = (FileRefSegment("notes.md"), TextSegment(" "), FileRefSegment("src/app.py"))
        resolved = await resolve(address, typed)
        assert [item.path for item in resolved.attachments.items] == ["notes.md", "src/app.py"]
        assert resolved.segments == typed


async def test_typed_segments_are_not_parsed_again(project: Path) -> None:
    async with resolver(project) as address:
        resolved = await resolve(address, (TextSegment("see @src/app.py"),))
        assert not resolved.attachments.items


async def test_a_text_without_a_sigil_is_one_segment(project: Path) -> None:
    async with resolver(project) as address:
        assert (await resolve(address, "hello")).segments == (TextSegment("hello"),)
        assert (await resolve(address, "")).segments == ()


async def test_every_failure_is_told_and_the_rest_is_attached(project: Path) -> None:
    async with resolver(project) as address:
        resolved = await resolve(address, "@none.py @src/app.py @/etc/passwd @../secret")
        assert [(one.path, one.reason) for one in resolved.attachments.problems] == [
            ("none.py", RefReason.NOT_FOUND),
            ("/etc/passwd", RefReason.OUT_OF_SCOPE),
            ("../secret", RefReason.OUT_OF_SCOPE),
        ]
        assert [item.path for item in resolved.attachments.items] == ["src/app.py"]


async def test_without_authority_every_reference_fails(project: Path) -> None:
    actor = FileRefResolver(None, AttachmentLimits(), str(project))
    async with open_actor(actor) as address:
        resolved = await resolve(address, "see @src/app.py")
        [problem] = resolved.attachments.problems
        assert problem.reason is RefReason.NO_AUTHORITY
        assert await complete(address, "src") == ()


async def test_relative_references_start_from_the_directory_of_the_session(project: Path) -> None:
    async with resolver(project) as address:
        resolved = await resolve(address, "see @app.py", project / "src")
        assert [item.path for item in resolved.attachments.items] == ["app.py"]


async def test_another_directory_widens_nothing(project: Path) -> None:
    async with resolver(project) as address:
        resolved = await resolve(address, "see @./secret", project.parent)
        assert [one.reason for one in resolved.attachments.problems] == [RefReason.OUT_OF_SCOPE]


async def test_duplicates_and_budgets_hold_for_one_prompt_and_not_for_the_next(
    project: Path,
) -> None:
    async with resolver(project, max_files=1) as address:
        for _ in range(2):
            resolved = await resolve(address, "@src/app.py @./src/app.py @notes.md")
            assert len(resolved.attachments.items) == 1
            [problem] = resolved.attachments.problems
            assert (problem.path, problem.reason) == ("notes.md", RefReason.BUDGET)


async def test_b2_nothing_of_one_prompt_is_in_the_next(project: Path) -> None:
    async with resolver(project) as address:
        await resolve(address, "see @src/app.py")
        assert not (await resolve(address, "and now without")).attachments.items


async def test_more_references_than_are_looked_at_are_told(project: Path) -> None:
    typed = tuple(FileRefSegment("none") for _ in range(READ_AT_MOST + 2))
    async with resolver(project) as address:
        problems = (await resolve(address, typed)).attachments.problems
        assert [one.reason for one in problems[-2:]] == [RefReason.BUDGET] * 2
        assert problems[0].reason is RefReason.NOT_FOUND


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
async def test_b4_a_pipe_is_refused_and_never_waited_for(project: Path) -> None:
    os.mkfifo(project / "pipe")
    async with resolver(project) as address:
        with trio.fail_after(10):
            resolved = await resolve(address, "see @./pipe")
        assert [one.reason for one in resolved.attachments.problems] == [RefReason.IO]


async def test_a_path_is_completed(project: Path) -> None:
    async with resolver(project) as address:
        assert await complete(address, "") == ("src/", "notes.md")
        assert await complete(address, "src/a") == ("src/app.py",)
        assert await complete(address, "/etc/pass") == ()


async def test_the_users_own_texts_come_from_the_user_directory_alone(project: Path) -> None:
    async with resolver(project) as address:
        assert await read_user_file(address, "text.md") == "go on"
        for path in ("none.md", "../secret", str(project / "notes.md")):
            with pytest.raises(RefError):
                await read_user_file(address, path)


# --- what hangs

ANSWERED_BY_S = 1.0
"""Real seconds in which threads that do not hang have answered."""


class HangingFs(ScopedFs):
    """A file system on which some names never answer, as on a network mount that is gone."""

    def __init__(self, project: Path) -> None:
        super().__init__(Scope((ScopeRule(str(project)),)), str(project))
        self.answers = threading.Event()

    def exists(self, reference: str) -> bool:
        self._wait(reference)
        return super().exists(reference)

    def open(self, reference: str) -> Any:
        self._wait(reference)
        return super().open(reference)

    def _wait(self, reference: str) -> None:
        if "hang" in reference:
            self.answers.wait(60)


@pytest.fixture
def hanging(project: Path) -> Iterator[HangingFs]:
    fs = HangingFs(project)
    yield fs
    fs.answers.set()


async def test_a_file_that_hangs_costs_its_deadline_and_the_others_are_attached(
    project: Path, hanging: HangingFs, autojump_clock: MockClock
) -> None:
    autojump_clock.autojump_threshold = ANSWERED_BY_S
    async with resolver(project, fs=hanging, deadline_s=5.0) as address:
        began = trio.current_time()
        typed = (FileRefSegment("hang"), FileRefSegment("notes.md"), FileRefSegment("hang2"))
        resolved = await resolve(address, typed)
        assert [item.path for item in resolved.attachments.items] == ["notes.md"]
        problems = resolved.attachments.problems
        assert [(one.index, one.reason) for one in problems] == [
            (0, RefReason.TIMEOUT),
            (2, RefReason.TIMEOUT),
        ]
        assert trio.current_time() - began < 6.0


async def test_one_prompt_that_hangs_does_not_hold_up_another(
    project: Path, hanging: HangingFs
) -> None:
    async with resolver(project, fs=hanging, deadline_s=30.0) as address, trio.open_nursery() as n:
        n.start_soon(resolve, address, (FileRefSegment("hang"),))
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(10):
            assert (await resolve(address, "see @notes.md")).attachments.items
        n.cancel_scope.cancel()


async def test_a_look_for_references_that_hangs_falls_back_to_what_looks_like_one(
    project: Path, hanging: HangingFs, autojump_clock: MockClock
) -> None:
    autojump_clock.autojump_threshold = ANSWERED_BY_S
    async with resolver(project, fs=hanging, deadline_s=5.0) as address:
        resolved = await resolve(address, "see @hang/a.py and @notes.md, @somebody")
        assert [one.reason for one in resolved.attachments.problems] == [
            RefReason.TIMEOUT,
            RefReason.NOT_FOUND,
        ], "punctuation could not be told from the path"


async def test_the_actor_can_stop_while_a_file_hangs(project: Path, hanging: HangingFs) -> None:
    with trio.fail_after(10):
        async with resolver(project, fs=hanging) as address, trio.open_nursery() as nursery:
            nursery.start_soon(resolve, address, (FileRefSegment("hang"),))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

"""Prompts before they are accepted, in a whole runtime: files, segments, hooks, refusals.

The cases follow the reference's own tests (spec/file_ref.md 8) and its defects (10). Tests
that read files run on the real clock, because files are read in threads; nothing in them
waits for time to pass.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock

from midstream.actors import file_ref_resolver
from midstream.actors.prompt_hooks import Hook, Interceptor
from midstream.config import Config, FilesConfig, HooksConfig, RulesConfig
from midstream.messages.alert import AlertLevel
from midstream.messages.conversation import AnyItem, AssistantItem, SystemItem, UserItem
from midstream.messages.events import AlertRaised, SessionEnded, SessionStarted
from midstream.messages.record import SessionStatus
from midstream.messages.segments import (
    AnySegment,
    FileRefSegment,
    PasteSegment,
    SegmentFormatError,
    TextSegment,
    UnknownSegment,
    UnresolvedStyle,
    decode_segments,
)
from midstream.messages.submission import (
    HookAction,
    HookCancel,
    HookContinue,
    InterceptorAction,
    SubmitCancel,
    SubmitContinue,
    SubmitContinueWith,
    SubmittedPrompt,
)
from midstream.providers.scripted import answer
from midstream.stores.conversation_load import load_conversation
from midstream.stores.store import Book
from midstream.testing.world import ObservedSession, World, open_world

APP = "[File: src/app.py]\nprint('hello')\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "app.py").write_text("print('hello')\n")
    (root / "notes.md").write_text("notes\n")
    (tmp_path / "outside.txt").write_text("outside")
    return root


def with_files(**changes: object) -> Config:
    files = msgspec.structs.replace(FilesConfig(), **changes)
    return Config(rules=RulesConfig(discover=False), files=files)


def alerts(session: ObservedSession) -> list[str]:
    return [e.event.alert.message for e in session.events if isinstance(e.event, AlertRaised)]


def first_request(world: World) -> tuple[AnyItem, ...]:
    return world.provider.requests[0].items


async def kept_items(world: World, session: ObservedSession) -> tuple[AnyItem, ...]:
    return (await load_conversation(world.store, session.handle.conversation_id)).items


async def nothing_is_kept(world: World) -> bool:
    books = [await world.store.count(book, {}) for book in (Book.CONVERSATIONS, Book.SESSIONS)]
    return books == [0, 0]


# --- files


async def test_a_reference_is_attached_directly_behind_the_users_message(project: Path) -> None:
    async with open_world(answer("ok"), cwd=project) as world:
        session = world.animate("explain @src/app.py please")
        assert (await session.result()).status is SessionStatus.COMPLETED
        user, attached = first_request(world)
        assert isinstance(user, UserItem)
        assert user.text == "explain @src/app.py please", "the text stays as it was typed"
        assert attached == SystemItem(APP, "file_attachment", "src/app.py")
        kept = await kept_items(world, session)
        assert kept[:2] == (user, attached)
        assert not alerts(session)


async def test_the_next_prompt_and_a_restart_see_the_very_bytes_of_the_first(
    project: Path,
) -> None:
    async with open_world(answer("a"), answer("b"), cwd=project) as world:
        first = world.animate("see @src/app.py", conversation_id="con-1")
        await first.result()
        (project / "src" / "app.py").write_text("changed")
        await world.animate("and now?", conversation_id="con-1").result()
        assert world.provider.requests[1].items[:2] == first_request(world)
    (project / "src" / "app.py").unlink()
    store = world.store.reopen()
    async with open_world(answer("c"), cwd=project, store=store, seed=1) as later:
        await later.animate("again", conversation_id="con-1").result()
        encoded = msgspec.json.encode(first_request(later)[:2])
        assert encoded == msgspec.json.encode(first_request(world))


async def test_a_reference_that_fails_is_told_before_the_run_and_the_run_goes_on(
    project: Path,
) -> None:
    async with open_world(answer("ok"), cwd=project) as world:
        session = world.animate("see @none.py and @../outside.txt")
        assert (await session.result()).status is SessionStatus.COMPLETED
        assert [alert.split(": ")[:2] for alert in alerts(session)] == [
            ["@none.py was not attached", "not_found"],
            ["@../outside.txt was not attached", "out_of_scope"],
        ]
        kinds = [type(event.event) for event in session.events]
        assert kinds[:3] == [AlertRaised, AlertRaised, SessionStarted]
        [alert, _] = [e.event.alert for e in session.events if isinstance(e.event, AlertRaised)]
        assert (alert.level, alert.source) == (AlertLevel.WARN, "file_ref")
        [user] = first_request(world)
        assert isinstance(user, UserItem)
        assert user.text == (
            "see [unresolved file ref: none.py] and [unresolved file ref: ../outside.txt]"
        )


async def test_the_text_of_a_failed_reference_may_stay_as_it_was_typed(project: Path) -> None:
    config = with_files(unresolved_style=UnresolvedStyle.SIGIL)
    async with open_world(answer("ok"), cwd=project, config=config) as world:
        session = world.animate("see @none.py")
        await session.result()
        assert len(alerts(session)) == 1
        [user] = first_request(world)
        assert isinstance(user, UserItem)
        assert user.text == "see @none.py"


async def test_a_mention_is_no_reference_and_no_alert(project: Path) -> None:
    async with open_world(answer("ok"), cwd=project) as world:
        session = world.animate("ask @alice, mail bob@example.com")
        await session.result()
        assert not alerts(session)
        assert first_request(world) == (UserItem("ask @alice, mail bob@example.com"),)


async def test_the_configured_cap_is_respected_exactly(project: Path) -> None:
    (project / "ten").write_text("0123456789")
    async with open_world(answer("ok"), cwd=project, config=with_files(cap_bytes=5)) as world:
        await world.animate("see @./ten").result()
        _, attached = first_request(world)
        assert isinstance(attached, SystemItem)
        assert attached.text == (
            "[File: ./ten]\n01234\n[...truncated, 10 bytes total — use read_file for the rest]"
        )


async def test_b1_a_cut_within_a_character_is_no_binary_file(project: Path) -> None:
    (project / "ja.txt").write_text("日本語")
    async with open_world(answer("ok"), cwd=project, config=with_files(cap_bytes=4)) as world:
        session = world.animate("see @ja.txt")
        await session.result()
        assert not alerts(session)
        _, attached = first_request(world)
        assert isinstance(attached, SystemItem)
        assert attached.text.startswith("[File: ja.txt]\n日\n[...truncated, 9 bytes total")


async def test_a_directory_is_listed(project: Path) -> None:
    async with open_world(answer("ok"), cwd=project) as world:
        await world.animate("see @./").result()
        _, attached = first_request(world)
        assert attached == SystemItem("[Dir: ./]\nsrc/\nnotes.md", "file_attachment", "./")


async def test_budgets_and_duplicates_are_those_of_one_prompt(project: Path) -> None:
    config = with_files(max_files=1)
    async with open_world(answer("a"), answer("b"), cwd=project, config=config) as world:
        for number, prompt in enumerate(("@src/app.py @./src/app.py @notes.md", "@notes.md")):
            session = world.animate(prompt)
            await session.result()
            attached = [
                i for i in world.provider.requests[number].items if isinstance(i, SystemItem)
            ]
            assert len(attached) == 1
            assert len(alerts(session)) == (1 if number == 0 else 0)


async def test_without_authority_each_reference_is_an_alert(project: Path) -> None:
    async with open_world(answer("ok"), cwd=project, config=with_files(allow=())) as world:
        session = world.animate((TextSegment("see "), FileRefSegment("src/app.py")))
        await session.result()
        [alert] = alerts(session)
        assert "@src/app.py" in alert
        assert await world.runtime.complete_path("src/") == ()


async def test_the_configuration_says_what_may_be_read(project: Path) -> None:
    config = with_files(allow=("src", str(project.parent / "outside.txt")), deny=("src/app.py",))
    async with open_world(answer("ok"), cwd=project, config=config) as world:
        session = world.animate(f"@src/app.py @notes.md @{project.parent}/outside.txt")
        await session.result()
        assert len(alerts(session)) == 2
        [attached] = [item for item in first_request(world) if isinstance(item, SystemItem)]
        assert attached.text.endswith("\noutside")


async def test_flat_text_can_be_left_alone(project: Path) -> None:
    async with open_world(answer("ok"), cwd=project, config=with_files(in_text=False)) as world:
        await world.animate("see @src/app.py").result()
        assert first_request(world) == (UserItem("see @src/app.py"),)


async def test_references_start_from_the_directory_of_the_session(project: Path) -> None:
    async with open_world(answer("ok"), cwd=project) as world:
        handle = world.runtime.animate("see @app.py", cwd="src")
        await handle.result()
        attached = [item for item in first_request(world) if isinstance(item, SystemItem)]
        assert [item.path for item in attached] == [None, "app.py"]


async def test_a_path_is_completed(project: Path) -> None:
    async with open_world(cwd=project) as world:
        assert await world.runtime.complete_path("s") == ("src/",)
        assert await world.runtime.complete_path("src/") == ("src/app.py",)


async def test_a_defect_of_the_reader_costs_the_files_and_not_the_prompt(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(file_ref_resolver, "read_reference", broken)
    async with open_world(answer("a"), answer("b"), cwd=project) as world:
        session = world.animate("see @src/app.py")
        assert (await session.result()).status is SessionStatus.COMPLETED
        [alert] = alerts(session)
        assert "@src/app.py was not attached" in alert
        monkeypatch.undo()
        await world.animate("see @src/app.py").result()
        assert any(isinstance(item, SystemItem) for item in world.provider.requests[1].items)


# --- segments


SEGMENTS: tuple[AnySegment, ...] = (
    TextSegment("look at "),
    FileRefSegment("notes.md"),
    TextSegment(" and "),
    PasteSegment(id=1, chars=5, lines=2, content="a\n@src/app.py"),
)


async def test_typed_segments_are_kept_as_they_came_and_a_paste_expands_in_place(
    project: Path,
) -> None:
    async with open_world(answer("ok"), cwd=project) as world:
        session = world.animate(SEGMENTS)
        await session.result()
        user = (await kept_items(world, session))[0]
        assert isinstance(user, UserItem)
        assert user.text == "look at @notes.md and a\n@src/app.py"
        assert user.segments is not None
        assert decode_segments(user.segments) == SEGMENTS
        attached = [item.path for item in first_request(world) if isinstance(item, SystemItem)]
        assert attached == ["notes.md"], "typed segments are never parsed again"


async def test_references_of_a_flat_text_are_kept_as_segments_too(project: Path) -> None:
    async with open_world(answer("ok"), cwd=project) as world:
        session = world.animate('see @"notes.md" now')
        await session.result()
        user = (await kept_items(world, session))[0]
        assert isinstance(user, UserItem)
        assert user.segments is not None
        assert decode_segments(user.segments) == (
            TextSegment("see "),
            FileRefSegment("notes.md"),
            TextSegment(" now"),
        )


async def test_an_unknown_segment_is_told_kept_whole_and_a_placeholder_is_sent(
    project: Path,
) -> None:
    unknown = UnknownSegment("flow", {"kind": "flow", "selector": "x"})
    async with open_world(answer("ok"), cwd=project) as world:
        session = world.animate((TextSegment("see "), unknown))
        await session.result()
        [alert] = alerts(session)
        assert "flow" in alert
        [user] = first_request(world)
        assert isinstance(user, UserItem)
        assert user.text == "see [unknown input segment]"
        assert user.segments is not None
        assert decode_segments(user.segments)[1] == unknown


async def test_a_directive_across_segments_is_taken_out(project: Path) -> None:
    typed: tuple[AnySegment, ...] = (
        TextSegment('work <**stopMessage:"look at '),
        FileRefSegment("notes.md"),
        TextSegment('",1**>'),
    )
    async with open_world(answer("a"), answer("b"), cwd=project) as world:
        session = world.animate(typed)
        assert (await session.result()).attempts == 2
        user, attached = first_request(world)
        assert isinstance(user, UserItem)
        assert user.text == "work "
        assert isinstance(attached, SystemItem)
        assert world.provider.requests[1].items[-1] == UserItem("look at @notes.md", automatic=True)


async def test_segments_and_items_are_not_mixed() -> None:
    async with open_world() as world:
        mixed: Sequence[object] = (TextSegment("a"), UserItem("b"))
        with pytest.raises(SegmentFormatError):
            world.runtime.animate(mixed)  # type: ignore[arg-type]


async def test_half_a_character_in_a_prompt_breaks_nothing(project: Path) -> None:
    async with open_world(answer("a"), answer("b"), cwd=project) as world:
        for prompt in ("half \ud800 of it", (TextSegment("\ud800 "), FileRefSegment("\ud800"))):
            session = world.animate(prompt)
            assert (await session.result()).status is SessionStatus.COMPLETED


# --- hooks and interceptors


class Asked:
    """Hooks and interceptors that note who was asked, and what they were shown."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.shown: list[SubmittedPrompt] = []

    def hook(self, name: str, action: HookAction | None = None) -> Hook:
        async def hook(prompt: SubmittedPrompt) -> HookAction:
            self.order.append(name)
            self.shown.append(prompt)
            return action or HookContinue()

        return hook

    def interceptor(self, name: str, action: InterceptorAction | None = None) -> Interceptor:
        async def interceptor(prompt: SubmittedPrompt) -> InterceptorAction:
            self.order.append(name)
            self.shown.append(prompt)
            return action or SubmitContinue()

        return interceptor


async def test_hooks_come_first_and_all_see_the_prompt_with_its_files_and_no_directive(
    project: Path,
) -> None:
    asked = Asked()
    async with open_world(
        answer("a"),
        answer("b"),
        cwd=project,
        hooks=[asked.hook("h1"), asked.hook("h2")],
        interceptors=[asked.interceptor("i1"), asked.interceptor("i2")],
    ) as world:
        session = world.animate('see @notes.md <**stopMessage:"T",1**>')
        await session.result()
        assert asked.order == ["h1", "h2", "i1", "i2"], "once: a follow-up is no submit"
        shown = asked.shown[0]
        assert shown.session_id == session.handle.session_id
        assert shown.text == "see @notes.md "
        assert isinstance(shown.items[1], SystemItem)
        assert shown.segments[1] == FileRefSegment("notes.md")


async def test_the_first_that_does_not_continue_wins_and_the_rest_is_not_asked() -> None:
    asked = Asked()
    async with open_world(
        hooks=[asked.hook("h1"), asked.hook("h2", HookCancel("no")), asked.hook("h3")],
        interceptors=[asked.interceptor("i1")],
    ) as world:
        ended = await world.animate("hello").result()
        assert (ended.status, ended.reason) == (SessionStatus.CANCELLED, "no")
        assert asked.order == ["h1", "h2"]


async def test_what_an_interceptor_adds_stands_behind_the_attachments(project: Path) -> None:
    asked = Asked()
    monday = SystemItem("It is Monday.")
    interceptors = [
        asked.interceptor("i1", SubmitContinueWith((monday,))),
        asked.interceptor("i2", SubmitCancel("never asked")),
    ]
    async with open_world(answer("ok"), cwd=project, interceptors=interceptors) as world:
        session = world.animate("see @notes.md")
        await session.result()
        assert [type(item) for item in first_request(world)] == [UserItem, SystemItem, SystemItem]
        assert first_request(world)[2] == monday
        assert (await kept_items(world, session))[2] == monday
        assert asked.order == ["i1"]


@pytest.mark.parametrize("who", ["hook", "interceptor"])
async def test_b7_a_cancelled_prompt_leaves_nothing_on_record(project: Path, who: str) -> None:
    asked = Asked()
    hooks = [asked.hook("h", HookCancel("not today"))] if who == "hook" else []
    interceptors = [asked.interceptor("i", SubmitCancel("not today"))]
    async with open_world(cwd=project, hooks=hooks, interceptors=interceptors) as world:
        session = world.animate('see @notes.md <**stopMessage:"T",1**>', conversation_id="con-1")
        ended = await session.result()
        assert (ended.status, ended.reason) == (SessionStatus.CANCELLED, "not today")
        assert not world.provider.requests
        assert await nothing_is_kept(world)
        assert await world.runtime.stop_message("con-1") is None
        assert [type(event.event) for event in session.events] == [SessionEnded]


async def test_b2_files_of_a_cancelled_prompt_do_not_turn_up_in_the_next(project: Path) -> None:
    answers = iter([HookCancel("no"), HookContinue()])

    async def once(prompt: SubmittedPrompt) -> HookAction:
        return next(answers)

    async with open_world(answer("ok"), cwd=project, hooks=[once]) as world:
        await world.animate("see @notes.md", conversation_id="con-1").result()
        await world.animate("without files", conversation_id="con-1").result()
        assert first_request(world) == (UserItem("without files"),)


async def raises(prompt: SubmittedPrompt) -> HookAction:
    raise ValueError("a defect in the host")


async def hangs(prompt: SubmittedPrompt) -> HookAction:
    await trio.sleep_forever()
    raise AssertionError


async def answers_nonsense(prompt: SubmittedPrompt) -> HookAction:
    return SubmitContinueWith(())  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        (raises, "hook raises raised ValueError: a defect in the host"),
        (hangs, "hook hangs has not answered for 30 seconds"),
        (answers_nonsense, "answered SubmitContinueWith; it may answer HookContinue or HookCancel"),
    ],
)
async def test_a_hook_that_goes_wrong_ends_that_prompt_and_nothing_else(
    hook: Hook, problem: str, autojump_clock: MockClock
) -> None:
    broken = iter([hook])

    async def first_time(prompt: SubmittedPrompt) -> HookAction:
        again = next(broken, None)
        return HookContinue() if again is None else await again(prompt)

    first_time.__qualname__ = hook.__qualname__  # type: ignore[attr-defined]
    async with open_world(answer("ok"), hooks=[first_time]) as world:
        session = world.animate("hello", conversation_id="con-1")
        ended = await session.result()
        assert ended.status is SessionStatus.FAILED
        assert ended.reason is not None
        assert problem in ended.reason
        assert await nothing_is_kept(world)
        again = world.animate("hello", conversation_id="con-1")
        assert (await again.result()).status is SessionStatus.COMPLETED


async def test_an_interceptor_that_raises_is_named(autojump_clock: MockClock) -> None:
    async def broken(prompt: SubmittedPrompt) -> InterceptorAction:
        raise KeyError("x")

    async with open_world(interceptors=[broken]) as world:
        ended = await world.animate("hello").result()
        assert ended.status is SessionStatus.FAILED
        assert ended.reason is not None
        assert "interceptor" in ended.reason
        assert "raised KeyError" in ended.reason


async def test_the_deadline_of_hooks_is_configured(autojump_clock: MockClock) -> None:
    config = Config(rules=RulesConfig(discover=False), hooks=HooksConfig(deadline_s=2.0))
    async with open_world(hooks=[hangs], config=config) as world:
        began = trio.current_time()
        ended = await world.animate("hello").result()
        assert ended.reason == "hook hangs has not answered for 2 seconds"
        assert trio.current_time() - began == pytest.approx(2.0)


@pytest.mark.parametrize("verb", ["interrupt", "cancel"])
async def test_a_stop_does_not_wait_for_hooks_and_leaves_nothing(
    verb: str, autojump_clock: MockClock
) -> None:
    async with open_world(hooks=[hangs]) as world:
        session = world.animate("hello")
        await trio.sleep(1.0)
        await getattr(session, verb)()
        ended = await session.result()
        assert ended.status is SessionStatus.CANCELLED
        assert trio.current_time() < 1_000.0
        assert await nothing_is_kept(world)


async def test_closing_the_runtime_while_a_hook_is_asked_ends_the_session(
    autojump_clock: MockClock,
) -> None:
    async with open_world(hooks=[hangs]) as world:
        session = world.animate("hello")
        await trio.sleep(1.0)
    assert session.handle.ended is not None
    assert session.handle.ended.status is SessionStatus.CANCELLED


async def test_hooks_see_prompts_that_come_as_items(autojump_clock: MockClock) -> None:
    asked = Asked()
    prompt = (UserItem("first"), AssistantItem((), "anthropic"), UserItem("second"))
    async with open_world(answer("ok"), hooks=[asked.hook("h")]) as world:
        await world.animate(prompt).result()
        assert asked.shown[0].text == "second"
        assert asked.shown[0].segments == ()


async def test_a_prompt_is_not_answered_in_a_conversation_that_has_moved_on_meanwhile(
    autojump_clock: MockClock,
) -> None:
    """Another host speaks there while this one asks its hooks: what the model would be sent
    is no longer what was said, and the count of stopMessage may not be either."""

    async def meanwhile(prompt: SubmittedPrompt) -> HookAction:
        store = world.store.reopen()
        async with open_world(answer("there"), store=store, seed=9) as other:
            await other.animate("from elsewhere", conversation_id="con-1").result()
        return HookContinue()

    async with open_world(answer("never"), hooks=[meanwhile]) as world:
        session = world.animate('<**stopMessage:"T",1**> here', conversation_id="con-1")
        ended = await session.result()
        assert ended.status is SessionStatus.FAILED
        assert ended.reason is not None
        assert "somebody else has spoken there meanwhile" in ended.reason
        assert not world.provider.requests
        items = (await load_conversation(world.store, "con-1")).items
        assert [item.text for item in items if isinstance(item, UserItem)] == ["from elsewhere"]

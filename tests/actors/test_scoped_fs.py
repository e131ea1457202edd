"""Reading within a scope: what may be read, what is said of the rest, and nothing leaks.

The tests run on a real file system, below a temporary directory of their own.
"""

import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream.actors.directive_file import read_directive_file
from midstream.actors.ref_failure import CoarseReason, RefError, RefReason
from midstream.actors.scope import Permission, Scope, ScopeError, ScopeRule, allow_below
from midstream.actors.scoped_fs import EntryKind, OpenDirectory, OpenFile, ScopedFs

SECRET = b"SECRET"


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """`project` is the scope and the base; `outside` holds what must never be read."""
    real = Path(os.path.realpath(tmp_path))
    (real / "project" / "src").mkdir(parents=True)
    (real / "project" / "src" / "a.py").write_bytes(b"print()\n")
    (real / "project" / "README").write_bytes(b"hello")
    (real / "outside" / "src").mkdir(parents=True)
    (real / "outside" / "src" / "a.py").write_bytes(SECRET)
    (real / "outside" / "secret").write_bytes(SECRET)
    return real


@pytest.fixture
def fs(world: Path) -> ScopedFs:
    return ScopedFs(allow_below([str(world / "project")]), str(world / "project"))


def read(fs: ScopedFs, reference: str, limit_bytes: int = 1000) -> bytes:
    with fs.open(reference) as opened:
        assert isinstance(opened, OpenFile)
        return opened.read(limit_bytes)[0]


def names(fs: ScopedFs, reference: str, limit: int = 100) -> list[str]:
    with fs.open(reference) as opened:
        assert isinstance(opened, OpenDirectory)
        return [name for _, name in opened.list(limit).entries]


def failure(fs: ScopedFs, reference: str) -> RefError:
    with pytest.raises(RefError) as raised, fs.open(reference):
        pass
    assert raised.value.path == reference
    return raised.value


def reason(fs: ScopedFs, reference: str) -> RefReason:
    return failure(fs, reference).reason


# The scope


def scope_permission(path: str, *allow: ScopeRule, deny: tuple[ScopeRule, ...] = ()) -> Permission:
    return Scope(allow, deny).permission(tuple(path.strip("/").split("/")))


def test_a_rule_holds_below_its_target_and_not_for_look_alikes():
    rule = ScopeRule("/a/b")
    for path, expected in [
        ("/a/b", Permission.READ),
        ("/a/b/c/d", Permission.READ),
        ("/a/bc", Permission.NONE),
        ("/a", Permission.NONE),
        ("/x/a/b", Permission.NONE),
    ]:
        assert scope_permission(path, rule) is expected


def test_a_rule_that_is_not_recursive_holds_for_direct_children_only():
    rule = ScopeRule("/a", recursive=False)
    assert scope_permission("/a", rule) is Permission.READ
    assert scope_permission("/a/b", rule) is Permission.READ
    assert scope_permission("/a/b/c", rule) is Permission.NONE


def test_the_largest_permission_of_the_allow_rules_counts():
    rules = (ScopeRule("/a"), ScopeRule("/a/b", Permission.WRITE))
    assert scope_permission("/a/b/c", *rules) is Permission.WRITE
    assert scope_permission("/a/c", *rules) is Permission.READ


def test_a_deny_rule_only_takes_away():
    write = ScopeRule("/a", Permission.WRITE)
    deny_read = (ScopeRule("/a/b", Permission.READ),)
    deny_write = (ScopeRule("/a/b", Permission.WRITE),)
    assert scope_permission("/a/b/c", write, deny=deny_read) is Permission.NONE
    assert scope_permission("/a/b/c", write, deny=deny_write) is Permission.READ
    assert scope_permission("/a/c", write, deny=deny_read) is Permission.WRITE
    assert scope_permission("/x", ScopeRule("/a"), deny=(ScopeRule("/x"),)) is Permission.NONE


@pytest.mark.parametrize(
    ("allow", "deny"),
    [((), ()), ((ScopeRule("a/b"),), ()), ((ScopeRule("/a"),), (ScopeRule("b"),))],
)
def test_a_scope_without_allow_rules_or_with_relative_targets_is_refused(allow: Any, deny: Any):
    with pytest.raises(ScopeError):
        Scope(allow, deny)


def test_a_relative_base_is_refused():
    with pytest.raises(ScopeError):
        ScopedFs(allow_below(["/"]), "here")


def test_permission_resolves_links_and_what_does_not_exist_yet(world: Path, fs: ScopedFs):
    (world / "project" / "link").symlink_to(world / "outside")
    project = world / "project"
    assert fs.permission(str(project / "new" / "deep" / "x")) is Permission.READ
    assert fs.permission(str(project / ".." / "outside" / "secret")) is Permission.NONE
    assert fs.permission(str(project / "link" / "new")) is Permission.NONE
    assert fs.permission("README") is Permission.NONE
    assert fs.permission("/\0") is Permission.NONE


# What a reference means


@pytest.mark.parametrize(
    "reference",
    [
        "src/a.py",
        "./src//a.py",
        "src/../src/a.py",
        "../project/src/a.py",
        "{world}/project/src/a.py",
        "{world}/project/../project/src/./a.py",
    ],
)
def test_relative_and_absolute_references_are_read_within_the_scope(
    world: Path, fs: ScopedFs, reference: str
):
    reference = reference.format(world=world)
    assert read(fs, reference) == b"print()\n"
    with fs.open(reference) as opened:
        assert opened.path == str(world / "project" / "src" / "a.py")
    assert fs.exists(reference)


@pytest.mark.parametrize("reference", ["", ".", "./", "src/.."])
def test_the_base_itself_is_a_directory_reference(fs: ScopedFs, reference: str):
    assert names(fs, reference) == ["src", "README"]


def test_a_backslash_and_a_tilde_are_ordinary_characters(world: Path, fs: ScopedFs):
    (world / "project" / "a\\b").write_bytes(b"1")
    (world / "project" / "~").write_bytes(b"2")
    assert read(fs, "a\\b") == b"1"
    assert read(fs, "~") == b"2"


def test_strict_mode_takes_relative_paths_below_the_base_only(world: Path):
    strict = ScopedFs(allow_below([str(world)]), str(world / "project"), strict=True)
    assert read(strict, "src/./a.py") == b"print()\n"
    assert names(strict, "src/") == ["a.py"]
    for reference in (f"{world}/project/README", "../outside/secret", "src/..", "a\\b"):
        assert reason(strict, reference) is RefReason.INVALID_PATH


@pytest.mark.parametrize("reference", ["a\0b", "x" * 5000, "a\ud800b", "\udc80"])
def test_what_is_no_path_is_invalid(fs: ScopedFs, reference: str):
    assert reason(fs, reference) is RefReason.INVALID_PATH


def test_a_name_that_is_too_long_for_the_system_is_an_io_failure(fs: ScopedFs):
    assert reason(fs, "x" * 300) is RefReason.IO


def test_without_a_base_only_absolute_references_work(world: Path):
    fs = ScopedFs(allow_below([str(world / "project")]), None)
    assert reason(fs, "README") is RefReason.RELATIVE_PATH
    assert read(fs, f"{world}/project/README") == b"hello"


def test_missing_files_and_files_used_as_directories_are_not_found(fs: ScopedFs):
    for reference in ("nope", "src/nope/deeper", "nope/../nope2", "README/x", "README/"):
        assert reason(fs, reference) is RefReason.NOT_FOUND
        assert not fs.exists(reference)


def test_nothing_is_said_of_what_lies_outside(world: Path, fs: ScopedFs):
    """Missing or there, file or directory, reachable or not: the answer is one."""
    outside = world / "outside"
    (outside / "link").symlink_to("/nowhere")
    references = [
        f"{outside}/secret",
        f"{outside}/missing",
        f"{outside}/src",
        f"{outside}/link",
        f"{outside}/secret/x",
        "../outside/secret",
        "../missing",
        "../../../../../../etc/passwd",
        "../outside/../project/README",
        "../missing/../project/README",
        "nope/../../outside/secret",
        "/proc/self/environ",
        "/" + "x" * 300,
        "..",
        "/",
    ]
    answers = {(failure(fs, one).reason, failure(fs, one).detail) for one in references}
    assert answers == {(RefReason.OUT_OF_SCOPE, "outside of what may be read")}
    assert not any(fs.exists(reference) for reference in references)


def test_nothing_is_said_of_a_file_that_stands_on_the_way_to_the_scope(world: Path):
    """A directory there may be passed; a file is no way, and not what may be read."""
    secret = world / "outside" / "secret"
    fs = ScopedFs(allow_below([f"{secret}/project"]), str(world))
    references = [str(secret), f"{secret}/", f"{secret}/x", f"{world}/outside/missing"]
    answers = {(failure(fs, one).reason, failure(fs, one).detail) for one in references}
    assert answers == {(RefReason.OUT_OF_SCOPE, "outside of what may be read")}
    assert not any(fs.exists(reference) for reference in references)


def test_denied_parts_of_the_scope_are_out_of_scope(world: Path):
    project = str(world / "project")
    deny = (ScopeRule(f"{project}/src"),)
    fs = ScopedFs(Scope((ScopeRule(project),), deny), project)
    for reference in ("src/a.py", "src/missing", "src", "src/../README"):
        assert reason(fs, reference) is RefReason.OUT_OF_SCOPE
    assert names(fs, ".") == ["README"]


def test_the_scope_can_be_replaced_and_each_call_sees_the_current_one(world: Path, fs: ScopedFs):
    fs.set_scope(allow_below([str(world / "outside")]))
    assert reason(fs, "README") is RefReason.OUT_OF_SCOPE
    assert read(fs, f"{world}/outside/secret") == SECRET


# Links (spec/file_ref.md 4)


def test_a_link_within_the_scope_is_read(world: Path, fs: ScopedFs):
    project = world / "project"
    (project / "to_file").symlink_to("src/a.py")
    (project / "to_link").symlink_to(project / "to_file")
    (project / "to_dir").symlink_to("src")
    (project / "up").symlink_to("../project/./src/../README")
    for reference in ("to_file", "to_link", "to_dir/a.py"):
        assert read(fs, reference) == b"print()\n"
        with fs.open(reference) as opened:
            assert opened.path == str(project / "src" / "a.py")
    assert read(fs, "up") == b"hello"


def test_a_link_out_of_the_scope_says_where_it_points_and_no_more(world: Path, fs: ScopedFs):
    project, outside = world / "project", world / "outside"
    (project / "a").symlink_to(outside / "secret")
    (project / "b").symlink_to(outside / "missing")
    (project / "c").symlink_to("../outside")
    (project / "d").symlink_to(project / "a")
    for reference, link, target in [
        ("a", "a", outside / "secret"),
        ("b", "b", outside / "missing"),
        ("c/secret", "c", "../outside"),
        ("c/missing", "c", "../outside"),
        ("c", "c", "../outside"),
        ("d", "d", project / "a"),
    ]:
        error = failure(fs, reference)
        assert error.reason is RefReason.SYMLINK_OUT_OF_SCOPE
        assert error.reason.coarse is CoarseReason.OUT_OF_SCOPE
        assert f"{project}/{link} points to {target};" in error.detail


def test_a_broken_link_is_told_from_a_missing_file(world: Path, fs: ScopedFs):
    (world / "project" / "broken").symlink_to("nope")
    error = failure(fs, "broken")
    assert error.reason is RefReason.BROKEN_SYMLINK
    assert error.reason.coarse is CoarseReason.NOT_FOUND
    assert "points to nope" in error.detail


def test_a_directory_behind_a_link_is_never_listed(world: Path, fs: ScopedFs):
    (world / "project" / "to_dir").symlink_to("src")
    (world / "project" / "src" / "deep").mkdir()
    for reference in ("to_dir", "to_dir/", "to_dir/deep"):
        assert reason(fs, reference) is RefReason.SYMLINK_TARGET_IS_DIRECTORY


def test_links_that_go_round_end(world: Path, fs: ScopedFs):
    (world / "project" / "x").symlink_to("y")
    (world / "project" / "y").symlink_to("x")
    (world / "project" / "self").symlink_to("self/self")
    assert reason(fs, "x") is RefReason.IO
    assert reason(fs, "self") is RefReason.IO


def test_a_link_from_outside_into_the_scope_leads_there(world: Path, fs: ScopedFs):
    """So a working directory may be named by a path with a link in it."""
    (world / "alias").symlink_to(world / "project")
    assert read(fs, f"{world}/alias/README") == b"hello"
    assert reason(fs, f"{world}/alias/nope") is RefReason.NOT_FOUND
    by_alias = ScopedFs(allow_below([f"{world}/alias"]), f"{world}/alias")
    assert read(by_alias, "src/a.py") == b"print()\n"


def test_reasons_have_the_four_coarse_classes():
    assert {reason.coarse for reason in RefReason} == set(CoarseReason)
    assert RefReason.BINARY.coarse is CoarseReason.BINARY
    assert RefReason.TIMEOUT.coarse is CoarseReason.IO


# Reading


def test_b4_no_more_is_read_than_asked_and_a_few_bytes(world: Path, fs: ScopedFs):
    with (world / "project" / "huge").open("wb") as huge:
        huge.truncate(1 << 40)
    with fs.open("huge") as opened:
        assert isinstance(opened, OpenFile)
        assert opened.read(10) == (bytes(14), 1 << 40)


@pytest.mark.parametrize("limit_bytes", [0, 3, 4, 5, 6, 100])
def test_the_size_is_that_of_the_whole_file(fs: ScopedFs, limit_bytes: int):
    with fs.open("README") as opened:
        assert isinstance(opened, OpenFile)
        data, total_bytes = opened.read(limit_bytes)
    assert data == b"hello"[: limit_bytes + 4]
    assert total_bytes == 5


def test_b3_the_size_of_a_link_is_that_of_its_target(world: Path, fs: ScopedFs):
    (world / "project" / "big").write_bytes(b"x" * 5000)
    (world / "project" / "link").symlink_to("big")
    with fs.open("link") as opened:
        assert isinstance(opened, OpenFile)
        assert opened.read(10)[1] == 5000


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_b4_what_is_no_regular_file_is_refused_and_never_waited_for(
    world: Path, fs: ScopedFs, kind: str
):
    path = world / "project" / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        holder = socket.socket(socket.AF_UNIX)
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket may be no longer than some 100 bytes
        try:
            holder.bind("odd")
        finally:
            os.chdir(here)
            holder.close()
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root makes devices")
    error = failure(fs, "odd")
    assert (error.reason, error.detail) == (RefReason.IO, "not a regular file")
    assert fs.exists("odd")
    assert names(fs, ".") == ["src", "README", "odd"]


def test_an_unreadable_file_is_an_io_failure(
    world: Path, fs: ScopedFs, monkeypatch: pytest.MonkeyPatch
):
    real_open = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if path == "README" and not flags & getattr(os, "O_PATH", 0):
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "supports_dir_fd", {*os.supports_dir_fd, refuse})
    error = failure(fs, "README")
    assert (error.reason, error.detail) == (RefReason.IO, "Permission denied")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission_is_an_io_failure(world: Path, fs: ScopedFs):
    (world / "project" / "README").chmod(0)
    assert reason(fs, "README") is RefReason.IO


def test_no_descriptor_is_left_open(world: Path, fs: ScopedFs):
    before = len(os.listdir("/proc/self/fd"))
    (world / "project" / "link").symlink_to(world / "outside")
    for reference in ("README", "src", "nope", "link/secret", "link", "README/x", "../x"):
        for _ in range(3):
            try:
                with fs.open(reference):
                    pass
            except RefError:
                pass
            fs.exists(reference)
    assert len(os.listdir("/proc/self/fd")) == before


# Listing


def test_directories_come_first_then_links_then_the_rest_by_bytes(world: Path, fs: ScopedFs):
    project = world / "project"
    for name in ("zeta", ".hidden", "Beta"):
        (project / name).mkdir()
    for name in ("é", "b", "B", ".gitignore", "ignored.log"):
        (project / name).write_bytes(b"")
    (project / "link").symlink_to("nowhere")
    with fs.open(".") as opened:
        assert isinstance(opened, OpenDirectory)
        listing = opened.list(100)
    directories = [".hidden", "Beta", "src", "zeta"]
    files = [".gitignore", "B", "README", "b", "ignored.log", "é"]
    assert [name for _, name in listing.entries] == [*directories, "link", *files]
    kinds = [kind for kind, _ in listing.entries]
    assert kinds == [EntryKind.DIRECTORY] * 4 + [EntryKind.SYMLINK] + [EntryKind.OTHER] * 6
    assert listing.total == 11


def test_of_105_entries_100_are_listed_and_105_counted(world: Path, fs: ScopedFs):
    (world / "project" / "many").mkdir()
    for number in range(105):
        (world / "project" / "many" / f"{number:03}").write_bytes(b"")
    with fs.open("many") as opened:
        assert isinstance(opened, OpenDirectory)
        listing = opened.list(100)
    assert [name for _, name in listing.entries] == [f"{number:03}" for number in range(100)]
    assert listing.total == 105


class FaultyEntry:
    """A directory entry that cannot be examined, as on a failing disk."""

    name = "faulty"

    def is_symlink(self) -> bool:
        raise OSError(5, "Input/output error")

    def is_dir(self, *, follow_symlinks: bool) -> bool:
        raise OSError(5, "Input/output error")


def test_b9_an_entry_that_cannot_be_examined_does_not_fail_the_listing(
    fs: ScopedFs, monkeypatch: pytest.MonkeyPatch
):
    real_scandir = os.scandir

    class Faulty:
        def __init__(self, fd: int) -> None:
            self.real = real_scandir(fd)

        def __enter__(self) -> Iterator[Any]:
            return iter([FaultyEntry(), *self.real.__enter__()])

        def __exit__(self, *error: object) -> None:
            self.real.close()

    monkeypatch.setattr(os, "scandir", Faulty)
    assert names(fs, ".") == ["src", "README", "faulty"]


# Races (spec/file_ref.md B5)


def run_with_a_change_at_each_step(
    monkeypatch: pytest.MonkeyPatch,
    attempt: Callable[[], object],
    change: Callable[[], object],
    restore: Callable[[], object],
) -> list[object]:
    """Run `attempt` once for each call to the system that it makes, with `change` right
    before that call: all schedules of one change against one read."""
    outcomes: list[object] = []
    watched = ("stat", "open", "readlink", "fstat", "read")
    real = {name: getattr(os, name) for name in watched}
    step, calls, busy = 0, 0, False

    def hooked(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls, busy
            if not busy:
                if calls == step:
                    busy = True
                    change()
                    busy = False
                calls += 1
            return real[name](*arguments, **named)

        return call

    hooks = {name: hooked(name) for name in watched}
    while True:
        calls = 0
        with monkeypatch.context() as patched:
            for name in watched:
                patched.setattr(os, name, hooks[name])
            outcomes.append(attempt())
        restore()
        if calls <= step:
            return outcomes
        step += 1


def outcome(fs: ScopedFs, reference: str) -> bytes | RefReason:
    try:
        with fs.open(reference) as opened:
            return opened.read(100)[0] if isinstance(opened, OpenFile) else RefReason.IS_DIRECTORY
    except RefError as error:
        return error.reason


def test_b5_a_directory_swapped_for_a_link_at_any_step_gives_nothing_away(
    world: Path, fs: ScopedFs, monkeypatch: pytest.MonkeyPatch
):
    src, aside = world / "project" / "src", world / "project" / "aside"

    def swap() -> None:
        src.rename(aside)
        src.symlink_to(world / "outside" / "src")

    def restore() -> None:
        if src.is_symlink():
            src.unlink()
            aside.rename(src)

    outcomes = run_with_a_change_at_each_step(
        monkeypatch, lambda: outcome(fs, "src/a.py"), swap, restore
    )
    assert set(outcomes) == {b"print()\n", RefReason.SYMLINK_OUT_OF_SCOPE}
    assert len(outcomes) > 10


def test_b5_a_file_swapped_for_a_link_at_any_step_gives_nothing_away(
    world: Path, fs: ScopedFs, monkeypatch: pytest.MonkeyPatch
):
    path = world / "project" / "README"

    def swap() -> None:
        path.unlink()
        path.symlink_to(world / "outside" / "secret")

    def restore() -> None:
        path.unlink()
        path.write_bytes(b"hello")

    outcomes = run_with_a_change_at_each_step(
        monkeypatch, lambda: outcome(fs, "README"), swap, restore
    )
    assert set(outcomes) == {b"hello", RefReason.SYMLINK_OUT_OF_SCOPE}


def test_b5_a_file_swapped_for_a_fifo_at_any_step_is_never_waited_for(
    world: Path, fs: ScopedFs, monkeypatch: pytest.MonkeyPatch
):
    path = world / "project" / "README"

    def swap() -> None:
        path.unlink()
        os.mkfifo(path)

    def restore() -> None:
        path.unlink()
        path.write_bytes(b"hello")

    outcomes = run_with_a_change_at_each_step(
        monkeypatch, lambda: outcome(fs, "README"), swap, restore
    )
    assert set(outcomes) == {b"hello", RefReason.IO}


def test_b5_a_directory_moved_out_and_filled_there_gives_nothing_away(
    world: Path, fs: ScopedFs, monkeypatch: pytest.MonkeyPatch
):
    """The pinned directory is moved; what is put into it afterwards was never inside."""
    src, moved = world / "project" / "src", world / "outside" / "moved"

    def move() -> None:
        src.rename(moved)
        (moved / "a.py").unlink()
        (moved / "a.py").write_bytes(SECRET)

    def restore() -> None:
        if moved.exists():
            shutil.rmtree(moved)
            src.mkdir()
            (src / "a.py").write_bytes(b"print()\n")

    outcomes = run_with_a_change_at_each_step(
        monkeypatch, lambda: outcome(fs, "src/a.py"), move, restore
    )
    assert SECRET not in outcomes
    assert b"print()\n" in outcomes
    assert RefReason.OUT_OF_SCOPE in outcomes


def test_b5_a_parent_moved_during_dot_dot_gives_nothing_away(
    world: Path, fs: ScopedFs, monkeypatch: pytest.MonkeyPatch
):
    src, moved = world / "project" / "src", world / "outside" / "moved"
    (world / "outside" / "README").write_bytes(SECRET)

    def restore() -> None:
        if moved.exists():
            moved.rename(src)

    outcomes = run_with_a_change_at_each_step(
        monkeypatch, lambda: outcome(fs, "src/../README"), lambda: src.rename(moved), restore
    )
    assert set(outcomes) == {b"hello", RefReason.NOT_FOUND}


def test_b5_a_file_that_is_replaced_as_editors_do_is_read_old_or_new(
    world: Path, fs: ScopedFs, monkeypatch: pytest.MonkeyPatch
):
    path = world / "project" / "README"

    def replace() -> None:
        (world / "project" / "new").write_bytes(b"newer")
        (world / "project" / "new").replace(path)

    outcomes = run_with_a_change_at_each_step(
        monkeypatch,
        lambda: outcome(fs, "README"),
        replace,
        lambda: path.write_bytes(b"hello"),
    )
    assert set(outcomes) == {b"hello", b"newer"}


def test_b5_swapping_without_end_in_a_thread_gives_nothing_away(world: Path, fs: ScopedFs):
    src, aside = world / "project" / "src", world / "project" / "aside"
    (world / "project" / "evil").symlink_to(world / "outside" / "src")
    evil = world / "project" / "evil"
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            src.rename(aside)
            evil.rename(src)
            src.rename(evil)
            aside.rename(src)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        outcomes = {outcome(fs, "src/a.py") for _ in range(3000)}
    finally:
        done.set()
        thread.join()
    assert SECRET not in outcomes
    assert b"print()\n" in outcomes


# Random trees

NAMES = ["a", "b", "c"]
TARGETS = st.one_of(
    st.lists(st.sampled_from([*NAMES, "..", "."]), min_size=1, max_size=5).map("/".join),
    st.lists(st.sampled_from(NAMES), max_size=2).map(lambda parts: "/".join(["{project}", *parts])),
    st.lists(st.sampled_from(NAMES), max_size=2).map(lambda parts: "/".join(["{outside}", *parts])),
)
NODE = st.recursive(
    st.one_of(st.just("file"), TARGETS.map(lambda target: ("link", target))),
    lambda inner: st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
TREE = st.dictionaries(st.sampled_from(NAMES), NODE, max_size=3)
REFERENCES = st.lists(
    st.one_of(
        TARGETS,
        st.lists(st.sampled_from([*NAMES, "..", ".", "project", "outside"]), max_size=7).map(
            "/".join
        ),
    ),
    min_size=1,
    max_size=8,
)


def build(root: Path, tree: dict[str, Any], places: dict[str, str], content: bytes) -> None:
    root.mkdir()
    for name, node in tree.items():
        if isinstance(node, dict):
            build(root / name, node, places, content)  # pyright: ignore[reportUnknownArgumentType] - a tree of unknown depth
        elif node == "file":
            (root / name).write_bytes(content + str(root / name).encode())
        else:
            (root / name).symlink_to(node[1].format(**places))


@settings(deadline=None, max_examples=60)
@given(TREE, TREE, REFERENCES)
def test_in_any_tree_only_the_scope_is_read_and_nothing_told_of_the_rest(
    inside: dict[str, Any], outside: dict[str, Any], references: list[str]
):
    """Each reference is resolved in two worlds that differ only outside the scope."""
    with tempfile.TemporaryDirectory() as name:
        world = Path(os.path.realpath(name))
        project, other = world / "project", world / "outside"
        places = {"project": str(project), "outside": str(other)}
        build(project, inside, places, b"inside ")
        build(other, without_links(outside), places, SECRET)
        fs = ScopedFs(allow_below([str(project)]), str(project))
        resolved = [reference.format(**places) for reference in references]
        found = [outcome(fs, reference) for reference in resolved]
        for reference, answer in zip(resolved, found, strict=True):
            if isinstance(answer, bytes):
                real = os.path.realpath(project / reference)
                assert real.startswith(f"{project}/")
                assert answer == Path(real).read_bytes()[:104]
                assert SECRET not in answer
        shutil.rmtree(other)
        assert [outcome(fs, reference) for reference in resolved] == found


def without_links(tree: dict[str, Any]) -> dict[str, Any]:
    """Outside there are no links into the scope: such a link is what it is to be seen."""
    return {
        name: without_links(node) if isinstance(node, dict) else "file"  # pyright: ignore[reportUnknownArgumentType] - as above
        for name, node in tree.items()
    }


# The files of directives (spec/stop_message.md 2.2, decision 17)


def test_a_directive_file_is_read_below_the_user_directory_only(world: Path):
    user = world / "project"
    (user / "m.md").write_text("继续\n", "utf-8")
    (user / "link.md").symlink_to("m.md")
    (user / "out.md").symlink_to(world / "outside" / "secret")
    assert read_directive_file(str(user), "m.md") == "继续\n"
    assert read_directive_file(str(user), "link.md") == "继续\n"
    for path in ("../outside/secret", str(user / "m.md"), "out.md", "src", "nope.md"):
        with pytest.raises(RefError):
            read_directive_file(str(user), path)


def test_a_directive_file_is_at_most_64_kib_of_utf_8(world: Path):
    user = world / "project"
    (user / "full.md").write_bytes(b"x" * 65_536)
    (user / "over.md").write_bytes(b"x" * 65_537)
    (user / "binary.md").write_bytes(b"\xff")
    assert len(read_directive_file(str(user), "full.md")) == 65_536
    for path, expected in (("over.md", RefReason.BUDGET), ("binary.md", RefReason.BINARY)):
        with pytest.raises(RefError) as raised:
            read_directive_file(str(user), path)
        assert raised.value.reason is expected

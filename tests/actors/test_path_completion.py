"""Candidates for a file reference that is being typed."""

import os
from pathlib import Path

import pytest

from midstream.actors.path_completion import complete_path
from midstream.actors.scope import Scope, ScopeRule
from midstream.actors.scoped_fs import ScopedFs


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    for name in ("src/sub", "secret", "script"):
        (root / name).mkdir(parents=True)
    for name in ("setup.py", "src/a.py", "src/ab.py", "secret/key", "README"):
        (root / name).write_bytes(b"")
    (root / "link").symlink_to("src")
    return root


@pytest.fixture
def fs(project: Path) -> ScopedFs:
    deny = (ScopeRule(f"{project}/secret"),)
    return ScopedFs(Scope((ScopeRule(str(project)),), deny), str(project))


def test_directories_come_first_and_what_may_not_be_read_is_not_offered(fs: ScopedFs):
    assert complete_path(fs, "") == ("script/", "src/", "link", "README", "setup.py")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("s", ("script/", "src/", "setup.py")),
        ("src", ("src/",)),
        ("src/", ("src/sub/", "src/a.py", "src/ab.py")),
        ("src/a", ("src/a.py", "src/ab.py")),
        ("./src/ab", ("./src/ab.py",)),
        ("S", ()),
        ("nope/", ()),
        ("setup.py/", ()),
        ("link/", ()),
        ("secret/", ()),
        ("../", ()),
        ("/etc/", ()),
        ("a\0/", ()),
    ],
)
def test_a_prefix_filters_and_a_slash_descends(fs: ScopedFs, typed: str, expected: tuple[str, ...]):
    assert complete_path(fs, typed) == expected


def test_absolute_paths_are_completed_unless_strict(fs: ScopedFs, project: Path):
    assert complete_path(fs, f"{project}/src/a") == (
        f"{project}/src/a.py",
        f"{project}/src/ab.py",
    )
    strict = ScopedFs(Scope((ScopeRule(str(project)),)), str(project), strict=True)
    assert complete_path(strict, f"{project}/") == ()


def test_every_candidate_means_something_and_there_are_at_most_as_many(fs: ScopedFs, project: Path):
    for number in range(105):
        (project / "script" / f"{number:03} x").write_bytes(b"")
    (project / "script" / os.fsdecode(b"\xff")).write_bytes(b"")
    (project / "script" / "a\nb").write_bytes(b"")
    candidates = complete_path(fs, "script/")
    assert len(candidates) == 100
    assert len(complete_path(fs, "script/", limit=200)) == 105
    assert all(fs.exists(candidate) for candidate in candidates)

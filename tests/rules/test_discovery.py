"""Rule files are found everywhere they may be, in order, and none hides the others' fate."""

import json
import os
from pathlib import Path

import pytest

from midstream.messages.errors import RuleError
from midstream.rules.discovery import Discovery, discover, rules_from_paths
from midstream.rules.problem import Severity
from midstream.rules.rule_locations import DiscoverySettings, with_environment
from midstream.rules.rule_reader import SIZE_LIMIT_BYTES

EVERYTHING = frozenset({"*"})


class Machine:
    """A repository `repo` with a sub-directory `repo/sub` to work in, and a home."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.repo = root / "repo"
        self.cwd = self.repo / "sub"
        self.home.mkdir()
        self.cwd.mkdir(parents=True)
        (self.repo / ".git").mkdir()

    def write(self, path: str, front_matter: str = "condition: a", body: str = "Body.") -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"---\n{front_matter}\n---\n{body}\n", encoding="utf-8")
        return file

    def discover(
        self,
        *,
        user_providers: frozenset[str] = frozenset(),
        disabled_providers: frozenset[str] = frozenset(),
        untrusted_dirs: tuple[Path, ...] = (),
        builtin_rules: bool = False,
    ) -> Discovery:
        settings = DiscoverySettings(
            user_providers=user_providers,
            disabled_providers=disabled_providers,
            untrusted_dirs=untrusted_dirs,
            builtin_rules=builtin_rules,
        )
        return discover(self.cwd, self.home, settings)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def names(discovery: Discovery) -> list[str]:
    return [rule.name for rule in discovery.rules]


PLACES = [
    ("repo/sub/.midstream/rules/a.md", "midstream"),
    ("repo/sub/.midstream/rules/a.mdc", "midstream"),
    ("home/.midstream/rules/a.md", "midstream"),
    ("repo/sub/.omp/rules/a.md", "omp"),
    ("home/.omp/agent/rules/a.md", "omp"),
    ("repo/sub/.agent/rules/a.md", "agents"),
    ("repo/sub/.agents/rules/a.md", "agents"),
    ("repo/.agents/rules/a.md", "agents"),
    ("home/.agents/rules/a.md", "agents"),
    ("repo/sub/.claude/rules/a.md", "claude"),
    ("home/.claude/rules/a.md", "claude"),
    ("repo/sub/.cursor/rules/a.mdc", "cursor"),
    ("home/.cursor/rules/a.mdc", "cursor"),
    ("repo/sub/.windsurf/rules/a.md", "windsurf"),
    ("repo/sub/.clinerules/a.md", "cline"),
    ("repo/sub/.github/instructions/a.instructions.md", "github"),
]


@pytest.mark.parametrize(("path", "origin"), PLACES)
def test_each_place_is_read(machine: Machine, path: str, origin: str):
    file = machine.write(path)

    (rule,) = machine.discover(user_providers=EVERYTHING).rules

    assert (rule.name, rule.origin, rule.path) == ("a", origin, str(file))


def test_places_are_in_order_and_the_first_of_a_name_counts(machine: Machine):
    files = [machine.write(path) for path, _ in PLACES]

    found = machine.discover(user_providers=EVERYTHING)

    assert [rule.path for rule in found.rules] == [str(files[0])]
    assert [shadowed.rule.path for shadowed in found.shadowed] == [str(file) for file in files[1:]]
    assert {shadowed.by.path for shadowed in found.shadowed} == {str(files[0])}


@pytest.mark.parametrize(
    "path",
    [
        "repo/.midstream/rules/a.md",
        "repo/.omp/rules/a.md",
        "repo/.cursor/rules/a.md",
        ".agents/rules/a.md",
        "repo/sub/.midstream/rules/a.txt",
        "repo/sub/.midstream/rules/.a.md",
        "repo/sub/.midstream/rules/deep/a.md",
        "repo/sub/.windsurf/rules/a.mdc",
        "repo/sub/.github/instructions/a.md",
        "repo/sub/.cursorrules",
        "repo/sub/.windsurfrules",
    ],
)
def test_other_places_are_not_read(machine: Machine, path: str):
    machine.write(path)

    assert machine.discover(user_providers=EVERYTHING).rules == ()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("repo/.clinerules", "clinerules"),
        (".clinerules", "clinerules"),
        ("home/.codeium/windsurf/memories/global_rules.md", "global_rules"),
        ("home/.omp/agent/RULES.md", "RULES"),
        ("repo/.omp/RULES.md", "RULES@project"),
        ("repo/sub/.github/instructions/deep/er/x.instructions.md", "x"),
    ],
)
def test_single_files_have_their_names(machine: Machine, path: str, name: str):
    machine.write(path)

    assert names(machine.discover(user_providers=EVERYTHING)) == [name]


def test_a_sticky_file_applies_always_and_the_nearest_that_says_something_counts(machine: Machine):
    empty = machine.write("repo/sub/.omp/RULES.md")
    empty.write_text("", encoding="utf-8")
    machine.write("repo/.omp/RULES.md", "", "Be brief.")

    (rule,) = machine.discover().rules

    assert rule.always_apply
    assert rule.body == "Be brief."
    assert machine.discover().problems == ()


def test_the_nearest_cline_rules_count(machine: Machine):
    machine.write("repo/sub/.clinerules/b.md")
    machine.write("repo/.clinerules/a.md")

    assert names(machine.discover()) == ["b"]


def test_without_a_repository_only_the_working_directory_is_the_project(machine: Machine):
    (machine.repo / ".git").rmdir()
    machine.write("repo/.agents/rules/up.md")
    machine.write("repo/sub/.agents/rules/here.md")

    assert names(machine.discover()) == ["here"]


def test_files_load_sorted_by_name(machine: Machine):
    for name in ("c", "a", "B", "b"):
        machine.write(f"repo/sub/.midstream/rules/{name}.md")

    assert names(machine.discover()) == ["B", "a", "b", "c"]


def test_r5_gitignore_hides_no_rules(machine: Machine):
    machine.write("repo/sub/.midstream/rules/a.md")
    (machine.repo / ".gitignore").write_text("*\n", encoding="utf-8")
    (machine.cwd / ".midstream" / ".gitignore").write_text("*\n", encoding="utf-8")

    assert names(machine.discover()) == ["a"]


def test_user_directories_of_other_tools_are_read_only_when_enabled(machine: Machine):
    machine.write("home/.cursor/rules/cursor.md")
    machine.write("home/.claude/rules/claude.md")
    machine.write("home/.midstream/rules/own.md")
    machine.write("home/.omp/agent/rules/omp.md")

    assert names(machine.discover()) == ["own", "omp"]
    assert names(machine.discover(user_providers=frozenset({"cursor"}))) == ["own", "omp", "cursor"]
    assert len(machine.discover(user_providers=frozenset({"all"})).rules) == 4


def test_a_provider_can_be_switched_off(machine: Machine):
    machine.write("repo/sub/.cursor/rules/a.md")
    machine.write("repo/sub/.claude/rules/b.md")

    assert names(machine.discover(disabled_providers=frozenset({"cursor"}))) == ["b"]


def test_an_untrusted_directory_gives_native_rules_only(machine: Machine):
    machine.write("repo/sub/.midstream/rules/own.md")
    machine.write("repo/sub/.omp/rules/omp.md")
    machine.write("repo/sub/.cursor/rules/cursor.md")
    machine.write("repo/.agents/rules/agents.md")
    machine.write("home/.midstream/rules/user.md")

    found = machine.discover(untrusted_dirs=(machine.repo,), user_providers=EVERYTHING)

    assert names(found) == ["own", "user", "omp"]
    assert {problem.severity for problem in found.problems} == {Severity.NOTE}
    assert len(found.problems) == 2


def test_an_untrusted_working_directory_makes_its_repository_untrusted(machine: Machine):
    machine.write("repo/.agents/rules/agents.md")
    machine.write("repo/.clinerules/cline.md")
    secret = machine.write("home/secret.md", body="s3cret")
    (machine.repo / ".omp").mkdir()
    (machine.repo / ".omp" / "RULES.md").symlink_to(secret)

    assert names(machine.discover()) == ["RULES@project", "agents", "cline"]
    assert machine.discover(untrusted_dirs=(machine.cwd,)).rules == ()


def test_a_link_out_of_an_untrusted_directory_is_not_followed(machine: Machine):
    secret = machine.write("home/secret.md", body="s3cret")
    rules = machine.cwd / ".midstream" / "rules"
    rules.mkdir(parents=True)
    (rules / "a.md").symlink_to(secret)
    (machine.cwd / ".omp").mkdir()
    (machine.cwd / ".omp" / "rules").symlink_to(machine.home)

    found = machine.discover(untrusted_dirs=(machine.repo,))

    assert found.rules == ()
    assert len(found.problems) == 2
    assert names(machine.discover()) == ["a", "secret"]


def test_an_untrusted_directory_is_known_under_another_spelling(machine: Machine):
    machine.write("repo/sub/.cursor/rules/a.md")
    (machine.root / "link").symlink_to(machine.repo)

    settings = DiscoverySettings(untrusted_dirs=(machine.repo,), builtin_rules=False)

    assert discover(machine.root / "link" / "sub", machine.home, settings).rules == ()


def test_b22_a_file_that_is_switched_off_shadows_nothing(machine: Machine):
    off = machine.write("repo/sub/.midstream/rules/a.md", "condition: a\nenabled: false")
    on = machine.write("home/.midstream/rules/a.md")

    found = machine.discover()

    assert [rule.path for rule in found.rules] == [str(on)]
    assert [rule.path for rule in found.disabled] == [str(off)]
    assert found.shadowed == ()


def test_a_rejected_file_shadows_nothing(machine: Machine):
    machine.write("repo/sub/.midstream/rules/a.md", body="")
    on = machine.write("home/.midstream/rules/a.md")

    found = machine.discover()

    assert [rule.path for rule in found.rules] == [str(on)]
    assert [problem.severity for problem in found.problems] == [Severity.ERROR]


def test_a_users_rule_replaces_the_bundled_one_of_its_name(machine: Machine):
    bundled = machine.discover(builtin_rules=True)
    name = bundled.rules[0].name
    machine.write(f"home/.midstream/rules/{name}.md")

    found = machine.discover(builtin_rules=True)

    assert len(found.rules) == len(bundled.rules)
    assert found.rules[0].origin == "midstream"
    assert [shadowed.rule.origin for shadowed in found.shadowed] == ["builtin"]


def test_working_in_the_home_directory_shadows_nothing(machine: Machine):
    machine.write("home/.midstream/rules/a.md")
    machine.write("home/.cursor/rules/b.md")

    settings = DiscoverySettings(user_providers=EVERYTHING, builtin_rules=False)
    found = discover(machine.home, machine.home, settings)

    assert names(found) == ["a", "b"]
    assert found.shadowed == ()


def test_the_agents_directory_of_the_home_is_no_projects(machine: Machine):
    machine.write("home/.agents/rules/a.md")
    (machine.home / ".git").mkdir()
    (machine.home / "work").mkdir()

    settings = DiscoverySettings(builtin_rules=False)

    assert discover(machine.home / "work", machine.home, settings).rules == ()


# Files that cannot be read


def problems_of(machine: Machine) -> list[str]:
    machine.write("repo/sub/.midstream/rules/zz.md")
    found = machine.discover()
    assert names(found) == ["zz"], "the others load"
    return [problem.what for problem in found.problems]


def rules_directory(machine: Machine) -> Path:
    directory = machine.cwd / ".midstream" / "rules"
    directory.mkdir(parents=True)
    return directory


def test_a_huge_file_is_rejected_with_the_reason(machine: Machine):
    file = rules_directory(machine) / "a.md"
    file.write_bytes(b"x" * (SIZE_LIMIT_BYTES + 1))

    assert problems_of(machine) == ["it is larger than 256 KiB"]


def test_a_file_that_is_no_text_is_rejected_with_the_reason(machine: Machine):
    (rules_directory(machine) / "a.md").write_bytes(b"ab\xff")

    assert problems_of(machine) == ["it is not valid UTF-8 at byte 2"]


def test_a_dangling_link_is_a_problem(machine: Machine):
    (rules_directory(machine) / "a.md").symlink_to("nowhere.md")

    assert problems_of(machine) == ["it cannot be read: No such file or directory"]


def test_links_in_a_circle_are_a_problem(machine: Machine):
    directory = rules_directory(machine)
    (directory / "a.md").symlink_to("b.md")
    (directory / "b.md").symlink_to("a.md")

    assert len(problems_of(machine)) == 2


def test_a_pipe_is_not_waited_for(machine: Machine):
    os.mkfifo(rules_directory(machine) / "a.md")

    assert problems_of(machine) == ["it is not a regular file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_a_problem(machine: Machine):
    file = machine.write("repo/sub/.midstream/rules/a.md")
    file.chmod(0)

    assert problems_of(machine) == ["it cannot be read: Permission denied"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_permission_is_a_problem(machine: Machine):
    directory = machine.write("repo/sub/.omp/rules/a.md").parent
    directory.chmod(0)

    try:
        assert problems_of(machine) == ["the directory cannot be read: Permission denied"]
    finally:
        directory.chmod(0o755)


def test_a_file_name_that_is_no_text_does_no_harm(machine: Machine):
    directory = os.fsencode(rules_directory(machine))
    with open(os.path.join(directory, b"\xff.md"), "wb") as file:
        file.write(b"---\ncondition: a\n---\nBody.")

    (rule,) = machine.discover().rules

    assert rule.name == "\ufffd"
    assert rule.path.encode().endswith("\ufffd.md".encode())


# Named places


def test_extension_roots_and_copilot_directories_are_read(machine: Machine):
    machine.write("ext/rules/e.md")
    machine.write("copilot/.github/instructions/c.instructions.md", "applyTo: '**'")
    settings = DiscoverySettings(
        builtin_rules=False,
        user_providers=EVERYTHING,
        extension_roots=(machine.root / "ext",),
        copilot_dirs=(machine.root / "copilot",),
    )

    assert names(discover(machine.cwd, machine.home, settings)) == ["e", "c"]


@pytest.mark.parametrize("as_list", [True, False])
def test_plugins_of_claude_code_are_found_where_they_are_installed(machine: Machine, as_list: bool):
    machine.write("plugin/rules/p.md")
    entry = {"installPath": str(machine.root / "plugin"), "version": "1"}
    listing = {"version": 2, "plugins": {"p@m": [entry] if as_list else entry}}
    file = machine.home / ".claude" / "plugins" / "installed_plugins.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(listing), encoding="utf-8")

    assert names(machine.discover()) == []
    assert names(machine.discover(user_providers=frozenset({"claude-plugins"}))) == ["p"]
    file.write_text("{", encoding="utf-8")
    assert len(machine.discover(user_providers=EVERYTHING).problems) == 1


def test_variables_of_other_tools_name_their_places():
    settings = with_environment(
        DiscoverySettings(),
        {
            "PI_CODING_AGENT_DIR": "/agent",
            "COPILOT_CUSTOM_INSTRUCTIONS_DIRS": "/one, /two",
            "USERPROFILE": "C:\\Users\\Ann",
            "WSL_DISTRO_NAME": "Debian",
        },
    )

    assert settings.omp_agent_dir == Path("/agent")
    assert settings.copilot_dirs == (Path("/one"), Path("/two"))
    assert settings.windows_home == Path("/mnt/c/Users/Ann")
    assert with_environment(DiscoverySettings(), {}) == DiscoverySettings()


def test_the_configuration_goes_before_the_environment():
    settings = DiscoverySettings(omp_agent_dir=Path("/mine"))

    assert with_environment(settings, {"PI_CODING_AGENT_DIR": "/agent"}) == settings


def test_the_agent_directory_can_be_moved(machine: Machine):
    machine.write("elsewhere/rules/a.md")
    settings = DiscoverySettings(omp_agent_dir=machine.root / "elsewhere", builtin_rules=False)

    assert names(discover(machine.cwd, machine.home, settings)) == ["a"]


# Explicit paths


def test_named_files_and_directories_load_whatever_they_say_of_being_enabled(machine: Machine):
    off = machine.write("x/off.md", "condition: a\nenabled: false")
    machine.write("dir/b.md")
    machine.write("dir/a.mdc")
    text = machine.write("x/plain.txt")

    found = rules_from_paths([off, machine.root / "dir", text])

    assert names(found) == ["off", "a", "b", "plain.txt"]
    assert {rule.origin for rule in found.rules} == {"argument"}


def test_a_named_file_that_does_not_exist_is_one_clear_error(tmp_path: Path):
    missing = tmp_path / "missing.md"

    with pytest.raises(RuleError) as caught:
        rules_from_paths([missing])

    assert str(caught.value) == f"{missing}: there is no such file or directory; check the path"


def test_of_two_named_files_with_one_name_the_first_counts(machine: Machine):
    one, two = machine.write("x/a.md"), machine.write("y/a.md")

    found = rules_from_paths([one, two])

    assert [rule.path for rule in found.rules] == [str(one)]
    assert [shadowed.rule.path for shadowed in found.shadowed] == [str(two)]


def test_what_looks_like_a_rule_and_is_not_read_is_said(machine: Machine):
    machine.write("repo/sub/.cursor/rules/frontend/react.mdc")
    machine.write("repo/sub/.cursor/rules/assets/logo.svg")
    machine.write("repo/sub/.midstream/rules/UPPER.MD")
    machine.write("repo/sub/.clinerules/workflows/release.md")
    machine.write("repo/sub/.clinerules/style.md")
    found = machine.discover()
    notes = {Path(p.path).name: p for p in found.problems if "not read" in p.what}
    assert set(notes) == {"frontend", "UPPER.MD"}
    assert all(note.severity is Severity.NOTE and note.mend for note in notes.values())

"""`midstream rules`, as a user types it: what is printed, where, and the exit code."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from typer.testing import CliRunner, Result

from midstream.cli import rules_scan
from midstream.cli.app import app
from midstream.messages.conversation import ReminderItem, UserItem
from midstream.messages.record import Fence
from midstream.messages.transition import AttachRunning
from midstream.stores.conversation_draft import Claim
from midstream.stores.conversation_load import load_conversation
from midstream.stores.conversations import accept_prompt, append_items, commit_write
from midstream.stores.sqlite import open_sqlite

Run = Callable[..., Result]

NO_ANY = """---
condition: '\\bas any\\b'
scope: "tool:edit(*.ts), tool:write(*.ts)"
examples:
  match: ["x as any;"]
  no_match: ["as anything"]
---
Give it its type.
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with one rule, no bundled ones, and a home without any."""
    directory, home = tmp_path / "project", tmp_path / "home"
    home.mkdir()
    write(directory / ".midstream" / "rules" / "no-any.md", NO_ANY)
    write(directory / "midstream.toml", "[rules]\nbuiltin_rules = false\n")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for variable in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    return directory


@pytest.fixture
def run(project: Path) -> Run:
    def invoke(*arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(app, ["rules", *arguments], input=text)

    return invoke


@pytest.fixture
def terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same in a terminal of 80 columns; colours are taken away."""

    def invoke(*arguments: str) -> Result:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "80")
        return run(*arguments)

    return invoke


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rule(front: str, name: str, body: str = "Do.", folder: str = ".midstream") -> Path:
    return write(Path(folder, "rules", f"{name}.md"), f"---\n{front}\n---\n{body}\n")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def json_lines(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- list


def test_list_shows_what_each_rule_listens_to_does_and_comes_from(run: Run):
    rule("description: d", "guide")

    result = run("list")

    assert result.exit_code == 0
    assert [re.split(r" {2,}", line) for line in result.stdout.splitlines()] == [
        ["NAME", "BUCKET", "SCOPE", "THEN", "ORIGIN", "FILE"],
        [
            "no-any",
            "stream",
            "edit, write: *.ts",
            "interrupt, once",
            "midstream",
            ".midstream/rules/no-any.md",
        ],
        ["guide", "rulebook", "-", "-", "midstream", ".midstream/rules/guide.md"],
    ]
    assert result.stderr == "2 rules, 1 of them watched for\n"


def test_list_all_shows_the_disabled_and_the_shadowed_with_the_reason(run: Run):
    rule("condition: a\nenabled: false", "off")
    rule("condition: a", "no-any", folder=".cursor")
    rule("condition: a", "named")
    with Path("midstream.toml").open("a") as config:
        config.write('disabled_rules = ["named"]\n')

    result = run("list", "--all")

    assert "off     disabled" in result.stdout
    assert ".midstream/rules/off.md (enabled: false)" in result.stdout
    assert ".midstream/rules/named.md (rules.disabled_rules)" in result.stdout
    assert ".cursor/rules/no-any.md (by .midstream/rules/no-any.md)" in result.stdout
    assert "3 more disabled or shadowed: --all" in run("list").stderr


def test_list_as_json_has_the_settings_that_count(run: Run):
    rule("condition: a\nrepeatMode: after-gap\nagents: [reviewer]", "gap")

    gap, no_any = sorted(json_lines(run("list", "--json")), key=lambda line: str(line["name"]))

    assert (gap["repeatMode"], gap["repeatGap"], gap["agents"]) == ("after-gap", 10, ["reviewer"])
    assert no_any["bucket"] == "stream"
    assert no_any["scope"] == ["tool:edit(*.ts)", "tool:write(*.ts)"]
    assert no_any["path"] == str(Path.cwd() / ".midstream/rules/no-any.md")


def test_list_in_a_terminal_has_sections_and_fits_its_width(terminal: Run):
    rule("alwaysApply: true", "style")

    output = plain(terminal("list").stdout)

    assert "Watched for (1)" in output
    assert "In the system prompt (1)" in output
    assert all(len(line) <= 80 for line in output.splitlines())


def test_the_bundled_rules_are_listed_where_nothing_else_is(run: Run):
    write(Path("midstream.toml"), "")

    assert "builtin:py-eval.md" in run("list").stdout


# --- check


def test_check_of_good_rules_is_short(run: Run):
    result = run("check")

    assert (result.exit_code, result.stdout) == (0, "1 rule: no problems\n")


def test_check_names_file_line_and_mend_sorted(run: Run):
    rule("condition:\n  - foo\n  - '.*'", "b-all")
    rule("scope: assistant\ncondition: 'a('", "a-bad")

    result = run("check")

    lines = result.stdout.splitlines()
    assert [line.split(" ")[0] for line in lines[:-1]] == [
        ".midstream/rules/a-bad.md:",
        ".midstream/rules/a-bad.md:2:",
        ".midstream/rules/a-bad.md:3:",
        ".midstream/rules/b-all.md:4:",
    ]
    assert "for text, write `text`" in lines[1]
    assert "condition `a(` is ignored" in lines[2]
    assert "condition `.*` matches any text" in lines[3]
    assert lines[-1] == "3 rules: 2 warnings, 2 notes"
    assert result.exit_code == 0
    assert run("check", "--strict").exit_code == 1


def test_check_fails_where_a_file_gives_no_rule(run: Run):
    path = rule("condition: a", "empty", body="")

    result = run("check", str(path))

    assert result.exit_code == 1
    assert "error: the file has no body" in result.stdout
    (line,) = json_lines(run("check", str(path), "--json"))
    assert (line["severity"], line["path"]) == ("error", str(Path.cwd() / path))


def test_check_says_which_rule_shadows_which_and_which_setting_is_idle(run: Run):
    rule("condition: a", "no-any", folder=".cursor")
    with Path("midstream.toml").open("a") as config:
        config.write('disabled_rules = ["no-ayn"]\n')

    output = run("check").stdout

    assert (
        ".cursor/rules/no-any.md: note: the rule is not used, because `no-any` of "
        ".midstream/rules/no-any.md comes first" in output
    )
    assert "names `no-ayn`, and there is no such rule" in output


def test_check_says_that_directories_below_are_not_searched(run: Run):
    assert "directories below it are not searched: rules" in run("check", ".midstream").stdout


def test_check_in_a_terminal_groups_by_file_and_fits_its_width(terminal: Run):
    rule("condition:\n  - foo\n  - '.*'", "all")

    lines = plain(terminal("check").stdout).splitlines()

    assert lines[0] == ".midstream/rules/all.md"
    assert re.match(r" +4 +warning +condition `\.\*` matches any text", lines[1])
    assert all(len(line) <= 80 for line in lines)


# --- test


def test_test_runs_the_examples(run: Run):
    result = run("test")

    assert result.exit_code == 0
    assert result.stdout == "2 examples of 1 rule: all as their authors say\n"


def test_test_says_what_was_expected_and_what_happened(run: Run):
    rule("condition: foo\nexamples: {match: [bar], no_match: [a foo]}", "wrong")

    result = run("test")

    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "wrong (.midstream/rules/wrong.md)",
        "  match     bar",
        "  tried as  prose",
        "  failed    expected a match: no condition matches",
        "wrong (.midstream/rules/wrong.md)",
        "  no_match  a foo",
        "  tried as  prose",
        "  failed    expected no match, but `foo` matches",
        "4 examples of 2 rules: 2 failed",
    ]
    outcomes = [line["passed"] for line in json_lines(run("test", "--json"))]
    assert sorted(map(str, outcomes)) == ["False", "False", "True", "True"]


def test_test_of_a_snippet_says_which_rule_matches_and_how_early(run: Run):
    result = run("test", "const x = y as any; // later", "-p", "src/a.ts")

    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()[1:]
    assert re.match(r"no-any  after \d+ of \d+ characters  interrupt  const x = y as any;", line)
    assert result.stderr == "tried the text as an edit call for src/a.ts\n"


def test_test_of_a_snippet_that_no_named_rule_matches_fails_and_says_why(run: Run):
    result = run("test", "x as any", "--rule", "no-any", "-p", "a.js")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "no rule matches"
    assert (
        "no-any does not match: its scope is `tool:edit(*.ts), tool:write(*.ts)`" in result.stdout
    )
    assert run("test", "x as any", "-p", "a.js").exit_code == 0


def test_test_of_a_rule_file_alone(run: Run):
    file = rule("condition: foo", "one", folder="elsewhere")

    assert run("test", "a foo", "-r", str(file)).exit_code == 0
    assert run("test", "a bar", "-r", str(file)).exit_code == 1


@pytest.mark.parametrize("name", ["a.ts", "b.cs", "c.sh", "Dockerfile", "d.vue", "e.TF"])
def test_b24_test_of_a_source_file_is_an_edit_and_says_so(run: Run, name: str):
    rule("condition: FROM\nscope: tool:edit", "from")
    write(Path("src", name), "FROM x\n")

    result = run("test", f"src/{name}")

    assert result.stdout.splitlines()[1].startswith("from")
    assert (
        f"tried the file src/{name} as an edit call for src/{name}; say --source" in result.stderr
    )


def test_test_of_other_text_is_prose_and_says_so(run: Run):
    rule("condition: hello\nscope: text", "hello")
    write(Path("notes.md"), "hello\n")

    assert "tried the file notes.md as prose" in run("test", "notes.md").stderr
    assert "tried standard input as prose" in run("test", "-", text="hello").stderr
    assert "`gone.ts` (there is no such file) as prose" in run("test", "gone.ts").stderr
    (hit,) = json_lines(run("test", "-", "--json", text="say hello now"))
    assert (hit["rule"], hit["offsetChars"], hit["certainAfterChars"]) == ("hello", 4, 9)


def test_test_reports_a_condition_that_takes_too_long(run: Run):
    rule("condition: '^(a|aa)+\\1c$'", "slow")

    result = run("test", "a" * 60 + "bc", "--rule", "slow")

    assert result.exit_code == 1
    assert "slow: it took longer than its time budget: ^(a|aa)+\\1c$" in result.stdout
    slow, missed = json_lines(run("test", "a" * 60 + "bc", "--rule", "slow", "--json"))
    assert (slow["suspended"], missed["hit"]) == ("^(a|aa)+\\1c$", False)


def test_test_counts_the_agent(run: Run):
    rule("condition: foo\nagents: reviewer", "for-reviewer")

    result = run("test", "foo", "--rule", "for-reviewer")

    assert result.exit_code == 1
    assert "it is for the agents reviewer, not for main" in result.stdout
    assert run("test", "foo", "--rule", "for-reviewer", "--agent", "Reviewer").exit_code == 0


def test_test_gives_a_json_rule_the_snippet_as_arguments(run: Run):
    rule('condition: \'^\\{"op":"run"\'\nmatch: json\nscope: tool', "raw")

    assert run("test", '{"op":"run"}', "--rule", "raw", "--tool", "jobs").exit_code == 0
    assert run("test", '{"op":"stop"}', "--rule", "raw", "--tool", "jobs").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("x", "--source", "text", "--tool", "edit"), "does not go with text"),
        (("--tool", "edit"), "needs a text"),
        (("--rule", "no-ayn"), "similar: no-any"),
        (("-r", "gone.md"), "there is no such file"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], part: str):
    result = run("test", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert part in result.stderr
    assert len(result.stderr.splitlines()) == 1


# --- scan


def test_scan_names_every_place(run: Run):
    write(Path("src/a.ts"), "a as any;\nfine\n  b as any\n")
    write(Path("src/a.js"), "a as any;\n")

    result = run("scan")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "src/a.ts:1:3: no-any: a as any;",
        "src/a.ts:3:5: no-any: b as any",
    ]
    assert result.stderr.startswith("2 places in 1 file; 1 rule over 1 of 4 files (3 that no rule")
    assert run("scan", "--fail").exit_code == 1
    assert run("scan", "src/a.js", "--fail").exit_code == 0


def test_scan_as_json(run: Run):
    write(Path("src/a.ts"), "a as any;\n")

    (line,) = json_lines(run("scan", "src", "--json"))

    assert line == {
        "path": "src/a.ts",
        "rule": "no-any",
        "tool": "write",
        "places": [{"line": 1, "column": 3, "excerpt": "a as any;"}],
        "isCut": False,
    }


def test_scan_leaves_out_what_is_not_text_or_too_large(run: Run):
    write(Path("a.ts"), b"\0 as any")
    write(Path("b.ts"), "x" * 100 + " as any")
    write(Path("c.ts"), b"\xff\xfe as any")

    result = run("scan", "--max-bytes", "50")

    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["c.ts"]
    assert "1 binary, 1 too large" in result.stderr


def test_scan_heeds_gitignore_in_a_work_tree(run: Run):
    subprocess.run(["git", "init", "-q"], check=True)
    write(Path(".gitignore"), "build/\n")
    write(Path("build/a.ts"), "as any")
    write(Path("src/new.ts"), "as any")
    gone = write(Path("src/gone.ts"), "as any")
    subprocess.run(["git", "add", "src/gone.ts"], check=True)
    gone.unlink()

    assert run("scan").stdout.splitlines() == ["src/new.ts:1:1: no-any: as any"]
    all_files = [line.split(":")[0] for line in run("scan", "--no-gitignore").stdout.splitlines()]
    assert all_files == ["build/a.ts", "src/new.ts"]


def test_scan_runs_nothing_that_a_repository_names(run: Run, tmp_path: Path):
    subprocess.run(["git", "init", "-q"], check=True)
    ran = tmp_path / "ran"
    program = write(tmp_path / "spy", f"#!/bin/sh\ntouch '{ran}'\n")
    program.chmod(0o755)
    subprocess.run(["git", "config", "core.fsmonitor", str(program)], check=True)
    write(Path("a.ts"), "as any")

    assert run("scan").exit_code == 0
    assert not ran.exists()


def test_scan_does_not_follow_links(run: Run, tmp_path: Path):
    outside = write(tmp_path / "outside.ts", "as any")
    Path("link.ts").symlink_to(outside)

    result = run("scan")

    assert result.stdout == ""
    assert "1 not a regular file" in result.stderr


def test_scan_cannot_be_made_to_write_to_the_terminal(run: Run):
    write(Path("a\x1b[31m.ts"), "as any \x1b]0;title\x07 [bold]")

    output = run("scan").stdout

    assert output == "a�[31m.ts:1:1: no-any: as any �]0;title� [bold]\n"


def test_ctrl_c_ends_a_scan_with_what_was_found(run: Run, monkeypatch: pytest.MonkeyPatch):
    for name in "abc":
        write(Path(f"{name}.ts"), "as any")
    scan_text = rules_scan.scan_text

    def stop_at_b(rule_set: object, path: str, *rest: object) -> object:
        if path == "b.ts":
            raise KeyboardInterrupt
        return scan_text(rule_set, path, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(rules_scan, "scan_text", stop_at_b)

    result = run("scan")

    assert result.exit_code == 130
    assert result.stdout == "a.ts:1:1: no-any: as any\n"
    assert "stopped after" in result.stderr


def test_scan_in_a_terminal_is_a_table_of_its_width(terminal: Run):
    write(Path("src/a.ts"), "a as any;\n" + "x" * 200 + " as any\n")

    lines = plain(terminal("scan").stdout).splitlines()

    assert lines[0].split() == ["PLACE", "RULE", "LINE"]
    assert lines[1].split() == ["src/a.ts:1:3", "no-any", "a", "as", "any;"]
    assert all(len(line) <= 80 for line in lines)


# --- why


def conversation(path: Path, turns: int) -> None:
    """A conversation `con-1` of so many turns, whose first injected `no-any`."""

    async def make() -> None:
        claim = Claim("ses-1", Fence("host", 1))
        at = "2026-03-01T12:00:00.000Z"
        opening = AttachRunning(
            id="ses-1",
            started_at=at,
            provider="replay",
            conversation_id="con-1",
            fence=claim.fence,
        )
        async with await open_sqlite(path) as store:
            empty = await load_conversation(store, "con-1")
            write = await commit_write(
                store, empty, lambda old: accept_prompt(old, opening, [UserItem("hi")])
            )
            for turn in range(1, turns + 1):
                items = [ReminderItem("No.", ("no-any",))] if turn == 1 else [UserItem("go on")]
                write = await commit_write(
                    store,
                    write.conversation,
                    lambda old, items=items, turn=turn: append_items(
                        old, claim, items, turn=turn, attempt=turn, at=at
                    ),
                )

    trio.run(make)


def test_b26_why_says_that_a_rule_is_spent_since_when_and_where(run: Run):
    conversation(Path(".midstream/midstream.sqlite3"), turns=4)

    result = run("why", "no-any", "--conversation", "con-1")

    assert result.exit_code == 0
    title, origin, past, spent, _ = result.stdout.splitlines()
    assert title == "no-any: spent"
    assert origin == "`no-any` comes from midstream (.midstream/rules/no-any.md)."
    assert past == (
        "In conversation con-1 (4 turns so far) it was last reminded of at turn 1, attempt 1 of "
        "session ses-1; the reminder is at position 1."
    )
    assert spent == "It is spent: reminded at turn 1, and repeats once only."


def test_why_counts_the_gap_of_the_configuration(run: Run):
    conversation(Path("kept.sqlite3"), turns=4)
    write(
        Path("midstream.toml"),
        '[rules]\nrepeat_mode = "after-gap"\nrepeat_gap = 5\n[store]\npath = "kept.sqlite3"\n',
    )

    assert "open again at turn 6" in run("why", "no-any", "--conversation", "con-1").stdout


def test_why_says_where_a_rule_does_not_listen(run: Run):
    out, inside = run("why", "no-any", "-p", "a.py"), run("why", "no-any", "-p", "a.ts")

    assert out.stdout.startswith("no-any: out of scope\n")
    assert "does not cover the path `a.py`" in out.stdout
    assert inside.stdout.startswith("no-any: nothing keeps it silent\n")
    assert run("why", "no-any", "--source", "thinking").stdout.startswith("no-any: out of scope\n")


def test_why_of_an_unknown_rule_is_an_answer(run: Run):
    result = run("why", "no-ayn")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "no-ayn: no such rule",
        "There is no rule named `no-ayn`.",
        "Rules with a similar name: `no-any`.",
    ]
    (line,) = json_lines(run("why", "no-any", "--json"))
    assert (line["rule"], line["standing"]) == ("no-any", "open")


def test_why_makes_no_store_where_there_is_none(run: Run):
    result = run("why", "no-any", "--conversation", "con-1")

    assert result.exit_code == 2
    assert "there is no conversation con-1 in .midstream/midstream.sqlite3" in result.stderr
    assert not Path(".midstream/midstream.sqlite3").exists()


# --- help


@pytest.mark.parametrize("command", ["list", "check", "test", "scan", "why"])
def test_each_command_has_a_help_with_an_example(run: Run, command: str):
    result = run(command, "--help")

    assert result.exit_code == 0
    assert f"Example: midstream rules {command}" in plain(result.stdout)


def test_directories_that_other_tools_are_told_of_are_read_too(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, shared = tmp_path / "agent", tmp_path / "shared"
    write(agent / "rules" / "from-agent.md", "---\ncondition: foo\n---\nDo.\n")
    write(
        shared / ".github" / "instructions" / "from-copilot.instructions.md",
        '---\napplyTo: "**/*.py"\n---\nDo.\n',
    )
    monkeypatch.setenv("PI_CODING_AGENT_DIR", str(agent))
    monkeypatch.setenv("COPILOT_CUSTOM_INSTRUCTIONS_DIRS", f" {shared} ,")

    assert "from-agent" in run("list").stdout
    assert "from-copilot" not in run("list", "--all").stdout, "a user's, of a foreign tool"
    write(Path("midstream.toml"), "[rules]\nbuiltin_rules = false\nforeign_user_rules = true\n")
    assert "from-copilot" in run("list", "--all").stdout


@pytest.mark.parametrize(
    ("front", "part"), [("condition: 'a{100000}'", "is ignored"), ("condition: x", "has no body")]
)
def test_test_of_a_rule_file_says_what_is_wrong_with_it(run: Run, front: str, part: str) -> None:
    body = "" if "body" in part else "Do."
    file = rule(front, "odd", body=body, folder="elsewhere")
    result = run("test", "x", "-r", str(file))
    assert result.exit_code == 1
    assert part in result.stderr

"""Finds rule files and reads them. With `rule_reader.py` the only I/O of this room, and all
of it blocking: callers on an event loop run it in a thread.

Nothing that is wrong with a file or a directory stops the others from loading; it becomes a
problem. Files load sorted by name and are not hidden by `.gitignore`. Of several rules with
one name the first counts, in the order of `rule_locations.py`; what it shadows is reported
(spec/ttsr.md 0.1, 1.8).
"""

import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import msgspec

from midstream.messages.errors import RuleError
from midstream.rules.buckets import BUILTIN_ORIGIN
from midstream.rules.front_matter import decode
from midstream.rules.problem import Problem, Severity
from midstream.rules.rule import Rule
from midstream.rules.rule_file import RuleFile, parse_rule, rule_name
from midstream.rules.rule_locations import (
    NATIVE_PROVIDERS,
    DiscoverySettings,
    Location,
    is_wanted,
    locations,
)
from midstream.rules.rule_reader import files_in, has_content, printable, read_rule


class Shadowed(msgspec.Struct, frozen=True):
    """`rule` is not used because `by` has the same name and comes first."""

    rule: Rule
    by: Rule


class Discovery(msgspec.Struct, frozen=True):
    """What was found. `rules` have unique names, in order of precedence, for every agent;
    `buckets.sort_rules` says what each is for. `disabled` are those whose files say
    `enabled: false`; they shadow nothing."""

    rules: tuple[Rule, ...] = ()
    problems: tuple[Problem, ...] = ()
    shadowed: tuple[Shadowed, ...] = ()
    disabled: tuple[Rule, ...] = ()


def discover(cwd: Path, home: Path, settings: DiscoverySettings | None = None) -> Discovery:
    """All rules for a session in `cwd`, of a user whose home is `home`."""
    return _Search(settings or DiscoverySettings()).run(cwd.absolute(), home.absolute())


def rules_from_paths(paths: Iterable[Path]) -> Discovery:
    """The rules of files and directories that somebody named.

    `enabled: false` is ignored: who names a file wants it. Raises `RuleError` for a path
    that does not exist.
    """
    collected = _Collected()
    for path in paths:
        if not os.path.exists(path):
            raise RuleError(path, 0, "there is no such file or directory", "check the path")
        if os.path.isdir(path):
            for file in files_in(path, (".md", ".mdc"), False, collected.problems):
                collected.add(read_rule(file, "argument"), heeds_enabled=False)
        else:
            collected.add(read_rule(path, "argument"), heeds_enabled=False)
    return collected.result()


def builtin_rules() -> Discovery:
    """The rules that come with midstream."""
    collected = _Collected()
    _add_builtin(collected)
    return collected.result()


class _Collected:
    """Rules in order of precedence, with one writer: whoever runs a search."""

    def __init__(self) -> None:
        self.by_name: dict[str, Rule] = {}
        self.problems: list[Problem] = []
        self.shadowed: list[Shadowed] = []
        self.disabled: list[Rule] = []

    def add(self, file: RuleFile, *, heeds_enabled: bool = True) -> None:
        self.problems += file.problems
        rule = file.rule
        if rule is None:
            return
        if heeds_enabled and not file.enabled:
            self.disabled.append(rule)
        elif rule.name in self.by_name:
            self.shadowed.append(Shadowed(rule, self.by_name[rule.name]))
        else:
            self.by_name[rule.name] = rule

    def result(self) -> Discovery:
        return Discovery(
            tuple(self.by_name.values()),
            tuple(self.problems),
            tuple(self.shadowed),
            tuple(self.disabled),
        )


class _Search:
    """One run of `discover`."""

    def __init__(self, settings: DiscoverySettings) -> None:
        self.settings = settings
        self.collected = _Collected()
        self.untrusted = [Path(os.path.realpath(path)) for path in settings.untrusted_dirs]
        self.seen: set[Path] = set()

    def run(self, cwd: Path, home: Path) -> Discovery:
        repository = _repository_of(cwd)
        if repository is not None and self._untrusted_root(cwd) is not None:
            # Whoever wrote the sub-directory wrote the rest of the repository too.
            self.untrusted.append(Path(os.path.realpath(repository)))
        places = locations(
            cwd,
            home,
            self.settings,
            repository=repository,
            plugin_roots=self._plugin_roots(home),
        )
        for location in places:
            self._read_location(location)
        if self.settings.builtin_rules:
            _add_builtin(self.collected)
        return self.collected.result()

    def _plugin_roots(self, home: Path) -> list[Path]:
        if not is_wanted("claude-plugins", True, self.settings):
            return []
        return _plugin_roots(home, self.collected.problems)

    def _read_location(self, location: Location) -> None:
        path = next((path for path in location.nearest_of if has_content(path)), None)
        if path is None:
            return
        if location.provider not in NATIVE_PROVIDERS and self._untrusted_root(path) is not None:
            what = f"rules of {location.provider} are not read from a directory that is not trusted"
            self._note(path, what, "take it out of the untrusted directories")
            return
        problems = self.collected.problems
        is_directory = os.path.isdir(path)
        files = (
            files_in(path, location.suffixes, location.is_recursive, problems)
            if is_directory
            else [path]
        )
        for file in files:
            # In a home directory, the project's place and the user's are the same.
            if file not in self.seen and not self._escapes(file):
                self.seen.add(file)
                name = None if is_directory else location.name
                read = read_rule(file, location.provider, name, location.always_apply)
                self.collected.add(read)

    def _escapes(self, file: Path) -> bool:
        """A link out of an untrusted directory would send the user's own files, whatever
        they are, to a model."""
        root = self._untrusted_root(file.parent)
        if root is None or Path(os.path.realpath(file)).is_relative_to(root):
            return False
        self._note(file, "a link that leads out of an untrusted directory is not followed")
        return True

    def _untrusted_root(self, path: Path) -> Path | None:
        """The untrusted directory that a path leads through, links followed or not."""
        for place in (path, *path.parents):
            real = Path(os.path.realpath(place))
            for root in self.untrusted:
                if real.is_relative_to(root):
                    return root
        return None

    def _note(self, path: Path, what: str, mend: str = "") -> None:
        problem = Problem(printable(path), 0, Severity.NOTE, what, mend)
        self.collected.problems.append(problem)


def _repository_of(cwd: Path) -> Path | None:
    return next((path for path in (cwd, *cwd.parents) if os.path.exists(path / ".git")), None)


class _Plugin(msgspec.Struct, rename="camel"):
    install_path: str | None = None


class _InstalledPlugins(msgspec.Struct):
    """`installed_plugins.json` of Claude Code. A plugin has one entry in the first version
    of the format, a list of them in the second."""

    plugins: dict[str, _Plugin | list[_Plugin]] = {}


def _plugin_roots(home: Path, problems: list[Problem]) -> list[Path]:
    """Where Claude Code's plugins are installed; empty where it has none."""
    file = home / ".claude" / "plugins" / "installed_plugins.json"
    try:
        installed = msgspec.json.decode(file.read_bytes(), type=_InstalledPlugins)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, msgspec.MsgspecError) as error:
        what = f"the list of plugins cannot be read: {error}"
        problems.append(Problem(printable(file), 0, Severity.NOTE, what))
        return []
    entries = [
        entry
        for listed in installed.plugins.values()
        for entry in (listed if isinstance(listed, list) else [listed])
    ]
    return [Path(entry.install_path) for entry in entries if entry.install_path]


def _add_builtin(collected: _Collected) -> None:
    directory = resources.files("midstream.rules") / "builtin"
    for file in sorted(directory.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".md"):
            path = f"{BUILTIN_ORIGIN}:{file.name}"
            name = rule_name(file.name)
            text = decode(file.read_bytes())
            collected.add(parse_rule(name, text, path=path, origin=BUILTIN_ORIGIN))

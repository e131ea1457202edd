"""Where rule files are looked for, in order of precedence: the table of spec/ttsr.md 1.8
with the changes of 0.1.

Pure; `discovery.py` reads what this page lists. Project before user within one provider.
Like the reference's native directory, `.midstream/rules` and `.omp/rules` are those of the
working directory itself, not of its parents: a session in a sub-directory has the rules
that are written there, and the user's own.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

NATIVE_PROVIDERS = frozenset({"midstream", "omp"})
"""Providers whose user directories are always read, and whose project directories are read
even where the directory is not trusted (spec/ttsr.md 0.1)."""

_MARKDOWN = (".md", ".mdc")


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says about finding rules.

    `user_providers` are the foreign tools whose user-level directories are read, `*` or
    `all` for each; `disabled_providers` are not read at all. `untrusted_dirs` are
    directories from which, and from below which, only native rules load; a working
    directory in one of them makes its whole repository one.
    """

    user_providers: frozenset[str] = frozenset()
    disabled_providers: frozenset[str] = frozenset()
    untrusted_dirs: tuple[Path, ...] = ()
    builtin_rules: bool = True
    omp_agent_dir: Path | None = None
    """Instead of `~/.omp/agent`."""
    extension_roots: tuple[Path, ...] = ()
    """Roots of oh-my-pi extensions, each with a `rules` directory."""
    copilot_dirs: tuple[Path, ...] = ()
    """Further roots with a `.github/instructions` directory."""
    windows_home: Path | None = None
    """The Windows user's home, as seen from WSL."""


def with_environment(
    settings: DiscoverySettings, environment: Mapping[str, str]
) -> DiscoverySettings:
    """`settings`, with what is not set there taken from the variables of other tools:
    `PI_CODING_AGENT_DIR`, `COPILOT_CUSTOM_INSTRUCTIONS_DIRS` and, under WSL, `USERPROFILE`.
    """
    agent_dir = environment.get("PI_CODING_AGENT_DIR")
    copilot = [
        part.strip() for part in environment.get("COPILOT_CUSTOM_INSTRUCTIONS_DIRS", "").split(",")
    ]
    windows = re.fullmatch(r"([A-Za-z]):\\(.+)", environment.get("USERPROFILE", ""))
    in_wsl = "WSL_DISTRO_NAME" in environment
    home = Path("/mnt", windows[1].lower(), *windows[2].split("\\")) if windows and in_wsl else None
    return msgspec.structs.replace(
        settings,
        omp_agent_dir=settings.omp_agent_dir or (Path(agent_dir) if agent_dir else None),
        copilot_dirs=settings.copilot_dirs or tuple(Path(part) for part in copilot if part),
        windows_home=settings.windows_home or home,
    )


class Location(msgspec.Struct, frozen=True):
    """A place to read rules from: the first of `nearest_of` that exists and is not empty.

    A directory gives its files that end in one of `suffixes`, a file gives one rule. `name`
    replaces the name that a single file would have, `always_apply` is forced on.
    """

    provider: str
    nearest_of: tuple[Path, ...]
    suffixes: tuple[str, ...] = _MARKDOWN
    is_user: bool = False
    is_recursive: bool = False
    name: str | None = None
    always_apply: bool = False


def locations(
    cwd: Path,
    home: Path,
    settings: DiscoverySettings,
    *,
    repository: Path | None,
    plugin_roots: Iterable[Path] = (),
) -> list[Location]:
    """All places to look, highest precedence first.

    `repository` is the root of the repository that holds `cwd`, None where there is none;
    `plugin_roots` are those of Claude Code's plugins.
    """
    up_to_repository = _ancestors(cwd, repository)
    agent_dir = settings.omp_agent_dir or home / ".omp" / "agent"
    found = [
        Location("midstream", (cwd / ".midstream" / "rules",)),
        Location("midstream", (home / ".midstream" / "rules",), is_user=True),
        Location("omp", (cwd / ".omp" / "rules",)),
        Location(
            "omp",
            tuple(directory / ".omp" / "RULES.md" for directory in up_to_repository),
            name="RULES@project",
            always_apply=True,
        ),
        Location("omp", (agent_dir / "rules",), is_user=True),
        Location("omp", (agent_dir / "RULES.md",), is_user=True, name="RULES", always_apply=True),
    ]
    found += [Location("omp-plugins", (root / "rules",)) for root in settings.extension_roots]
    found += [Location("claude-plugins", (root / "rules",), is_user=True) for root in plugin_roots]
    found += _agents_directories(up_to_repository, home, settings)
    found += [
        Location("claude", (cwd / ".claude" / "rules",)),
        Location("claude", (home / ".claude" / "rules",), is_user=True),
        Location("cursor", (cwd / ".cursor" / "rules",)),
        Location("cursor", (home / ".cursor" / "rules",), is_user=True),
        Location("windsurf", (cwd / ".windsurf" / "rules",), (".md",)),
        Location(
            "windsurf",
            (home / ".codeium" / "windsurf" / "memories" / "global_rules.md",),
            is_user=True,
        ),
        Location(
            "cline",
            tuple(directory / ".clinerules" for directory in (cwd, *cwd.parents)),
            (".md",),
            name="clinerules",
        ),
        _instructions(cwd, is_user=False),
    ]
    found += [_instructions(root, is_user=True) for root in settings.copilot_dirs]
    return [
        location for location in found if is_wanted(location.provider, location.is_user, settings)
    ]


def is_wanted(provider: str, is_user: bool, settings: DiscoverySettings) -> bool:
    """Whether the settings let a provider's project or user-level places be read."""
    if provider in settings.disabled_providers:
        return False
    if not is_user or provider in NATIVE_PROVIDERS:
        return True
    return not settings.user_providers.isdisjoint({provider, "*", "all"})


def _agents_directories(
    ancestors: list[Path], home: Path, settings: DiscoverySettings
) -> list[Location]:
    projects = [directory for directory in ancestors if directory != home]
    homes = [home, settings.windows_home] if settings.windows_home else [home]
    places = [(directory, False) for directory in projects] + [(place, True) for place in homes]
    return [
        Location("agents", (place / folder / "rules",), is_user=is_user)
        for place, is_user in places
        for folder in (".agent", ".agents")
    ]


def _instructions(root: Path, *, is_user: bool) -> Location:
    return Location(
        "github",
        (root / ".github" / "instructions",),
        (".instructions.md",),
        is_user=is_user,
        is_recursive=True,
    )


def _ancestors(cwd: Path, repository: Path | None) -> list[Path]:
    """`cwd` and its parents up to the repository's root; `cwd` alone outside of one."""
    if repository is None:
        return [cwd]
    return [place for place in (cwd, *cwd.parents) if place.is_relative_to(repository)]

"""Roles: who a session is, by name. Asked at each `summon`, so that a change counts at once.

By default roles are the `[roles.NAME]` tables of the configuration; a host that keeps them
elsewhere gives its own function to `open_runtime`.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from midstream.config import Config
from midstream.messages.errors import ConfigError


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a role stands for: the system prompt, and the environment of programs that are
    run for its sessions. None and empty leave what the configuration says."""

    system: str | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    model: str | None = None


Roles = Callable[[str | None], Identity]
"""Resolves a role; None is a session without one. A role that is not known has no identity
of its own, and works (spec/animator.md 5.2). Raises `ConfigError`."""


def configured_roles(config: Config, cwd: Path) -> Roles:
    """The roles of a configuration. The file of a system prompt is read at each call."""

    def resolve(name: str | None) -> Identity:
        role = config.roles.get(name) if name is not None else None
        if role is None:
            return Identity()
        system = role.system
        if role.system_file is not None:
            system = _read(cwd / role.system_file, f"roles.{name}.system_file")
        return Identity(system=system, environment=role.environment, model=role.model)

    return resolve


def _read(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        mend = f"make {path} a text file that can be read"
        raise ConfigError("configuration", key, f"cannot be read: {error}", mend) from error

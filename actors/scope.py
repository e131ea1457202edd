"""Which part of the file system may be read: allow rules, minus deny rules.

A scope is a value; `ScopedFs` holds the current one and asks it about canonical paths only,
so that neither `..`, nor links, nor look-alike prefixes reach around it
(spec/file_ref.md 4). Paths are compared component by component. Pure.
"""

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from midstream.messages.errors import MidstreamError

Components = tuple[str, ...]
"""A canonical absolute path without its leading slash: `/a/b` is `("a", "b")`."""


class ScopeError(MidstreamError):
    """A scope that cannot be used."""


class Permission(IntEnum):
    """What may be done; a larger one includes the smaller."""

    NONE = 0
    READ = 1
    WRITE = 2


class ScopeRule(msgspec.Struct, frozen=True):
    """One rule. `target` is an absolute path.

    A recursive rule holds for the target and everything below it, another one for the
    target and its direct children.
    """

    target: str
    permission: Permission = Permission.READ
    recursive: bool = True

    @property
    def components(self) -> Components:
        """The target's components."""
        return components_of(self.target)

    def matches(self, path: Components) -> bool:
        """Whether the rule holds for this canonical path."""
        target = self.components
        depth = len(path) - len(target)
        return path[: len(target)] == target and depth >= 0 and (self.recursive or depth <= 1)


class Scope(msgspec.Struct, frozen=True):
    """Allow rules and deny rules.

    A denied `READ` leaves nothing, a denied `WRITE` leaves at most `READ`; a deny rule never
    adds anything. Raises `ScopeError` without an allow rule or with a relative target.
    """

    allow: tuple[ScopeRule, ...]
    deny: tuple[ScopeRule, ...] = ()

    def __post_init__(self) -> None:
        if not self.allow:
            raise ScopeError("scope: at least one allow rule is needed")
        for rule in (*self.allow, *self.deny):
            if not rule.target.startswith("/"):
                raise ScopeError(f"scope: `{rule.target}` has to be an absolute path")

    def permission(self, path: Components) -> Permission:
        """What may be done at this canonical path."""
        allowed = max(
            (rule.permission for rule in self.allow if rule.matches(path)),
            default=Permission.NONE,
        )
        for rule in self.deny:
            if rule.matches(path):
                allowed = min(allowed, Permission(max(rule.permission - 1, Permission.NONE)))
        return allowed

    def leads_into(self, path: Components) -> bool:
        """Whether this canonical path is a directory above an allowed target.

        It may be passed through, which tells nobody more than that the target has a path.
        """
        return any(rule.components[: len(path)] == path for rule in self.allow)


def components_of(path: str) -> Components:
    """The components of an absolute path that has neither `..` nor links in it."""
    return tuple(name for name in path.split("/") if name not in ("", "."))


def allow_below(paths: Iterable[str]) -> Scope:
    """The scope that lets everything below these absolute paths be read."""
    return Scope(tuple(ScopeRule(path) for path in paths))

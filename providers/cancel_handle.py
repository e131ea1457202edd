"""Providers whose sessions live outside, and can be stopped by what their record holds."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class CancelsByHandle(Protocol):
    """A provider that can stop a session from any process of its machine."""

    @property
    def name(self) -> str: ...

    async def cancel(self, handle: Mapping[str, Any]) -> None:
        """Stop what `handle` names: the `cancelHandle` of a record that this provider wrote.

        What is gone already is no error. A handle of an unknown kind is left alone.
        """
        ...

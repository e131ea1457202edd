"""The dead-letter queue in a directory: one JSON file for each envelope.

A file appears whole or not at all (written aside, synced, renamed), so that a reader never
sees half of one (spec/animator.md B13). Only `*.json` counts. What will never arrive is moved
to `rejected/`, with a text file beside it that says why (14.14). The directory is made when
it is first needed. `write_envelope` is for programs without trio, such as a babysitter.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec
import trio

from midstream.messages.envelope import AnyEnvelope
from midstream.messages.errors import StoreError
from midstream.stores.dlq import DeadLetterQueue, PoisonEnvelope

T = TypeVar("T")

REJECTED = "rejected"


class FileQueue(DeadLetterQueue):
    """The queue in `directory`. File work is done in worker threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def put(self, envelope: AnyEnvelope) -> None:
        await self._do(lambda: write_envelope(self._directory, envelope))

    async def names(self) -> list[str]:
        return await self._do(lambda: _names(self._directory))

    async def read(self, name: str) -> AnyEnvelope | None:
        return await self._do(lambda: _read(self._directory / f"{name}.json"))

    async def remove(self, name: str) -> None:
        await self._do(lambda: (self._directory / f"{name}.json").unlink(missing_ok=True))

    async def reject(self, name: str, reason: str) -> None:
        await self._do(lambda: _reject(self._directory, name, reason))

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(work)
        except OSError as error:
            raise StoreError(
                f"{self._directory}: the dead-letter queue cannot be used: {error.strerror}; "
                "give the user who runs this program access to it"
            ) from error


def write_envelope(directory: Path, envelope: AnyEnvelope) -> None:
    """Put `envelope` into the queue in `directory`, durably, for its owner's eyes alone.

    Raises `OSError`, and `StoreError` for text that is no text to a database either.
    """
    try:
        data = msgspec.json.format(msgspec.json.encode(envelope))
    except UnicodeEncodeError as error:
        raise StoreError("text with a lone surrogate cannot be kept") from error
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = _file_name(envelope.name)
    aside = directory / f".{name}.{os.getpid()}.tmp"
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(directory / f"{name}.json")
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync(directory)


def _file_name(name: str) -> str:
    """Ids from outside may hold anything; a name of a file may not."""
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def _names(directory: Path) -> list[str]:
    if not directory.is_dir():
        return []
    found = (path for path in directory.iterdir() if path.suffix == ".json" and path.is_file())
    return sorted(path.stem for path in found if not path.name.startswith("."))


def _read(path: Path) -> AnyEnvelope | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=AnyEnvelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PoisonEnvelope(f"{path.name} is no envelope: {error}") from error


def _reject(directory: Path, name: str, reason: str) -> None:
    place = directory / REJECTED
    place.mkdir(mode=0o700, exist_ok=True)
    target = place / f"{name}.json"
    number = 1
    while target.exists():
        number += 1
        target = place / f"{name}.{number}.json"
    with suppress(FileNotFoundError):  # another process may have been faster
        (directory / f"{name}.json").rename(target)
        target.with_suffix(".reason.txt").write_text(reason + "\n", encoding="utf-8")


def _sync(directory: Path) -> None:
    """A rename is durable when its directory is; where that cannot be synced, it is as
    durable as the system makes it."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

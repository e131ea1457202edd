"""Why a reference to a file was not resolved, as one flat list of reasons.

`ScopedFs` raises them, `file_attachment.py` turns them into alerts, and both add what
belongs to a submit rather than to the file system (spec/file_ref.md 2.4).
"""

from enum import StrEnum

from midstream.messages.errors import MidstreamError


class CoarseReason(StrEnum):
    """The four classes that a host has to tell apart."""

    OUT_OF_SCOPE = "out_of_scope"
    NOT_FOUND = "not_found"
    BINARY = "binary"
    IO = "io"


class RefReason(StrEnum):
    """The reason, exactly."""

    INVALID_PATH = "invalid_path"
    """No path at all, or one that strict mode refuses."""
    RELATIVE_PATH = "relative_path"
    """Relative, and there is no directory that it could be relative to."""
    OUT_OF_SCOPE = "out_of_scope"
    SYMLINK_OUT_OF_SCOPE = "symlink_out_of_scope"
    BROKEN_SYMLINK = "broken_symlink"
    SYMLINK_TARGET_IS_DIRECTORY = "symlink_target_is_directory"
    IS_DIRECTORY = "is_directory"
    NOT_FOUND = "not_found"
    BINARY = "binary"
    IO = "io"
    """Everything else that the operating system can answer, and what is no regular file."""
    TIMEOUT = "timeout"
    """The file system did not answer in time."""
    BUDGET = "budget"
    """The submit has attached as much as it may."""
    NO_AUTHORITY = "no_authority"
    """The session may not read files at all."""

    @property
    def coarse(self) -> CoarseReason:
        """The class of the reason."""
        return _COARSE.get(self, CoarseReason.IO)


_COARSE = {
    RefReason.OUT_OF_SCOPE: CoarseReason.OUT_OF_SCOPE,
    RefReason.SYMLINK_OUT_OF_SCOPE: CoarseReason.OUT_OF_SCOPE,
    RefReason.NO_AUTHORITY: CoarseReason.OUT_OF_SCOPE,
    RefReason.NOT_FOUND: CoarseReason.NOT_FOUND,
    RefReason.BROKEN_SYMLINK: CoarseReason.NOT_FOUND,
    RefReason.BINARY: CoarseReason.BINARY,
}


class RefError(MidstreamError):
    """A reference could not be resolved. `path` is the reference, `detail` is for people.

    Of what lies outside the scope `detail` says nothing, not even whether it exists; of a
    link within the scope it may say where the link points.
    """

    def __init__(self, reason: RefReason, path: str, detail: str) -> None:
        self.reason = reason
        self.path = path
        self.detail = detail
        super().__init__(f"{path}: {detail}")

"""The text of a `file://` directive, from the user directory (spec/stop_message.md 2.2).

Read when the directive is applied and never again (decision 17). Blocks, as `ScopedFs` does.
"""

from midstream.actors.ref_failure import RefError, RefReason
from midstream.actors.scope import allow_below
from midstream.actors.scoped_fs import OpenFile, ScopedFs

LIMIT_BYTES = 64 * 1024


def read_directive_file(user_directory: str, path: str) -> str:
    """The content of a file below the absolute `user_directory`, links resolved.

    Raises `RefError` for what is not a regular UTF-8 file of at most 64 KiB below it.
    """
    fs = ScopedFs(allow_below([user_directory]), user_directory, strict=True)
    with fs.open(path) as opened:
        if not isinstance(opened, OpenFile):
            raise RefError(RefReason.IS_DIRECTORY, path, "is a directory")
        try:
            data, total_bytes = opened.read(LIMIT_BYTES)
        except OSError as error:
            raise RefError(RefReason.IO, path, error.strerror or "cannot be read") from error
    if total_bytes > LIMIT_BYTES:
        raise RefError(RefReason.BUDGET, path, f"larger than {LIMIT_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RefError(RefReason.BINARY, path, "not UTF-8 text") from None

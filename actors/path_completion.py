"""What a person may mean who has typed the beginning of a file reference.

Clients with an input line ask while `@src/a` is being typed (spec/file_ref.md 3, 8).
Blocks, as `ScopedFs` does.
"""

from midstream.actors.file_attachment import visible
from midstream.actors.ref_failure import RefError
from midstream.actors.scoped_fs import EntryKind, OpenDirectory, ScopedFs

CANDIDATES = 100


def complete_path(fs: ScopedFs, typed: str, *, limit: int = CANDIDATES) -> tuple[str, ...]:
    """Candidates for what follows the `@`, directories first, each usable as a reference.

    Everything up to the last `/` of `typed` names the directory, so that a trailing slash
    descends; directories end with one. What may not be read is not offered, and where
    nothing can be listed there are no candidates.
    """
    parent, slash, prefix = typed.rpartition("/")
    try:
        with fs.open(parent + slash or ".") as opened:
            if not isinstance(opened, OpenDirectory):
                return ()
            entries = opened.list(limit, prefix=prefix).entries
    except (RefError, OSError):
        return ()
    return tuple(
        parent + slash + name + ("/" if kind is EntryKind.DIRECTORY else "")
        for kind, name in entries
        if visible(name) == name
    )

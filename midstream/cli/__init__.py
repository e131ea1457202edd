"""The command line: `midstream`, built on typer and rich (the `cli` extra)."""

import sys

from midstream.cli.garbage import postpone_collections


def main() -> None:
    """Entry point of the `midstream` program."""
    postpone_collections()
    try:
        from midstream.cli.app import app

        app()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "midstream"):  # no extra would bring it
            raise
        sys.exit(
            f"midstream: the command line needs {missing}, which is not installed; "
            "install it with: pip install 'midstream[cli]'"
        )


__all__ = ["main"]

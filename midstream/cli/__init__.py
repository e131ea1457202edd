"""The command line: `midstream`, built on typer and rich (the `cli` extra)."""

import sys


def main() -> None:
    """Entry point of the `midstream` program."""
    try:
        from midstream.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "midstream"):  # no extra would bring it
            raise
        sys.exit(
            f"midstream: the command line needs {missing}, which is not installed; "
            "install it with: pip install 'midstream[cli]'"
        )
    app()


__all__ = ["main"]

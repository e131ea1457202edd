"""The command line: `midstream`, built on typer and rich (the `cli` extra)."""

import sys


def main() -> None:
    """Entry point of the `midstream` program."""
    try:
        from midstream.cli.app import app
    except ModuleNotFoundError as error:
        sys.exit(
            f"midstream: the command line needs {error.name}, which is not installed; "
            "install it with: pip install 'midstream[all]'"
        )
    app()


__all__ = ["main"]
